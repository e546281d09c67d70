"""Runs native kernels on torch's own OpenMP threads, and says whether this machine can run them.

Two pools of threads on the same cores wait for each other in turns; torch's pool can be entered by
anybody who knows the address of a C function.
"""

import ctypes
import functools
import importlib.util
import os
import struct
from collections.abc import Callable
from pathlib import Path

import torch

# UMBEL_NATIVE=0 leaves these kernels out: the torch twins compute everything.
_SWITCH = "UMBEL_NATIVE"
_FEATURES = ("avx512f", "avx512bw", "avx512bf16")

_Enter = Callable[[int, object, int, int], None]


@functools.cache
def is_available() -> bool:
    """Whether numba is installed, the processor has what the kernels need, and nobody said no."""
    if os.environ.get(_SWITCH, "1") == "0":
        return False
    if importlib.util.find_spec("numba") is None or importlib.util.find_spec("llvmlite") is None:
        return False
    import llvmlite.binding

    features = llvmlite.binding.get_host_cpu_features()
    return _enter() is not None and all(features.get(name, False) for name in _FEATURES)


def run_unsafe(kernel: int, args: object) -> None:
    """Call the C function at address `kernel` with `args` once on each of torch's threads.

    args: a ctypes array of int64; what it points to must be as the kernel expects it. The kernels
    take their work by counting up args[0], which must be 0.
    """
    enter = _enter()
    assert enter is not None, "native kernels were asked for where there are none"
    enter(kernel, args, torch.get_num_threads(), 0)


@functools.cache
def float_bits(value: float) -> int:
    """The 32 bits of a float32, as kernels take it among integers."""
    return int.from_bytes(struct.pack("<f", value), "little")


@functools.cache
def _enter() -> _Enter | None:
    """`GOMP_parallel(function, data, num_threads, flags)` of torch's OpenMP."""
    for path in (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"):
        function = ctypes.CDLL(str(path)).GOMP_parallel
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        function.restype = None
        return function
    return None
