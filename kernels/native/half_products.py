"""Products of bfloat16 rows with weights of 4, 8 or 16 bits, multiplied in half precision.

For processors with AVX-512 FP16, which multiply halves four times as fast as bfloat16. Weights are
dequantized to halves (11 bits, where bfloat16 has 8), a block of inputs at a time, and multiplied
with all rows while they are in the cache. Rows are scaled by a power of two, so that nothing
overflows: exact but for elements 2**-14 times smaller than the largest of their row. A row's result
is the same bits whatever other rows are multiplied with it.
"""

import numpy as np
from numba import carray, cfunc, njit, types

from umbel.kernels.native.half_code import (
    PANELS,
    half_tile_1,
    half_tile_2,
    half_tile_4,
    half_tile_8,
    halve_row,
    store_sums,
    unpack_4bit,
    unpack_8bit,
    unpack_16bit,
)  # fmt: skip
from umbel.kernels.native.simd import (
    fetch_add,
    float32_pointer,
    highest_bits,
    load_int64,
    scale_of,
)  # fmt: skip
from umbel.kernels.native.threads import keeps_code

_LANES, _GROUP, _PAIRS = 16, 32, 16
# Groups whose products are summed in half precision: 96 terms, whose rounding errors together are
# no larger than those that the rows have from being bfloat16. Also what fits the first cache.
_BLOCK_GROUPS = 6
_PAIR_BYTES = 64 * PANELS
_SUM_BYTES = 4 * 2 * _LANES * PANELS  # of a row


@njit
def _multiply_block(num_rows, weights, x, stride, num_pairs, sums, is_first):
    row = 0
    while row < num_rows:
        at, sums_at = x + row * stride, sums + row * _SUM_BYTES
        left = num_rows - row
        if left >= 8:
            half_tile_8(weights, at, stride, num_pairs, sums_at, is_first)
            row += 8
        elif left >= 4:
            half_tile_4(weights, at, stride, num_pairs, sums_at, is_first)
            row += 4
        elif left >= 2:
            half_tile_2(weights, at, stride, num_pairs, sums_at, is_first)
            row += 2
        else:
            half_tile_1(weights, at, stride, num_pairs, sums_at, is_first)
            row += 1


@njit
def _unpack(bits, panels, scales, group, count, out):
    """`count` groups of a panel, of which `group` is the first."""
    if bits == 4:
        unpack_4bit(panels + 256 * group, scales + 64 * group, count, out)
    elif bits == 8:
        unpack_8bit(panels + 512 * group, scales + 32 * group, count, out)
    else:
        unpack_16bit(panels + 1024 * group, scales, count, out)


@cfunc(types.void(types.int64), cache=keeps_code())
def _multiply(args):
    panels, scales, x, stride, num_rows = (
        load_int64(args, 1), load_int64(args, 2), load_int64(args, 3), load_int64(args, 4),
        load_int64(args, 5),
    )  # fmt: skip
    num_groups, num_panels, bias = load_int64(args, 6), load_int64(args, 7), load_int64(args, 8)
    y, y_stride, is_float = load_int64(args, 9), load_int64(args, 10), load_int64(args, 11)
    bits, factor = load_int64(args, 12), carray(float32_pointer(args + 8 * 13), 1)[0]
    width, panel_bytes = num_groups * _GROUP, 64 if is_float else 32
    half_stride = 2 * width
    memory = np.empty(
        num_rows * half_stride + _BLOCK_GROUPS * _PAIRS * _PAIR_BYTES + num_rows * _SUM_BYTES + 64,
        np.uint8,
    )
    weights = (memory.ctypes.data + 63) // 64 * 64
    sums = weights + _BLOCK_GROUPS * _PAIRS * _PAIR_BYTES
    halves = sums + num_rows * _SUM_BYTES
    factors = np.empty(num_rows, np.float32)
    is_prepared = False
    while True:
        first_panel = fetch_add(args, PANELS)
        if first_panel >= num_panels:
            break
        if not is_prepared:
            for row in range(num_rows):
                at = x + row * stride
                up, factors[row] = scale_of(highest_bits(at, width // 16))
                halve_row(at, width // 16, up, halves + row * half_stride)
                factors[row] *= factor
            is_prepared = True
        num_now = min(PANELS, num_panels - first_panel)
        for first_group in range(0, num_groups, _BLOCK_GROUPS):
            count = min(_BLOCK_GROUPS, num_groups - first_group)
            for i in range(num_now):
                group = (first_panel + i) * num_groups + first_group
                _unpack(bits, panels, scales, group, count, weights + 64 * i)
            _multiply_block(
                num_rows, weights, halves + 2 * _GROUP * first_group, half_stride, count * _PAIRS,
                sums, first_group == 0,
            )  # fmt: skip
        for row in range(num_rows):
            for i in range(num_now):
                panel = first_panel + i
                store_sums(
                    sums + row * _SUM_BYTES + 128 * i, factors[row], bias + 64 * panel,
                    y + row * y_stride + panel * panel_bytes, is_float,
                )  # fmt: skip
    memory[0] = 0  # a use: numba frees an array after the last one, whoever has its address


MULTIPLY: int = _multiply.address
