"""Queries and keys of an attention task, whatever they are computed in. Fields: see `TaskLists`."""

import numpy as np
from numba import carray, njit

from umbel.kernels.native.simd import uint16_pointer

BLOCK = 128  # keys at a time: 16 KiB of keys and as much of values for heads of 64
TASK_FIELDS, ROW_FIELDS = 5, 4
MAX_TILE = 8  # queries of a tile, in any arithmetic


@njit
def hide(scores, base, count, width, low, high):
    """-inf for the keys of a block that a row does not see. Returns whether it sees any.

    scores: [width] float32, of the keys from `base` on, of which `count` are keys.
    """
    first, last = max(0, low - base), min(count, high - base)
    for i in range(0, min(first, width)):
        scores[i] = -np.inf
    for i in range(max(last, 0), width):
        scores[i] = -np.inf
    return first < last


@njit
def fill_offsets(ranges, place, count, slot_bytes, offsets):
    """Byte offsets of the next `count` keys; `place` is the range and the key in it to go on at."""
    filled = 0
    while filled < count:
        slot, length = ranges[2 * place[0]], ranges[2 * place[0] + 1]
        taken = min(count - filled, length - place[1])
        for i in range(taken):
            offsets[filled + i] = (slot + place[1] + i) * slot_bytes
        filled += taken
        place[1] += taken
        if place[1] == length:
            place[0] += 1
            place[1] = 0
    for i in range(count, (count + 15) // 16 * 16):
        offsets[i] = offsets[count - 1]  # a finite value, hidden behind a score of -inf


@njit
def copy_queries(rows, num_rows, group, head_bytes, q, q_stride, out):
    """The queries of a task, one behind the other. q: of the first head of the group."""
    for i in range(num_rows):
        start = q + rows[ROW_FIELDS * i] * q_stride
        source = carray(uint16_pointer(start), group * head_bytes // 2)
        copy = carray(uint16_pointer(out + i * group * head_bytes), group * head_bytes // 2)
        for d in range(group * head_bytes // 2):
            copy[d] = source[d]


@njit
def span(ranges, first_range, stop_range, rows, num_rows):
    """The keys of a task that any of its rows sees: first, past the last; and the number of all."""
    num_keys, lowest, seen = 0, rows[1], rows[2]
    for i in range(first_range, stop_range):
        num_keys += ranges[2 * i + 1]
    for i in range(1, num_rows):
        lowest = min(lowest, rows[ROW_FIELDS * i + 1])
        seen = max(seen, rows[ROW_FIELDS * i + 2])
    return lowest, min(num_keys, seen), num_keys


@njit
def most_queries_of(tasks, num_tasks, group):
    """Of a task; whole tiles of them."""
    most_rows = 0
    for i in range(num_tasks):
        most_rows = max(most_rows, tasks[TASK_FIELDS * i + 4])
    return (most_rows * group + MAX_TILE - 1) // MAX_TILE * MAX_TILE
