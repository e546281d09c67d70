"""Products of rows that are rounded to 8 bits with weights of 4 or 8 bits, as integers.

Several times as fast as in float32 with many rows; AVX2 is enough. Each group of 32 inputs of a row
is rounded with a scale of its own; weights are multiplied as they are in the file. A row's result
is the same bits whatever other rows are multiplied with it.
"""

import numpy as np
from numba import cfunc, types

from umbel.kernels.native.int8_code import q4_tiles, q8_tiles, round_row
from umbel.kernels.native.simd import fetch_add, load_int64
from umbel.kernels.native.threads import keeps_code

_GROUP = 32
_PANELS_AT_ONCE = 4  # see `float_products`
_ROWS_AT_ONCE = 96


@cfunc(types.void(types.int64), cache=keeps_code())
def _multiply(args):
    panels, scales, x, stride, num_rows = (
        load_int64(args, 1), load_int64(args, 2), load_int64(args, 3), load_int64(args, 4),
        load_int64(args, 5),
    )  # fmt: skip
    num_groups, num_panels, bias = load_int64(args, 6), load_int64(args, 7), load_int64(args, 8)
    y, y_stride, is_float = load_int64(args, 9), load_int64(args, 10), load_int64(args, 11)
    is_4bit, place_bytes = load_int64(args, 12) == 4, 64 if is_float else 32
    panel_bytes, step_bytes = (
        num_groups * (256 if is_4bit else 512),
        num_groups * (64 if is_4bit else 32),
    )
    row_bytes, sum_bytes = num_groups * _GROUP * (1 if is_4bit else 2), 12 * num_groups
    num_converted = min(num_rows, _ROWS_AT_ONCE)
    memory = np.empty(num_converted * (row_bytes + sum_bytes), np.uint8)
    rows, sums = memory.ctypes.data, memory.ctypes.data + num_converted * row_bytes
    num_parts = (num_panels + _PANELS_AT_ONCE - 1) // _PANELS_AT_ONCE
    first_row = -1
    while True:
        task = fetch_add(args, 1)
        if task >= num_parts * ((num_rows + _ROWS_AT_ONCE - 1) // _ROWS_AT_ONCE):
            break
        first_panel = task % num_parts * _PANELS_AT_ONCE
        stop_panel = min(first_panel + _PANELS_AT_ONCE, num_panels)
        if first_row != task // num_parts * _ROWS_AT_ONCE:
            first_row = task // num_parts * _ROWS_AT_ONCE
            num_converted = min(num_rows - first_row, _ROWS_AT_ONCE)
            for row in range(num_converted):
                round_row(
                    x + (first_row + row) * stride, num_groups, is_4bit, rows + row * row_bytes,
                    sums + row * sum_bytes,
                )  # fmt: skip
        row = 0
        while row < num_converted:
            count = 4 if is_4bit else 2
            while count > num_converted - row:
                count //= 2
            for panel in range(first_panel, stop_panel):
                at, step_at = panels + panel * panel_bytes, scales + panel * step_bytes
                x_at, sums_at = rows + row * row_bytes, sums + row * sum_bytes
                place = y + (first_row + row) * y_stride + panel * place_bytes
                if is_4bit:
                    q4_tiles(
                        count, at, panel_bytes, step_at, step_bytes, x_at, row_bytes, sums_at,
                        num_groups, bias + 64 * panel, place, y_stride, is_float,
                    )  # fmt: skip
                else:
                    q8_tiles(
                        count, at, panel_bytes, step_at, step_bytes, x_at, row_bytes, sums_at,
                        num_groups, bias + 64 * panel, place, y_stride, is_float,
                    )  # fmt: skip
            row += count
    # A use: numba frees an array after the last one, whoever has its address.
    if len(memory) > 0:
        memory[0] = 0


MULTIPLY: int = _multiply.address
