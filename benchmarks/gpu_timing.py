"""Times of kernels on a GPU: the rates of the device, and launches replayed as a CUDA graph.

Without a GPU the same functions run once on small tensors and a host's clock, so that nothing of
the script is new on the day there is one; what they measure then means nothing and is marked so.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from umbel.runtime.roofline.records import Device

Launch = Callable[[], object]
COLD_BYTES = 256 << 20  # what launches in turn must touch so that the L2 cache does not help


@dataclass(slots=True, kw_only=True)
class Check:
    """One line of the table. `share` is of the measured copy or matmul rate, whichever binds."""

    name: str
    error: float | None = None  # None: nothing was compared
    tolerance: float = 0.0
    time_us: float | None = None
    num_bytes: float = 0.0
    flops: float = 0.0
    share: float | None = None
    target: float | None = None  # of share; below it the check is reported, not failed
    note: str = ""

    @property
    def is_right(self) -> bool:
        return self.error is None or self.error <= self.tolerance  # NaN is not

    @property
    def is_on_target(self) -> bool:
        return self.target is None or self.share is None or self.share >= self.target


@dataclass(slots=True)
class Session:
    """Where the checks run, and what they found."""

    device: torch.device
    is_timed: bool  # False in the interpreter: small shapes, and times that mean nothing
    deadline_s: float  # of time.monotonic
    copy_rate: float = 0.0  # bytes/s
    matmul_rate: float = 0.0  # FLOP/s in bfloat16
    checks: list[Check] = field(default_factory=list)
    tables: dict[str, list[dict[str, object]]] = field(default_factory=dict)

    @property
    def total_memory(self) -> float:
        """Bytes of the device."""
        if not self.is_timed:
            return 1e9
        return float(torch.cuda.get_device_properties(0).total_memory)

    def add(self, check: Check) -> None:
        if not self.is_timed:
            check.target = None
        if check.time_us and self.copy_rate:
            seconds = check.time_us * 1e-6
            check.share = max(
                check.num_bytes / seconds / self.copy_rate,
                check.flops / seconds / self.matmul_rate,
            )
        self.checks.append(check)
        print(line(check), flush=True)

    def add_row(self, table: str, **values: object) -> None:
        self.tables.setdefault(table, []).append(values)
        print(f"  {table}: " + ", ".join(f"{k} {_short(v)}" for k, v in values.items()), flush=True)

    def synchronize(self) -> None:
        if self.is_timed:
            torch.cuda.synchronize()

    def has_time(self, seconds: float) -> bool:
        return time.monotonic() + seconds < self.deadline_s

    def time_us(self, launches: Sequence[Launch], *, rounds: int = 5) -> float:
        """Microseconds of one launch, the median of several replays.

        `launches` do the same work on different memory, in turn. They are captured as a graph, so
        the host's time is not in it.
        """
        if not self.is_timed:
            return elapsed_s(capture(lambda: [launch() for launch in launches]).replay) * 1e6
        repeats = max(1, 20 // len(launches))
        graph = capture(lambda: [launch() for _ in range(repeats) for launch in launches])
        times = [elapsed_s(graph.replay) for _ in range(rounds + 1)][1:]
        return sorted(times)[rounds // 2] / (repeats * len(launches)) * 1e6


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def line(check: Check) -> str:
    """A check as one line of text."""
    word = "ok   " if check.is_right and check.is_on_target else "below"
    parts = [word if check.is_right else "WRONG", f"{check.name:52s}"]
    if check.error is not None:
        parts.append(f"error {check.error:.1e} (at most {check.tolerance:.0e})")
    if check.time_us is not None:
        parts.append(f"{check.time_us:9.1f} us")
    if check.share is not None:
        rate = check.num_bytes / (check.time_us or 1) / 1e3
        parts.append(f"{rate:6.0f} GB/s {check.flops / (check.time_us or 1) / 1e6:6.1f} TFLOP/s")
        goal = "" if check.target is None else f" (target {check.target:.0%})"
        parts.append(f"{check.share:5.1%} of the roofline{goal}")
    return "  ".join([*parts, check.note])


class Replayable(Protocol):
    def replay(self) -> object: ...


@dataclass(slots=True)
class _Again:
    """A graph where there is none."""

    replay: Launch


def capture(launches: Launch) -> Replayable:
    """A graph of these launches, compiled and warmed up before."""
    if not torch.cuda.is_available():
        return _Again(launches)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launches()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launches()
    return graph


def elapsed_s(launch: Launch) -> float:
    """Seconds on the device from before to after what `launch` enqueues."""
    if not torch.cuda.is_available():
        start_s = time.perf_counter()
        launch()
        return time.perf_counter() - start_s
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    launch()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def measure_rates(session: Session) -> None:
    """The denominators: a copy of 2 GiB, and a product of 8192 x 8192 in bfloat16."""
    num_elements, size = (1 << 30, 8192) if session.is_timed else (1 << 10, 16)
    source = torch.zeros(num_elements, dtype=torch.bfloat16, device=session.device)
    target = torch.empty_like(source)
    copy_us = session.time_us([lambda: target.copy_(source)])
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=session.device) for _ in range(2))
    matmul_us = session.time_us([lambda: torch.mm(a, b)])
    session.copy_rate = 2 * source.nbytes / (copy_us * 1e-6)
    session.matmul_rate = 2 * size**3 / (matmul_us * 1e-6)


def measured_device(session: Session) -> Device:
    """The device as the planner sees it, with the rates that were measured."""
    return Device(
        name="measured",
        peak_flops={"bfloat16": session.matmul_rate},
        bandwidth=session.copy_rate,
        memory_bytes=session.total_memory,
    )


def relative_error(got: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm; NaN if `got` is not finite throughout."""
    if not bool(got.isfinite().all()):
        return float("nan")
    got, expected = got.double(), expected.double()
    return float((got - expected).norm() / expected.norm())
