"""Products of bfloat16 rows with weights of 4, 8 or 16 bits, multiplied in float32.

For processors without instructions for bfloat16; AVX2 is enough. Codes are multiplied as they are
in the file, so the weights are not rounded again, with any number of rows: to convert a code costs
two instructions beside the six that multiply it. A row's result is the same bits whatever other
rows are multiplied with it.
"""

import numpy as np
from numba import cfunc, njit, types

from umbel.kernels.native.float_code import bf16_tiles, float_row, q4_tiles, q8_tiles
from umbel.kernels.native.simd import fetch_add, load_int64
from umbel.kernels.native.threads import keeps_code

_GROUP = 32
# What a thread takes at a time: a tile of rows meets them one after the other, with the rows in the
# first cache and the panels in the second.
_PANELS_AT_ONCE = 4


@njit
def _tile(
    bits, count, is_pair, panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y,
    y_stride, is_float,
):  # fmt: skip
    if bits == 4:
        q4_tiles(
            count, is_pair, panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias,
            y, y_stride, is_float,
        )  # fmt: skip
    elif bits == 8:
        q8_tiles(
            count, is_pair, panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias,
            y, y_stride, is_float,
        )  # fmt: skip
    else:
        bf16_tiles(
            count, is_pair, panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias,
            y, y_stride, is_float,
        )  # fmt: skip


@cfunc(types.void(types.int64), cache=keeps_code())
def _multiply(args):
    panels, scales, x, stride, num_rows = (
        load_int64(args, 1), load_int64(args, 2), load_int64(args, 3), load_int64(args, 4),
        load_int64(args, 5),
    )  # fmt: skip
    num_groups, num_panels, bias = load_int64(args, 6), load_int64(args, 7), load_int64(args, 8)
    y, y_stride, is_float = load_int64(args, 9), load_int64(args, 10), load_int64(args, 11)
    bits, place_bytes = load_int64(args, 12), 64 if is_float else 32
    panel_bytes = num_groups * (1024 if bits == 16 else 64 * bits)
    step_bytes = num_groups * (64 if bits == 4 else 32)
    width = num_groups * _GROUP
    floats = np.empty(0, np.float32)
    sums = np.empty(0, np.float32)
    while True:
        first = fetch_add(args, _PANELS_AT_ONCE)
        if first >= num_panels:
            break
        if len(floats) == 0:  # now it is sure that this thread has work
            floats = np.empty(num_rows * width, np.float32)
            sums = np.empty(num_rows * num_groups, np.float32)
            for row in range(num_rows):
                float_row(
                    x + row * stride, num_groups, bits == 4, floats.ctypes.data + 4 * row * width,
                    sums.ctypes.data + 4 * row * num_groups,
                )  # fmt: skip
        row, stop = 0, min(first + _PANELS_AT_ONCE, num_panels)
        while row < num_rows:
            count = 6
            while count > num_rows - row:
                count = count - 2 if count > 2 else 1
            panel = first
            while panel < stop:
                is_pair = count <= 2 and panel + 1 < stop
                _tile(
                    bits, count, is_pair, panels + panel * panel_bytes, panel_bytes,
                    scales + panel * step_bytes, step_bytes,
                    floats.ctypes.data + 4 * row * width, 4 * width,
                    sums.ctypes.data + 4 * row * num_groups, num_groups, bias + 64 * panel,
                    y + row * y_stride + panel * place_bytes, y_stride, is_float,
                )  # fmt: skip
                panel += 2 if is_pair else 1
            row += count
    # A use: numba frees an array after the last one, whoever has its address.
    if len(floats) > 0:
        floats[0] = 0
        sums[0] = 0


MULTIPLY: int = _multiply.address
