"""A block of keys with the queries of a task in integers of 16 bits, for processors with AVX2 only.

A row's result is the same whoever is beside it: queries are scaled each by its own norm, keys too,
and values by what their block holds.
"""

import numpy as np
from numba import carray, njit

from umbel.kernels.native.attention_code import scale_floats
from umbel.kernels.native.int16_attention_code import (
    FINER,
    MAX_WEIGHT,
    MAX_WEIGHT_SUM,
    TILE_ROWS,
    exp2_float,
    exp2_floats,
    highest_score,
    mix_panel,
    pack_int16_keys,
    pack_int16_values,
    pack_row,
    round_rests,
    round_weights,
    score_panel,
)
from umbel.kernels.native.simd import float32_pointer, highest_bits, scale_of
from umbel.kernels.native.task_rows import BLOCK, ROW_FIELDS, hide

_LOG2_E = np.float32(1.4426950408889634)
_INFINITY_BITS = 0x7F80
# Weights of a row with a block, the highest being 1, that sum up to less are mixed twice: rounded,
# and what rounding left; of a text, a ninth of them. One key may have nearly all of the weight and
# a value of almost nothing, as the first has in many models: then the others are the result.
_PEAKED = np.float32(1.25)
STRIPE_ROWS = 12


@njit
def pack_int16_queries(q, num_queries, head_dim, out, factors):
    """Queries as int16, and what their scores are to be multiplied with: NaN for a query that is
    not finite."""
    for query in range(num_queries):
        at = q + 2 * query * head_dim
        bits = highest_bits(at, head_dim // 16)
        up, down = scale_of(bits)
        factors[query] = pack_row(at, head_dim // 32, up, out + 2 * query * head_dim) * down
        if bits >= _INFINITY_BITS:
            factors[query] = np.nan


@njit
def pack_int16_block(k, v, offsets, count, head_dim, keys, values, key_factors, value_factors):
    """The keys and values at `offsets`, in panels. Returns whether all of them are finite."""
    num_panels, infinite = (count + 15) // 16, 0
    for panel in range(num_panels):
        for half in range(2):
            first = 16 * panel + 8 * half
            infinite |= pack_int16_keys(
                k, offsets + 8 * first, head_dim // 32,
                keys + 32 * head_dim * panel + 32 * half, key_factors + 4 * first,
            )  # fmt: skip
    infinite |= pack_int16_values(
        v, offsets, 8 * num_panels, head_dim // 32, values, 32 * BLOCK, value_factors
    )
    return infinite == 0


@njit
def _soften_row(
    scores, weights, rests, num_panels, factor, scale, query, sums, num_sums, tops, totals
):  # fmt: skip
    """Weights of a row with a block, relative to its highest score there: so they lose nothing to a
    higher score elsewhere. Returns what the sums of weights and values are to be multiplied with,
    and whether the weights' rests are to be added.
    """
    best = highest_score(scores, num_panels)
    top, share = best * factor, np.float32(1)
    if top > tops[query]:
        if totals[query] != 0:
            before = exp2_float((tops[query] - top) * (scale * _LOG2_E))
            totals[query] *= before
            scale_floats(sums, num_sums, before, sums)
        tops[query] = top
    else:
        share = exp2_float((top - tops[query]) * (scale * _LOG2_E))
    total = exp2_floats(scores, num_panels, best, factor * (scale * _LOG2_E))
    up = min(np.float32(MAX_WEIGHT), np.float32(MAX_WEIGHT_SUM) / total)
    down = share / up
    rounded = round_weights(scores, num_panels, up, weights)
    is_peaked = total < _PEAKED
    if is_peaked:
        rounded += round_rests(scores, num_panels, up, rests) / np.float32(FINER)
    # Not `total`: what values have in common has to stay as it is.
    totals[query] += rounded * down
    return down, is_peaked


@njit
def _mix(weights, num_panels, factors, values, value_factors, sums, head_dim):
    """The weights of a stripe's rows, times `factors`, with all dimensions of a block's values."""
    for panel in range(head_dim // 16):
        for tile in range(0, len(factors), TILE_ROWS):
            mix_panel(
                weights + 2 * BLOCK * tile, 2 * BLOCK, values + 32 * BLOCK * panel, 8 * num_panels,
                value_factors + 64 * panel, factors.ctypes.data + 4 * tile,
                sums + 4 * head_dim * tile + 64 * panel, 4 * head_dim,
            )  # fmt: skip


@njit
def add_int16_block(
    rows, group, num_queries, q, q_factors, head_dim, base, count, scale, keys, values, key_factors,
    value_factors, scores, weights, sums, tops, totals,
):  # fmt: skip
    """All queries of a task with a packed block of keys, by stripes: a panel comes into the first
    cache once for all tiles of a stripe. Rows that fill up a tile are computed, and not read.

    scores: [STRIPE_ROWS, BLOCK] float32; weights: [2, STRIPE_ROWS, BLOCK] int16, the rests behind.
    """
    factors, rest_factors = np.empty(STRIPE_ROWS, np.float32), np.empty(STRIPE_ROWS, np.float32)
    rests = weights + 2 * BLOCK * STRIPE_ROWS
    for first in range(0, num_queries, STRIPE_ROWS):
        stop, seen = min(first + STRIPE_ROWS, num_queries), 0
        for query in range(first, stop):
            seen = max(seen, rows[ROW_FIELDS * (query // group) + 2] - base)
        if seen <= 0:
            continue
        num_panels = (min(seen, count) + 15) // 16
        num_tiled = (stop - first + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
        for panel in range(num_panels):
            for tile in range(0, num_tiled, TILE_ROWS):
                score_panel(
                    q + 2 * head_dim * (first + tile), 2 * head_dim, keys + 32 * head_dim * panel,
                    head_dim // 2, key_factors + 64 * panel, scores + 4 * BLOCK * tile + 64 * panel,
                    4 * BLOCK,
                )  # fmt: skip
        factors[:], rest_factors[:], is_any_peaked = 0, 0, False
        for query in range(first, stop):
            row, tiled = ROW_FIELDS * (query // group), query - first
            scores_at, offset = scores + 4 * BLOCK * tiled, 2 * BLOCK * tiled
            view = carray(float32_pointer(scores_at), BLOCK)
            if hide(view, base, count, 16 * num_panels, rows[row + 1], rows[row + 2]):
                factors[tiled], is_peaked = _soften_row(
                    scores_at, weights + offset, rests + offset, num_panels, q_factors[query],
                    scale, query, sums + 4 * query * head_dim, head_dim // 16, tops, totals,
                )  # fmt: skip
                if is_peaked:
                    rest_factors[tiled], is_any_peaked = factors[tiled] / np.float32(FINER), True
        sums_at = sums + 4 * first * head_dim
        _mix(weights, num_panels, factors[:num_tiled], values, value_factors, sums_at, head_dim)
        if is_any_peaked:
            _mix(
                rests, num_panels, rest_factors[:num_tiled], values, value_factors, sums_at,
                head_dim,
            )  # fmt: skip
    factors[0], rest_factors[0] = 0, 0  # a use, see `attention`
