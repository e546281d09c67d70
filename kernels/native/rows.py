"""What happens to rows between products: norms, the gated activation, RoPE and the write of keys.

Rows are bfloat16, computed in float32. Each function here has its twin in `norm`, `activation`,
`rope` and `kv_cache`.
"""

import ctypes

import numpy as np
from numba import carray, cfunc, types
from torch import Tensor

from umbel.kernels.native.program import empty, run_kernel
from umbel.kernels.native.row_code import (
    add_vectors,
    gate_vectors,
    scale_vectors,
    sum_squares,
)  # fmt: skip
from umbel.kernels.native.simd import (
    fetch_add,
    float32_pointer,
    load_int64,
    to_bfloat,
    to_float,
    uint16_pointer,
)  # fmt: skip
from umbel.kernels.native.threads import keeps_code

_Args = ctypes.c_int64 * 13
_PIECE = 512  # elements of a row that a thread takes at a time


@cfunc(types.void(types.int64), cache=keeps_code())
def _norm(args):
    num_rows, width = load_int64(args, 1), load_int64(args, 2)
    weight, num_vectors = load_int64(args, 3), width // 16
    eps = carray(float32_pointer(args + 8 * 4), 1)[0]
    x_at, x_stride, y_at = load_int64(args, 5), load_int64(args, 6), load_int64(args, 7)
    added_at, added_stride = load_int64(args, 8), load_int64(args, 9)
    while True:
        row = fetch_add(args, 1)
        if row >= num_rows:
            break
        x = x_at + row * x_stride
        if added_at != 0:
            add_vectors(x, added_at + row * added_stride, num_vectors)
        mean = sum_squares(x, num_vectors) / np.float32(width)
        factor = np.float32(1) / np.sqrt(mean + eps)
        scale_vectors(x, factor, weight, y_at + 2 * row * width, num_vectors)


@cfunc(types.void(types.int64), cache=keeps_code())
def _gated_silu(args):
    num_rows, width = load_int64(args, 1), load_int64(args, 2)
    x_at, y_at = load_int64(args, 3), load_int64(args, 4)
    num_pieces = (width + _PIECE - 1) // _PIECE
    while True:
        task = fetch_add(args, 1)
        if task >= num_rows * num_pieces:
            break
        row, first = task // num_pieces, task % num_pieces * _PIECE
        gate, num_vectors = x_at + 4 * row * width + 2 * first, min(_PIECE, width - first) // 16
        gate_vectors(gate, gate + 2 * width, y_at + 2 * (row * width + first), num_vectors)


@cfunc(types.void(types.int64), cache=keeps_code())
def _rotate(args):
    num_rows, num_heads, head_dim = (
        load_int64(args, 1), load_int64(args, 2), load_int64(args, 3),
    )  # fmt: skip
    x_at, stride = load_int64(args, 4), load_int64(args, 5)
    cos_at, sin_at = load_int64(args, 6), load_int64(args, 7)
    half = head_dim // 2
    while True:
        row = fetch_add(args, 1)
        if row >= num_rows:
            break
        cos = carray(float32_pointer(cos_at + 4 * row * head_dim), half)
        sin = carray(float32_pointer(sin_at + 4 * row * head_dim + 4 * half), half)
        for head in range(num_heads):
            at = x_at + row * stride + 2 * head * head_dim
            low = carray(uint16_pointer(at), half)
            high = carray(uint16_pointer(at + 2 * half), half)
            for i in range(half):
                a, b = to_float(low[i]), to_float(high[i])
                low[i] = to_bfloat(a * cos[i] - b * sin[i])
                high[i] = to_bfloat(b * cos[i] + a * sin[i])


@cfunc(types.void(types.int64), cache=keeps_code())
def _write(args):
    num_written, num_heads, head_dim = (
        load_int64(args, 1), load_int64(args, 2), load_int64(args, 3),
    )  # fmt: skip
    k_at, v_at, k_stride, v_stride = (
        load_int64(args, 4), load_int64(args, 5), load_int64(args, 6), load_int64(args, 7),
    )  # fmt: skip
    k_pool, v_pool, num_slots = load_int64(args, 8), load_int64(args, 9), load_int64(args, 10)
    slots_at, rows_at = load_int64(args, 11), load_int64(args, 12)
    while True:
        task = fetch_add(args, 1)
        if task >= num_written:
            break
        slot = load_int64(slots_at, task)
        row = load_int64(rows_at, task) if rows_at != 0 else task
        for head in range(num_heads):
            place = 2 * head_dim * (head * num_slots + slot)
            k = carray(uint16_pointer(k_at + row * k_stride + 2 * head * head_dim), head_dim)
            v = carray(uint16_pointer(v_at + row * v_stride + 2 * head * head_dim), head_dim)
            to_k = carray(uint16_pointer(k_pool + place), head_dim)
            to_v = carray(uint16_pointer(v_pool + place), head_dim)
            for i in range(head_dim):
                to_k[i] = k[i]
                to_v[i] = v[i]


_NORM: int = _norm.address
_GATED_SILU: int = _gated_silu.address
_ROTATE: int = _rotate.address
WRITE: int = _write.address


def norm_rows(x: Tensor, weight: Tensor, eps_bits: int, added: Tensor | None) -> Tensor:
    """x [T, E] bfloat16, E a multiple of 16 -> its RMS norm times weight [E] float32.

    With `added` [T, E], x becomes x + added first, in place. eps_bits: the bits of a float32.
    """
    num_rows, width = x.shape
    y = empty((num_rows, width), x.dtype)
    args = _Args(
        0, num_rows, width, weight.data_ptr(), eps_bits, x.data_ptr(), 2 * x.stride(0),
        y.data_ptr(),
    )  # fmt: skip
    if added is not None:
        args[8], args[9] = added.data_ptr(), 2 * added.stride(0)
    run_kernel(_NORM, args, 1)
    return y


def gated_silu_rows(gate_up: Tensor) -> Tensor:
    """gate_up: [T, 2F] bfloat16, contiguous, F a multiple of 16 -> silu(gate) * up, [T, F]."""
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    y = empty((num_rows, width), gate_up.dtype)
    run_kernel(_GATED_SILU, _Args(0, num_rows, width, gate_up.data_ptr(), y.data_ptr()), 1)
    return y


def rotate_rows(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate x [T, H, D] bfloat16 in place. cos, sin: [T, 1, D] float32, as in `Rotation`."""
    num_rows, num_heads, head_dim = x.shape
    args = _Args(
        0, num_rows, num_heads, head_dim, x.data_ptr(), 2 * x.stride(0), cos.data_ptr(),
        sin.data_ptr(),
    )  # fmt: skip
    run_kernel(_ROTATE, args, 1)


def write_rows(
    k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, rows: Tensor | None, slots: Tensor
) -> None:
    """Copy rows of k, v [T, Hkv, D] into slots of pools [Hkv, slots, D]; see `KVCache.write`."""
    args = _Args(*write_args(k, v, k_pool, v_pool))
    args[1], args[11] = len(slots), slots.data_ptr()
    args[12] = 0 if rows is None else rows.data_ptr()
    run_kernel(WRITE, args)


def write_args(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor) -> list[int]:
    """Of `WRITE`, without what is written: 1 how many rows, 11 their slots, 12 which rows."""
    num_heads, num_slots, head_dim = k_pool.shape
    return [
        0, 0, num_heads, head_dim, k.data_ptr(), v.data_ptr(), 2 * k.stride(0), 2 * v.stride(0),
        k_pool.data_ptr(), v_pool.data_ptr(), num_slots,
    ]  # fmt: skip
