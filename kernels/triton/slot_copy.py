"""Moves slots of a pool: copy-on-write inside of it, and to and from the buffers of other tiers."""

import torch
from torch import Tensor

from umbel.kernels.triton.backend import Backend, check_tensor, choose_backend

_BLOCK = 1024  # words of 4 bytes, so that a program of 4 warps moves 32 bytes a thread


def gather_slots(pool: Tensor, slots: Tensor, *, backend: Backend | None = None) -> Tensor:
    """pool: [outer, slots, ...] contiguous; slots: [n] int32 -> [outer, n, ...], contiguous."""
    _check(pool, slots)
    out = pool.new_empty(pool.shape[0], len(slots), *pool.shape[2:])
    if choose_backend(pool, backend) == "torch":
        out.view(torch.uint8).copy_(pool.view(torch.uint8).index_select(1, slots.long()))
    else:
        _copy(pool, out, slots, is_scatter=False)
    return out


def scatter_slots(
    values: Tensor, pool: Tensor, slots: Tensor, *, backend: Backend | None = None
) -> None:
    """Store values [outer, n, ...] in slots [n] int32, distinct, of pool [outer, slots, ...]."""
    _check(pool, slots)
    shape = (pool.shape[0], len(slots), *pool.shape[2:])
    check_tensor("values", values, shape=shape, dtypes=(pool.dtype,), device=pool.device)
    if not values.is_contiguous():
        raise ValueError(f"values has strides {values.stride()}; expected it contiguous")
    if choose_backend(pool, backend) == "torch":
        pool.view(torch.uint8).index_copy_(1, slots.long(), values.view(torch.uint8))
    else:
        _copy(values, pool, slots, is_scatter=True)


def copy_slots(
    pool: Tensor, source: Tensor, target: Tensor, *, backend: Backend | None = None
) -> None:
    """Copy slots source [n] to target [n], int32, distinct targets: all are read before any is
    written, so a slot may be in both."""
    scatter_slots(gather_slots(pool, source, backend=backend), pool, target, backend=backend)


def _check(pool: Tensor, slots: Tensor) -> None:
    check_tensor("slots", slots, shape=(None,), dtypes=(torch.int32,), device=pool.device)
    row_bytes = pool.element_size() * pool[:1, :1].numel()
    if pool.ndim < 3 or not pool.is_contiguous() or row_bytes % 4:
        raise ValueError(
            f"pool has shape {list(pool.shape)}, strides {pool.stride()} and {row_bytes} bytes a "
            f"slot; expected [outer, slots, ...], contiguous, with a multiple of 4 bytes"
        )


def _copy(source: Tensor, target: Tensor, slots: Tensor, *, is_scatter: bool) -> None:
    from umbel.kernels.triton.elementwise_jit import copy_rows_kernel

    if len(slots) == 0:
        return
    words = source.element_size() * source[:1, :1].numel() // 4
    block = min(_BLOCK, 1 << (words - 1).bit_length())
    sides = [
        side.view(side.shape[0], side.shape[1], -1).view(torch.int32) for side in (source, target)
    ]
    copy_rows_kernel[(len(slots), source.shape[0], -(-words // block))](
        *sides,
        slots,
        sides[0].stride(0),
        sides[1].stride(0),
        WORDS=words,
        BLOCK=block,
        IS_SCATTER=is_scatter,
        num_warps=4 if block == _BLOCK else 1,
    )
