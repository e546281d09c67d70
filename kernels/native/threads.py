"""Runs native kernels on torch's own OpenMP threads, and says whether this machine can run them.

Torch's threads can be entered by anybody who knows the address of a C function. Each thread that
computes owns workers of its own; as soon as there are more of them than cores, libgomp lets all
workers sleep between two products instead of spinning, and waking them costs more than a product
with few rows. So one thread computes, the engine's, and what others have to compute runs by
`call_apart`: workers end with the thread that owns them.
"""

import ctypes
import functools
import importlib.util
import os
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import torch

# UMBEL_NATIVE=0 leaves these kernels out: the torch twins compute everything. UMBEL_NATIVE=bf16
# leaves out products in half precision, as on processors without them.
_SWITCH = "UMBEL_NATIVE"
_FEATURES = ("avx512f", "avx512bw", "avx512bf16")
_HALF_FEATURE = "avx512fp16"

_Enter = Callable[[int, object, int, int], None]
Answer = TypeVar("Answer")


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


@functools.cache
def has_halves() -> bool:
    """Whether the processor also multiplies in half precision."""
    if not is_available() or os.environ.get(_SWITCH, "1") == "bf16":
        return False
    import llvmlite.binding

    return bool(llvmlite.binding.get_host_cpu_features().get(_HALF_FEATURE, False))


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


def call_apart(function: Callable[[], Answer]) -> Answer:
    """`function()` on a thread that ends with it, and OpenMP workers with the thread. Waits."""
    future: Future[Answer] = Future()

    def answer() -> None:
        try:
            future.set_result(function())
        except BaseException as exc:
            future.set_exception(exc)

    thread = threading.Thread(target=answer, name="umbel-apart", daemon=True)
    thread.start()
    thread.join()  # not only the result: the workers must be gone
    return future.result()


def use_threads(num_threads: int) -> None:
    """How many threads the products of the calling thread use; those of other threads stay as they
    are, which `torch.set_num_threads` does not promise.
    """
    torch.get_num_threads()  # torch looks at its own setting once per thread: now, and not later
    library = _libgomp()
    if library is None:
        torch.set_num_threads(num_threads)
    else:
        library.omp_set_num_threads(num_threads)


@functools.cache
def _libgomp() -> ctypes.CDLL | None:
    """Torch's OpenMP, where it is libgomp."""
    for path in (Path(torch.__file__).parent / "lib").glob("libgomp*.so*"):
        return ctypes.CDLL(str(path))
    return None


@functools.cache
def _enter() -> _Enter | None:
    """`GOMP_parallel(function, data, num_threads, flags)` of torch's OpenMP."""
    library = _libgomp()
    if library is None:
        return None
    function = library.GOMP_parallel
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    function.restype = None
    return function
