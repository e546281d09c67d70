"""Up to how many rows a quantized product is computed from its codes: measured once a machine.

Called by the loader when a model is complete. What was measured is kept in a file of the user's
cache folder, so that later starts take no time and choose the same; `UMBEL_TUNE=0` takes the
defaults and neither measures nor reads.
"""

import json
import logging
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from umbel.kernels.linear import GroupedLinear, Linear

logger = logging.getLogger(__name__)

# What a machine with AVX-512 BF16 gave: codes of 8 bits cost more to unpack.
DEFAULT_LIMITS = {4: 64, 8: 8}
_SWITCH = "UMBEL_TUNE"
_ROW_COUNTS = (8, 16, 32, 64, 128)
# Layers multiplied in turn: together larger than the caches, as in a step.
_MAX_LAYERS = 12
_NUM_TRIES = 4


def tune_row_limits(layers: Sequence[Linear], cache_folder: Path | None = None) -> dict[str, int]:
    """Set `max_native_rows` of all quantized layers. Returns the limits by kind of product.

    cache_folder: where measurements are kept; None: the user's cache folder.
    """
    kinds: dict[str, list[GroupedLinear]] = {}
    for layer in layers:
        if isinstance(layer, GroupedLinear):
            kinds.setdefault(_kind(layer), []).append(layer)
    if not kinds or os.environ.get(_SWITCH, "1") == "0":
        return {kind: members[0].max_native_rows for kind, members in kinds.items()}
    file = (cache_folder or _cache_folder()) / f"row-limits-{_machine()}.json"
    limits = _read(file)
    new = [kind for kind in kinds if kind not in limits]
    for kind in new:
        limits[kind] = _measure(kinds[kind][:_MAX_LAYERS])
        logger.info("%s: codes up to %d rows", kind, limits[kind])
    if new:
        _write(file, limits)
    for kind, members in kinds.items():
        for layer in members:
            layer.max_native_rows = limits[kind]
    return {kind: limits[kind] for kind in kinds}


def _measure(layers: Sequence[GroupedLinear]) -> int:
    """The largest row count at which, as at all smaller ones, codes are not slower."""
    limit = 0
    for num_rows in _ROW_COUNTS:
        x = torch.randn(num_rows, layers[0].in_features).bfloat16()
        native_s, dense_s = float("inf"), float("inf")
        with torch.inference_mode():
            for _ in range(_NUM_TRIES):  # in turns: both see the same neighbours
                start_s = time.perf_counter()
                for layer in layers:
                    layer.native(x)
                middle_s = time.perf_counter()
                for layer in layers:
                    layer.dense(x)
                native_s = min(native_s, middle_s - start_s)
                dense_s = min(dense_s, time.perf_counter() - middle_s)
        if native_s > dense_s:
            break
        limit = num_rows
    return limit


def _kind(layer: GroupedLinear) -> str:
    shape = f"{layer.out_features}x{layer.in_features}"
    return f"{layer.num_bits} bits {shape}, {torch.get_num_threads()} threads"


def _machine() -> str:
    """The processor's name, as part of a file name."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = [
        line.partition(":")[2].strip()
        for key in ("vendor_id", "cpu family", "model\t", "model name")
        for line in lines
        if line.startswith(key)
    ]
    parts = dict.fromkeys(facts) or {name: None}
    return "-".join("".join(c for c in part if c.isalnum()) for part in parts)


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "umbel"


def _read(file: Path) -> dict[str, int]:
    """What was measured before; nothing if the file is missing or is not ours."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or not all(isinstance(v, int) for v in found.values()):
        return {}
    return found


def _write(file: Path, limits: dict[str, int]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(limits, indent=1), encoding="utf-8")
        part.replace(file)
    except OSError as exc:
        logger.debug("measured row limits are not kept: %s", exc)
