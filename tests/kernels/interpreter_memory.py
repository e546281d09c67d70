"""Lets Triton's interpreter find accesses out of bounds, and races within a launch. For tests only.

Every active lane of a load, store or atomic must lie inside one of the launch's tensors. Bytes that
one program stores may be touched by no other program of the launch. The interpreter itself runs
programs one after another and reads past ends, so it shows neither.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import triton.runtime.interpreter as interpreter
from numpy.typing import NDArray

Builder = interpreter.InterpreterBuilder
_NOBODY, _SEVERAL = -1, -2
_MAX_TRACKED = 64 << 20  # bytes of a tensor whose accesses are remembered


class MemoryFault(AssertionError):
    """A kernel touched what it must not."""


@dataclass(slots=True)
class _Region:
    """One tensor's storage, with who stored and who loaded each byte last."""

    begin: int
    end: int
    writers: NDArray[np.int32] | None
    readers: NDArray[np.int32] | None


class _Launch:
    """The regions of the running launch."""

    regions: list[_Region] | None = None


def _tensors(argument: Any) -> list[Any]:
    if isinstance(argument, tuple | list):
        return [tensor for element in argument for tensor in _tensors(element)]
    if hasattr(argument, "untyped_storage"):
        return [argument]
    return _tensors(argument.base) if hasattr(argument, "block_shape") else []


def _regions(arguments: list[Any]) -> list[_Region]:
    sizes = {}
    for tensor in _tensors(arguments):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    regions = []
    for begin, size in sorted(sizes.items()):
        if size <= _MAX_TRACKED:
            logs = [np.full(size, _NOBODY, np.int32) for _ in range(2)]
            regions.append(_Region(begin, begin + size, *logs))
        else:
            regions.append(_Region(begin, begin + size, None, None))
    return regions


def _check(builder: Any, pointers: Any, mask: Any, *, is_store: bool) -> None:
    if _Launch.regions is None:
        return
    active = np.broadcast_to(np.asarray(mask, dtype=bool), pointers.data.shape)
    addresses = np.unique(pointers.data[active].astype(np.int64))
    size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    x, y, z = builder.grid_idx
    program = (x * builder.grid_dim[1] + y) * builder.grid_dim[2] + z
    for region in _Launch.regions:
        is_in = (addresses >= region.begin) & (addresses + size <= region.end)
        if is_in.any() and region.writers is not None:
            offsets = (addresses[is_in] - region.begin)[:, None] + np.arange(size)
            _log(region, offsets.reshape(-1), program, is_store=is_store)
        addresses = addresses[~is_in]
    if len(addresses):
        kind = "store" if is_store else "load"
        raise MemoryFault(
            f"{kind} out of bounds by program {builder.grid_idx}: {len(addresses)} lanes, the "
            f"first at {addresses[0]}; the tensors lie at "
            f"{[(region.begin, region.end) for region in _Launch.regions]}"
        )


def _log(region: _Region, offsets: NDArray[np.int64], program: int, *, is_store: bool) -> None:
    assert region.writers is not None
    assert region.readers is not None
    writers, readers = region.writers[offsets], region.readers[offsets]
    raced = (writers != _NOBODY) & (writers != program)
    if is_store:
        raced |= (readers != _NOBODY) & (readers != program)
    if raced.any():
        kind = "stores" if is_store else "loads"
        raise MemoryFault(f"race: program {program} {kind} bytes that another program touches")
    if is_store:
        region.writers[offsets] = program
    else:
        is_own = (readers == _NOBODY) | (readers == program)
        region.readers[offsets] = np.where(is_own, program, _SEVERAL)


def install() -> None:
    """Check every access of every launch from now on; once."""
    prepare, call = interpreter.GridExecutor._init_args_hst, interpreter.GridExecutor.__call__

    def prepare_checked(self: Any, args: Any, kwargs: Any) -> Any:
        on_host = prepare(self, args, kwargs)
        _Launch.regions = _regions([*on_host[0], *on_host[1].values()])
        return on_host

    def call_checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        finally:
            _Launch.regions = None

    interpreter.GridExecutor._init_args_hst = prepare_checked
    interpreter.GridExecutor.__call__ = call_checked
    Builder.create_masked_load = _checked(Builder.create_masked_load, mask_at=1, is_store=False)
    Builder.create_masked_store = _checked(Builder.create_masked_store, mask_at=2, is_store=True)
    Builder.create_atomic_rmw = _refused(Builder.create_atomic_rmw)
    Builder.create_atomic_cas = _refused(Builder.create_atomic_cas)


def _checked(operation: Callable[..., Any], *, mask_at: int, is_store: bool) -> Callable[..., Any]:
    def checked(self: Any, pointers: Any, *rest: Any, **options: Any) -> Any:
        _check(self, pointers, rest[mask_at - 1].data, is_store=is_store)
        return operation(self, pointers, *rest, **options)

    return checked


def _refused(operation: Callable[..., Any]) -> Callable[..., Any]:
    def refused(self: Any, *args: Any, **options: Any) -> Any:
        raise MemoryFault("an atomic: the kernels have none, so that results do not vary")

    return refused
