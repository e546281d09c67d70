"""Products of rows that are rounded to integers with weights of 4 or 8 bits.

Each group of 32 inputs of a row has a scale of its own. To 16 bits, which bfloat16 hardly notices:
AVX2 multiplies twice as many of them at a time as of float32. To 8 bits, which errs: twice as many
again. Weights are multiplied as they are in the file. A row's result is the same bits whatever
other rows are multiplied with it.
"""

import numpy as np
from numba import cfunc, njit, types

from umbel.kernels.native import int8_code, int16_code
from umbel.kernels.native.integer_code import WIDE_ROWS, q8_tiles
from umbel.kernels.native.simd import fetch_add, load_int64
from umbel.kernels.native.threads import keeps_code

_GROUP = 32
# What a thread takes at a time. A tile of few rows meets the panels one after the other, with the
# rows in the first cache; of many rows each panel, widened, meets all tiles. More panels leave
# threads with unequal shares, fewer have them change from the code of one tile to the next's.
_ROWS_AT_ONCE = 96

_round_8, _round_16 = int8_code.round_row, int16_code.round_row
_q4_8, _q4_16 = int8_code.q4_tiles, int16_code.q4_tiles
_widen_8, _widen_16 = int8_code.widen, int16_code.widen
_wide_8, _wide_16 = int8_code.wide_tile, int16_code.wide_tile
_MIN_WIDE_ROWS = 2 * WIDE_ROWS  # for which 4-bit codes are widened first


@njit
def _tile(
    row_bits, is_4bit, count, panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias,
    y, y_stride, is_float,
):  # fmt: skip
    if row_bits == 16 and is_4bit:
        _q4_16(
            count, panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y,
            y_stride, is_float,
        )  # fmt: skip
    elif is_4bit:
        _q4_8(
            count, panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y,
            y_stride, is_float,
        )  # fmt: skip
    else:
        q8_tiles(
            count, panels, panel_bytes, steps, step_bytes, x, stride, sums, groups, bias, y,
            y_stride, is_float,
        )  # fmt: skip


@njit
def _wide_tiles(
    row_bits, num_rows, panel, ahead_bytes, wide, steps, x, stride, sums, groups, bias, y, y_stride,
    is_float,
):  # fmt: skip
    """Of whole tiles of rows with one panel, whose codes are widened once for all of them."""
    if row_bits == 16:
        _widen_16(panel, groups, ahead_bytes, wide)
    else:
        _widen_8(panel, groups, ahead_bytes, wide)
    for row in range(0, num_rows, WIDE_ROWS):
        x_at, sums_at, place = x + row * stride, sums + 12 * row * groups, y + row * y_stride
        if row_bits == 16:
            _wide_16(
                wide, 0, steps, 0, x_at, stride, sums_at, groups, bias, place, y_stride, is_float
            )
        else:
            _wide_8(
                wide, 0, steps, 0, x_at, stride, sums_at, groups, bias, place, y_stride, is_float
            )


@njit
def _round_row(row_bits, x, num_groups, is_4bit, out, steps):
    if row_bits == 16:
        _round_16(x, num_groups, is_4bit, out, steps)
    else:
        _round_8(x, num_groups, is_4bit, out, steps)


@cfunc(types.void(types.int64), cache=keeps_code())
def _multiply(args):
    panels, scales, x, stride, num_rows = (
        load_int64(args, 1), load_int64(args, 2), load_int64(args, 3), load_int64(args, 4),
        load_int64(args, 5),
    )  # fmt: skip
    num_groups, num_panels, bias = load_int64(args, 6), load_int64(args, 7), load_int64(args, 8)
    y, y_stride, is_float = load_int64(args, 9), load_int64(args, 10), load_int64(args, 11)
    is_4bit, row_bits = load_int64(args, 12) == 4, load_int64(args, 14)
    place_bytes = 64 if is_float else 32
    panel_bytes, step_bytes = (
        num_groups * (256 if is_4bit else 512),
        num_groups * (64 if is_4bit else 32),
    )
    row_bytes = num_groups * _GROUP * (1 if is_4bit and row_bits == 8 else 2)
    sum_bytes = 12 * num_groups
    num_converted = min(num_rows, _ROWS_AT_ONCE)
    wide_bytes = 16 * row_bytes if is_4bit and num_rows >= _MIN_WIDE_ROWS else 0
    memory = np.empty(wide_bytes + num_converted * (row_bytes + sum_bytes) + 64, np.uint8)
    wide = (memory.ctypes.data + 63) // 64 * 64
    rows = wide + wide_bytes
    sums = rows + num_converted * row_bytes
    panels_at_once = 2 if num_rows <= 6 else 3
    num_parts = (num_panels + panels_at_once - 1) // panels_at_once
    num_tasks = num_parts * ((num_rows + _ROWS_AT_ONCE - 1) // _ROWS_AT_ONCE)
    first_row, task = -1, fetch_add(args, 1)
    while task < num_tasks:
        # Known now, so that memory is asked for what this thread will read.
        next_task = fetch_add(args, 1)
        first_panel = task % num_parts * panels_at_once
        stop_panel = min(first_panel + panels_at_once, num_panels)
        if first_row != task // num_parts * _ROWS_AT_ONCE:
            first_row = task // num_parts * _ROWS_AT_ONCE
            num_converted = min(num_rows - first_row, _ROWS_AT_ONCE)
            for row in range(num_converted):
                _round_row(
                    row_bits, x + (first_row + row) * stride, num_groups, is_4bit,
                    rows + row * row_bytes, sums + row * sum_bytes,
                )  # fmt: skip
        # The panel behind the last is the one that comes next.
        to_next = next_task % num_parts * panels_at_once - (stop_panel - 1)
        row = 0
        if is_4bit and num_converted >= _MIN_WIDE_ROWS:
            row = num_converted // WIDE_ROWS * WIDE_ROWS
            for panel in range(first_panel, stop_panel):
                ahead = 1 if panel + 1 < stop_panel else to_next
                _wide_tiles(
                    row_bits, row, panels + panel * panel_bytes, ahead * panel_bytes, wide,
                    scales + panel * step_bytes, rows, row_bytes, sums, num_groups,
                    bias + 64 * panel, y + first_row * y_stride + panel * place_bytes, y_stride,
                    is_float,
                )  # fmt: skip
        while row < num_converted:
            count = 6
            while count > num_converted - row:
                count = count - 2 if count > 2 else 1
            for panel in range(first_panel, stop_panel):
                ahead = 1 if panel + 1 < stop_panel else to_next
                _tile(
                    row_bits, is_4bit, count, panels + panel * panel_bytes, ahead * panel_bytes,
                    scales + panel * step_bytes, ahead * step_bytes, rows + row * row_bytes,
                    row_bytes, sums + row * sum_bytes, num_groups, bias + 64 * panel,
                    y + (first_row + row) * y_stride + panel * place_bytes, y_stride, is_float,
                )  # fmt: skip
            row += count
        task = next_task
    # A use: numba frees an array after the last one, whoever has its address.
    if len(memory) > 0:
        memory[0] = 0


MULTIPLY: int = _multiply.address
