"""Devices by name, from a JSON file, or this machine's CPU, measured on the spot.

Rates in the table are the vendor's for dense matrices. Data sheets of GPUs with structured sparsity
print twice as much ("with sparsity"); that figure is of no use for language models.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline.records import Device

if TYPE_CHECKING:
    import torch

    from umbel.kernels.grouped import GroupedWeight

CPU = "cpu"
LAUNCH_S = (
    4e-6  # one CUDA kernel launch from the host, without graphs: a usual figure, not measured
)

# bandwidth in bytes/s, interconnect and host link per direction (data sheets add both directions).
_TABLE = (
    Device(
        name="h100",
        # NVIDIA H100 data sheet, SXM5: 1,979 TFLOPS FP16 and 3,958 FP8 "with sparsity", halved.
        peak_flops={
            "float32": 66.9e12,
            "bfloat16": 989.4e12,
            "float16": 989.4e12,
            "float8": 1978.9e12,
            "int8": 1978.9e12,
        },
        bandwidth=3.35e12,
        memory_bytes=80e9,
        interconnect_bandwidth=450e9,  # NVLink 4: 900 GB/s both ways
        host_link_bandwidth=64e9,  # PCIe 5.0 x16
        launch_s=LAUNCH_S,
        source="NVIDIA H100 SXM5 data sheet, dense rates",
    ),
    Device(
        name="h200",
        # NVIDIA H200 data sheet, SXM: the arithmetic of the H100, 141 GB of HBM3e.
        peak_flops={
            "float32": 66.9e12,
            "bfloat16": 989.4e12,
            "float16": 989.4e12,
            "float8": 1978.9e12,
            "int8": 1978.9e12,
        },
        bandwidth=4.8e12,
        memory_bytes=141e9,
        interconnect_bandwidth=450e9,
        host_link_bandwidth=64e9,
        launch_s=LAUNCH_S,
        source="NVIDIA H200 SXM data sheet, dense rates",
    ),
    Device(
        name="a100",
        # NVIDIA A100 80 GB data sheet, SXM4; it lists the dense rates first. No FP8 arithmetic.
        peak_flops={
            "float32": 19.5e12,
            "bfloat16": 312e12,
            "float16": 312e12,
            "int8": 624e12,
        },
        bandwidth=2.039e12,
        memory_bytes=80e9,
        interconnect_bandwidth=300e9,  # NVLink 3: 600 GB/s both ways
        host_link_bandwidth=32e9,  # PCIe 4.0 x16
        launch_s=LAUNCH_S,
        source="NVIDIA A100 80 GB SXM4 data sheet, dense rates",
    ),
    Device(
        name="l4",
        # NVIDIA L4 data sheet: 242 TFLOPS FP16 and 485 FP8 "with sparsity", halved.
        peak_flops={
            "float32": 30.3e12,
            "bfloat16": 121e12,
            "float16": 121e12,
            "float8": 242.5e12,
            "int8": 242.5e12,
        },
        bandwidth=300e9,
        memory_bytes=24e9,
        interconnect_bandwidth=32e9,  # no NVLink: PCIe 4.0 x16
        host_link_bandwidth=32e9,
        launch_s=LAUNCH_S,
        source="NVIDIA L4 data sheet, dense rates",
    ),
)
DEVICES = {device.name: device for device in _TABLE}

_LEAST_COPY_BYTES, _MOST_COPY_BYTES = 64 << 20, 256 << 20
_LAST_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")  # "32768K"
_MATMUL_SIZE = 1536
_PROBE_ROWS = 16
_MOST_RUNS, _BUDGET_S = 10, 0.2  # of one measurement
_BUSY_SHARE = 0.5  # of the cores, as load average, from which a measurement is doubted


class _DeviceFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A device as JSON: bytes, bytes/s, FLOP/s and seconds. Optional fields as in `Device`."""

    peak_flops: dict[str, float]
    bandwidth: float
    memory_bytes: float
    name: str | None = None
    interconnect_bandwidth: float | None = None
    collective_latency_s: float = 0.0
    host_link_bandwidth: float | None = None
    launch_s: float = 0.0
    source: str = ""


def find_device(name_or_path: str) -> Device:
    """The device of a name in `DEVICES`, `cpu` (measured now, under a second), or of a JSON file.

    Raises `InvalidRequest` for an unknown name, and for a file that does not describe a device.
    """
    name = name_or_path.lower()
    if name == CPU:
        return measure_cpu()
    if name in DEVICES:
        return DEVICES[name]
    path = Path(name_or_path)
    if path.is_file():
        return read_device(path)
    raise InvalidRequest(
        f"device {name_or_path!r} is not known: expected one of {', '.join(DEVICES)}, {CPU} "
        "(measured on this machine), or the path of a JSON file with peak_flops, bandwidth and "
        "memory_bytes",
        param="device",
    )


def read_device(path: Path) -> Device:
    """The device that a JSON file describes. Raises `InvalidRequest` naming file and field."""
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=_DeviceFile)
    except (OSError, msgspec.MsgspecError) as exc:
        known = ", ".join(_DeviceFile.__struct_fields__)
        raise InvalidRequest(
            f"{path} does not describe a device: {exc}; expected a JSON object with {known}",
            param="device",
        ) from exc
    return Device(
        name=fields.name or path.stem,
        peak_flops=fields.peak_flops,
        bandwidth=fields.bandwidth,
        memory_bytes=fields.memory_bytes,
        interconnect_bandwidth=fields.interconnect_bandwidth,
        collective_latency_s=fields.collective_latency_s,
        host_link_bandwidth=fields.host_link_bandwidth,
        launch_s=fields.launch_s,
        source=fields.source or str(path),
    )


def measure_cpu() -> Device:
    """This machine's CPU with torch's present threads: the best of several short runs, since a
    limit is wanted. Under a second, the import of torch apart.
    """
    import torch  # 2 s to import, and only needed here

    return Device(
        name=CPU,
        peak_flops={
            "float32": _matmul_flops(torch.float32),
            "bfloat16": _matmul_flops(torch.bfloat16),
        },
        bandwidth=_memory_bandwidth(),
        memory_bytes=_memory_bytes(),
        source=f"measured now with {torch.get_num_threads()} threads{_other_load()}",
    )


def _other_load() -> str:
    """A warning when other programs are using the cores: what was measured is then no limit."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0]
    if load < _BUSY_SHARE * cores:
        return ""
    return f"; the machine is busy (load {load:.1f} on {cores} cores), so rates are too low"


def _memory_bandwidth() -> float:
    import torch

    values = torch.ones(_copy_bytes() // 4)
    source, target = values.chunk(2)
    read_s = _best_s(lambda: values.sum())
    copy_s = _best_s(lambda: target.copy_(source))
    return max(values.nbytes / read_s, values.nbytes / copy_s)


def _copy_bytes() -> int:
    """Four times the last cache, within bounds: it is the most that measuring needs, and an engine
    that asks for its limits has it at its peak.
    """
    try:
        text = _LAST_CACHE.read_text(encoding="ascii").strip()
        cache_bytes = int(text.removesuffix("K")) << 10
    except (OSError, ValueError):
        return _MOST_COPY_BYTES
    return min(max(4 * cache_bytes, _LEAST_COPY_BYTES), _MOST_COPY_BYTES)


def _matmul_flops(dtype: "torch.dtype") -> float:
    import torch

    from umbel.kernels.linear import NativeLinear, is_native, make_linear

    left = torch.ones(_MATMUL_SIZE, _MATMUL_SIZE, dtype=dtype)
    few, out = left[:_PROBE_ROWS], torch.empty_like(left)
    # The engine's products too: of halves or integers, they are faster than any of torch's.
    product = make_linear(left)
    with torch.inference_mode():
        seconds = _best_s(lambda: product(left))
        if dtype == torch.bfloat16 and is_native(left.shape):
            of_codes = NativeLinear(_quantized(_MATMUL_SIZE))
            seconds = min(seconds, _best_s(lambda: of_codes(left)))
        # What bfloat16 can do, float32 can: much the faster where there is no arithmetic for it.
        floats, float_out = left.float(), out.float()
        seconds = min(seconds, _best_s(lambda: torch.mm(floats, floats, out=float_out)))
        # Without instructions for bfloat16 torch's takes half a minute.
        if _best_s(lambda: torch.mm(few, left)) < 4 * _best_s(lambda: product(few)):
            seconds = min(seconds, _best_s(lambda: torch.mm(left, left, out=out)))
    return float(2 * _MATMUL_SIZE**3 / seconds)


def _quantized(size: int) -> "GroupedWeight":
    """[size, size], with codes of 8 bits."""
    import torch

    from umbel.kernels.grouped import GROUP, GroupedWeight

    codes = torch.ones(size, size, dtype=torch.int8)
    return GroupedWeight(codes, torch.ones(size, size // GROUP).half(), None)


def _best_s(work: Callable[[], object]) -> float:
    """The shortest of some runs: at least two, more as long as they fit into the time budget."""
    taken: list[float] = []
    while len(taken) < 2 or (len(taken) < _MOST_RUNS and sum(taken) < _BUDGET_S):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _memory_bytes() -> float:
    total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")  # what a container may use
    try:
        text = limit.read_text().strip()
    except OSError:
        return total
    return min(total, float(text)) if text.isdigit() else total
