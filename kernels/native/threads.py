"""Runs native kernels on torch's own OpenMP threads, and says whether this machine can run them.

Torch's threads can be entered by anybody who knows the address of a C function. Each thread that
computes owns workers of its own; as soon as there are more of them than cores, libgomp lets all
workers sleep between two products instead of spinning, and waking them costs more than a product
with few rows. So one thread computes, the engine's, and what others have to compute runs by
`call_apart`: workers end with the thread that owns them.
"""

import contextlib
import ctypes
import functools
import importlib.util
import os
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import torch

# UMBEL_NATIVE=0 leaves these kernels out: the torch twins compute everything. UMBEL_NATIVE=bf16
# leaves out products in half precision, as on processors without them; fp32 those in bfloat16 too.
_SWITCH = "UMBEL_NATIVE"
_FEATURES = ("avx2", "fma", "f16c")
_BFLOAT_FEATURES = ("avx512f", "avx512bw", "avx512bf16")
_HALF_FEATURES = ("avx512fp16",)

Arithmetic: TypeAlias = Literal["halves", "bfloats", "floats", "int16s", "int8s"]
_Enter = Callable[[int, object, int, int], None]
Answer = TypeVar("Answer")


@functools.cache
def is_available() -> bool:
    """Whether numba is installed, the processor has what the kernels need, and nobody said no."""
    if _wanted() == "0" or _enter() is None:
        return False
    if importlib.util.find_spec("numba") is None or importlib.util.find_spec("llvmlite") is None:
        return False
    return _has_features(_FEATURES)


@functools.cache
def has_bfloats() -> bool:
    """Whether the processor multiplies bfloat16; if not, kernels compute in float32."""
    return is_available() and _wanted() != "fp32" and _has_features(_BFLOAT_FEATURES)


@functools.cache
def has_halves() -> bool:
    """Whether the processor also multiplies in half precision."""
    return has_bfloats() and _wanted() != "bf16" and _has_features(_HALF_FEATURES)


def arithmetic() -> Arithmetic:
    """What this machine computes in, unless rows of a product are rounded to integers."""
    if has_halves():
        return "halves"
    return "bfloats" if has_bfloats() else "floats"


def keeps_code() -> bool:
    """Whether compiled kernels go to numba's cache, which knows the processor but not the switch:
    code for less than the processor has must not lie there."""
    _forget_old_code()
    return _wanted() not in ("bf16", "fp32")


@functools.cache
def _forget_old_code() -> None:
    forget_old_code(Path(__file__).parent)


def forget_old_code(folder: Path) -> None:
    """Remove the indexes of numba's cache that are older than any source in `folder`. Numba looks
    at a kernel's own file only, and not at those that its inner loops come from."""
    newest_s = max(source.stat().st_mtime for source in folder.glob("*.py"))
    for index in (folder / "__pycache__").glob("*.nbi"):
        with contextlib.suppress(OSError):  # another process was faster, or it is not ours
            if index.stat().st_mtime < newest_s:
                index.unlink()


def _wanted() -> str:
    return os.environ.get(_SWITCH, "1")


def _has_features(names: Sequence[str]) -> bool:
    import llvmlite.binding

    features = llvmlite.binding.get_host_cpu_features()
    return all(features.get(name, False) for name in names)


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
