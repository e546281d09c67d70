"""Products of bfloat16 rows with bfloat16 weights, multiplied in float32.

For processors without instructions for bfloat16; AVX2 is enough. A row's result is the same bits
whatever other rows are multiplied with it.
"""

import numpy as np
from numba import cfunc, types

from umbel.kernels.native.float_code import bf16_tiles, float_row
from umbel.kernels.native.simd import fetch_add, load_int64
from umbel.kernels.native.threads import keeps_code

_GROUP = 32
# What a thread takes at a time. A tile of rows meets the panels one after the other, with the rows
# in the first cache; the panels stay in the second for all tiles.
_PANELS_AT_ONCE = 4
_ROWS_AT_ONCE = 48


@cfunc(types.void(types.int64), cache=keeps_code())
def _multiply(args):
    panels, x, stride = load_int64(args, 1), load_int64(args, 3), load_int64(args, 4)
    num_rows = load_int64(args, 5)
    num_groups, num_panels, bias = load_int64(args, 6), load_int64(args, 7), load_int64(args, 8)
    y, y_stride, is_float = load_int64(args, 9), load_int64(args, 10), load_int64(args, 11)
    place_bytes = 64 if is_float else 32
    panel_bytes, row_bytes = num_groups * 1024, num_groups * 4 * _GROUP
    num_converted = min(num_rows, _ROWS_AT_ONCE)
    memory = np.empty(num_converted * row_bytes, np.uint8)
    floats = memory.ctypes.data
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
                float_row(x + (first_row + row) * stride, num_groups, floats + row * row_bytes)
        row = 0
        while row < num_converted:
            count = 6
            while count > num_converted - row:
                count = count - 2 if count > 2 else 1
            panel = first_panel
            while panel < stop_panel:
                is_pair = count <= 2 and panel + 1 < stop_panel
                bf16_tiles(
                    count, is_pair, panels + panel * panel_bytes, panel_bytes,
                    floats + row * row_bytes, row_bytes, num_groups, bias + 64 * panel,
                    y + (first_row + row) * y_stride + panel * place_bytes, y_stride, is_float,
                )  # fmt: skip
                panel += 2 if is_pair else 1
            row += count
    # A use: numba frees an array after the last one, whoever has its address.
    if len(memory) > 0:
        memory[0] = 0


MULTIPLY: int = _multiply.address
