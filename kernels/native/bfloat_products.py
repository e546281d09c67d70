"""Products of bfloat16 rows with weights of 4 or 8 bits, multiplied as they are in the file.

The codes are multiplied in bfloat16 with float32 sums, and scaled afterwards, so the weights are
not rounded again. For few rows, on processors with AVX-512 BF16.
"""

import numpy as np
from numba import cfunc, types

from umbel.kernels.native.bfloat_code import q4_tiles, q8_tiles, sum_groups
from umbel.kernels.native.simd import fetch_add, load_int64
from umbel.kernels.native.threads import keeps_code

_PANELS_AT_ONCE = 4  # what a thread takes at a time


@cfunc(types.void(types.int64), cache=keeps_code())
def _multiply(args):
    panels, scales, x, stride, num_rows = (
        load_int64(args, 1), load_int64(args, 2), load_int64(args, 3), load_int64(args, 4),
        load_int64(args, 5),
    )  # fmt: skip
    num_groups, num_panels, bias = load_int64(args, 6), load_int64(args, 7), load_int64(args, 8)
    y, y_stride, is_float = load_int64(args, 9), load_int64(args, 10), load_int64(args, 11)
    is_4bit, panel_bytes = load_int64(args, 12) == 4, 64 if is_float else 32
    code_bytes, step_bytes = (256, 64) if is_4bit else (512, 32)  # of a group of a panel
    sums = np.empty(num_rows * num_groups if is_4bit else 0, np.float32)
    for row in range(num_rows if is_4bit else 0):
        sum_groups(x + row * stride, num_groups, sums.ctypes.data + 4 * row * num_groups)
    while True:
        start = fetch_add(args, _PANELS_AT_ONCE)
        if start >= num_panels:
            break
        for panel in range(start, min(start + _PANELS_AT_ONCE, num_panels)):
            codes = panels + panel * num_groups * code_bytes
            steps = scales + panel * num_groups * step_bytes
            first, row = bias + 64 * panel, 0
            while row < num_rows:
                at, place = x + row * stride, y + row * y_stride + panel * panel_bytes
                count = 8
                while count > num_rows - row:
                    count //= 2
                if is_4bit:
                    sums_at = sums.ctypes.data + 4 * row * num_groups
                    q4_tiles(
                        count, codes, 0, steps, 0, at, stride, sums_at, num_groups, first, place,
                        y_stride, is_float,
                    )  # fmt: skip
                else:
                    q8_tiles(
                        count, codes, 0, steps, 0, at, stride, 0, num_groups, first, place,
                        y_stride, is_float,
                    )  # fmt: skip
                row += count


MULTIPLY: int = _multiply.address
