"""Attention of all rows of a step over the keys that each may see: one list of tasks, one call.

A task is a tile of query rows of one KV head over one list of slot ranges. It walks the keys in
blocks: packs a block once for all its rows, then scores, softens and mixes (online softmax in
float32, weights rounded to bfloat16). Where the processor multiplies halves, tasks with many
queries do so: to scale and convert a block costs as much as a few queries. Where it does not
even multiply bfloat16, they do so in integers of 16 bits, and in tasks with few queries blocks are
not packed: everything is float32, the weights too. Twin: the torch implementation in
`umbel.kernels.attention`.
"""

import ctypes

import numpy as np
import torch
from numba import carray, cfunc, njit, types
from torch import Tensor

from umbel.kernels.attention_tasks import TaskLists
from umbel.kernels.native.attention_code import (
    highest,
    mix_tile_1,
    mix_tile_2,
    mix_tile_4,
    mix_tile_8,
    pack_keys,
    pack_values,
    scale_floats,
    scale_to_bfloat,
    score_tile_1,
    score_tile_2,
    score_tile_4,
    score_tile_8,
    soften,
)  # fmt: skip
from umbel.kernels.native.float_attention_code import (
    MAX_FLOAT_TILE,
    mix_floats,
    score_floats,
    soften_to_floats,
    widen,
)
from umbel.kernels.native.half_attention_code import (
    half_mix_1,
    half_mix_2,
    half_mix_4,
    half_mix_8,
    half_score_1,
    half_score_2,
    half_score_4,
    half_score_8,
    soften_to_halves,
    to_halves,
)  # fmt: skip
from umbel.kernels.native.int16_attention import (
    STRIPE_ROWS,
    add_int16_block,
    pack_int16_block,
    pack_int16_queries,
)
from umbel.kernels.native.program import run_kernel
from umbel.kernels.native.simd import (
    fetch_add,
    float32_pointer,
    highest_bits,
    int64_pointer,
    load_int64,
    scale_of,
    uint16_pointer,
)  # fmt: skip
from umbel.kernels.native.task_rows import (
    BLOCK,
    MAX_TILE,
    ROW_FIELDS,
    TASK_FIELDS,
    copy_queries,
    fill_offsets,
    hide,
    most_queries_of,
    span,
)
from umbel.kernels.native.threads import has_bfloats, has_halves, keeps_code

_MIN_HALF_QUERIES = 8  # of a task that is computed in half precision
_MIN_INT16_QUERIES = 12  # of one in integers: four rows of a group of three
# Constants of the compiled code, which has nothing for others.
_HAS_HALVES, _IN_FLOATS = has_halves(), not has_bfloats()


@njit
def _score(count, q, q_stride, keys, num_pairs, out, out_stride):
    if count == 8:
        score_tile_8(q, q_stride, keys, num_pairs, out, out_stride)
    elif count == 4:
        score_tile_4(q, q_stride, keys, num_pairs, out, out_stride)
    elif count == 2:
        score_tile_2(q, q_stride, keys, num_pairs, out, out_stride)
    else:
        score_tile_1(q, q_stride, keys, num_pairs, out, out_stride)


@njit
def _mix(count, p, p_stride, values, num_parts, num_pairs, out, out_stride):
    if count == 8:
        mix_tile_8(p, p_stride, values, num_parts, num_pairs, out, out_stride)
    elif count == 4:
        mix_tile_4(p, p_stride, values, num_parts, num_pairs, out, out_stride)
    elif count == 2:
        mix_tile_2(p, p_stride, values, num_parts, num_pairs, out, out_stride)
    else:
        mix_tile_1(p, p_stride, values, num_parts, num_pairs, out, out_stride)


@njit
def _score_halves(count, q, q_stride, keys, num_pairs, factors, out, out_stride):
    if count == 8:
        half_score_8(q, q_stride, keys, num_pairs, factors, out, out_stride)
    elif count == 4:
        half_score_4(q, q_stride, keys, num_pairs, factors, out, out_stride)
    elif count == 2:
        half_score_2(q, q_stride, keys, num_pairs, factors, out, out_stride)
    else:
        half_score_1(q, q_stride, keys, num_pairs, factors, out, out_stride)


@njit
def _mix_halves(count, p, p_stride, values, num_parts, num_pairs, out, out_stride, factor):
    if count == 8:
        half_mix_8(p, p_stride, values, num_parts, num_pairs, out, out_stride, factor)
    elif count == 4:
        half_mix_4(p, p_stride, values, num_parts, num_pairs, out, out_stride, factor)
    elif count == 2:
        half_mix_2(p, p_stride, values, num_parts, num_pairs, out, out_stride, factor)
    else:
        half_mix_1(p, p_stride, values, num_parts, num_pairs, out, out_stride, factor)


@njit
def _halve(at, num_elements):
    """Elements scaled to below 2 and converted in place; the factor back."""
    up, down = scale_of(highest_bits(at, num_elements // 16))
    to_halves(at, num_elements // 16, up)
    return down


@njit
def _pack_block(k, v, offsets, num_vectors, num_parts, keys, values):
    for i in range(num_vectors):
        at, place = offsets.ctypes.data + 128 * i, 32 * 32 * num_parts * i
        pack_keys(k, at, num_parts, keys + place)
        pack_values(v, at, num_parts, values + place)


@njit
def _soften_row(scores, weights, num_vectors, scale, sums, num_sums, top, total, is_half):
    """Weights of one row's scores, relative to its highest so far: the new top and total."""
    best = highest(scores, num_vectors)
    if best > top:
        if total != 0:
            factor = np.float32(np.exp((top - best) * scale))
            total *= factor
            scale_floats(sums, num_sums, factor, sums)
        top = best
    if _IN_FLOATS:
        return top, total + soften_to_floats(scores, num_vectors, scale, top, weights)
    if _HAS_HALVES and is_half:
        return top, total + soften_to_halves(scores, num_vectors, scale, top, weights)
    return top, total + soften(scores, num_vectors, scale, top, weights)


@njit
def _store_results(
    rows, num_queries, group, scale, tops, totals, sums, head_dim, num_heads, head, o, lse
):
    for query in range(num_queries):
        total, result = totals[query], rows[ROW_FIELDS * (query // group) + 3]
        factor = np.float32(1) / total if total != 0 else np.float32(0)
        index = result * num_heads + head + query % group
        sums_at = sums + 4 * query * head_dim
        if lse == 0:
            scale_to_bfloat(sums_at, head_dim // 16, factor, o + 2 * index * head_dim)
            continue
        scale_floats(sums_at, head_dim // 16, factor, o + 4 * index * head_dim)
        sees = total != 0
        carray(float32_pointer(lse + 4 * index), 1)[0] = (
            tops[query] * scale + np.log(total) if sees else -np.inf
        )


@njit
def _soften_tile(
    rows, group, first, num_tiled, head_dim, base, count, scale, scores, weights, sums, tops,
    totals, is_half,
):  # fmt: skip
    """Weights of `num_tiled` queries from the `first` on; nothing for keys that they do not see."""
    num_vectors, weight_bytes = (count + 15) // 16, 4 if _IN_FLOATS else 2
    for i in range(num_tiled):
        query = first + i
        row = ROW_FIELDS * (query // group)
        scores_at, weights_at = scores + 4 * i * BLOCK, weights + weight_bytes * i * BLOCK
        view = carray(float32_pointer(scores_at), BLOCK)
        if hide(view, base, count, 16 * num_vectors, rows[row + 1], rows[row + 2]):
            tops[query], totals[query] = _soften_row(
                scores_at, weights_at, num_vectors, scale, sums + 4 * query * head_dim,
                head_dim // 16, tops[query], totals[query], is_half,
            )  # fmt: skip
        else:
            num_words = weight_bytes // 2 * 16 * num_vectors
            carray(uint16_pointer(weights_at), num_words)[:] = 0


@njit
def _add_floats(
    rows, group, num_queries, q_floats, head_dim, base, count, scale, keys, values, offsets, scores,
    sums, tops, totals,
):  # fmt: skip
    """All queries of a task with the keys at `offsets`, in float32."""
    # Where the next keys are, if slots follow each other. Anything may be asked for.
    num_parts, query, next_block = head_dim // 32, 0, 2 * head_dim * BLOCK
    while query < num_queries:
        num_tiled = min(MAX_FLOAT_TILE, num_queries - query)
        score_floats(
            num_tiled, q_floats + 4 * query * head_dim, 4 * head_dim, keys, offsets,
            (count + 3) // 4, num_parts, scores, 4 * BLOCK, values,
        )  # fmt: skip
        _soften_tile(
            rows, group, query, num_tiled, head_dim, base, count, scale, scores, scores, sums, tops,
            totals, False,
        )  # fmt: skip
        mix_floats(
            num_tiled, scores, 4 * BLOCK, values, offsets, count, num_parts,
            sums + 4 * query * head_dim, 4 * head_dim, keys + next_block,
        )  # fmt: skip
        query += num_tiled


@njit
def _add_block(
    rows, group, num_queries, q_rows, head_dim, base, count, scale, keys, values, scores, weights,
    sums, tops, totals, is_half, factors, value_factor,
):  # fmt: skip
    """All queries of a task with one packed block of keys, in tiles of 8, 4, 2 or 1."""
    num_vectors, query = (count + 15) // 16, 0
    while query < num_queries:
        num_tiled = MAX_TILE
        while num_tiled > num_queries - query:
            num_tiled //= 2
        q_at = q_rows + 2 * query * head_dim
        if _HAS_HALVES and is_half:
            for i in range(0, num_vectors, 2):
                _score_halves(
                    num_tiled, q_at, 2 * head_dim, keys + 32 * i * head_dim, head_dim // 2,
                    factors + 4 * query, scores + 64 * i, 4 * BLOCK,
                )  # fmt: skip
        else:
            for i in range(num_vectors):
                _score(
                    num_tiled, q_at, 2 * head_dim, keys + 32 * i * head_dim, head_dim // 2,
                    scores + 64 * i, 4 * BLOCK,
                )  # fmt: skip
        _soften_tile(
            rows, group, query, num_tiled, head_dim, base, count, scale, scores, weights, sums,
            tops, totals, is_half,
        )  # fmt: skip
        sums_at = sums + 4 * query * head_dim
        if _HAS_HALVES and is_half:
            _mix_halves(
                num_tiled, weights, 2 * BLOCK, values, head_dim // 32, 8 * num_vectors, sums_at,
                4 * head_dim, value_factor,
            )  # fmt: skip
        else:
            _mix(
                num_tiled, weights, 2 * BLOCK, values, head_dim // 32, 8 * num_vectors, sums_at,
                4 * head_dim,
            )  # fmt: skip
        query += num_tiled


@cfunc(types.void(types.int64), cache=keeps_code())
def _attend(args):
    num_tasks = load_int64(args, 1)
    tasks = carray(int64_pointer(load_int64(args, 2)), TASK_FIELDS * num_tasks)
    ranges_at, rows_at, q_at, q_stride = (
        load_int64(args, 3), load_int64(args, 4), load_int64(args, 5), load_int64(args, 6),
    )  # fmt: skip
    k_pool, v_pool, num_slots, head_dim = (
        load_int64(args, 7), load_int64(args, 8), load_int64(args, 9), load_int64(args, 10),
    )  # fmt: skip
    group, scale = load_int64(args, 11), carray(float32_pointer(args + 8 * 12), 1)[0]
    o, lse, num_heads = load_int64(args, 13), load_int64(args, 14), load_int64(args, 15)
    num_parts, slot_bytes = head_dim // 32, 2 * head_dim
    most_queries = most_queries_of(tasks, num_tasks, group)
    block_bytes, rows_bytes = BLOCK * slot_bytes, most_queries * slot_bytes
    scores_bytes, tile_bytes = 4 * STRIPE_ROWS * BLOCK, 8 * STRIPE_ROWS * BLOCK
    memory = np.empty(2 * block_bytes + 6 * rows_bytes + tile_bytes + 64, np.uint8)
    keys = (memory.ctypes.data + 63) // 64 * 64
    values, scores = keys + block_bytes, keys + 2 * block_bytes
    weights, sums = scores + scores_bytes, scores + tile_bytes
    q_rows = sums + 2 * rows_bytes
    q_floats, q_int16s = q_rows + rows_bytes, q_rows + 3 * rows_bytes
    offsets, place = np.empty(BLOCK, np.int64), np.empty(2, np.int64)
    tops, totals = np.empty(most_queries, np.float32), np.empty(most_queries, np.float32)
    # Of the queries, and of their scores with the keys of a block.
    query_factors = np.empty(most_queries, np.float32)
    factors, value_factor = np.empty(most_queries, np.float32), np.float32(1)
    key_factors, value_factors = np.empty(BLOCK, np.float32), np.empty(head_dim, np.float32)
    sums_view = carray(float32_pointer(sums), most_queries * head_dim)
    while True:
        task = TASK_FIELDS * fetch_add(args, 1)
        if task >= TASK_FIELDS * num_tasks:
            break
        first_range, stop_range, kv_head = tasks[task], tasks[task + 1], tasks[task + 2]
        first_row, num_rows = tasks[task + 3], tasks[task + 4]
        ranges = carray(int64_pointer(ranges_at), 2 * stop_range)
        rows = carray(int64_pointer(rows_at + 8 * ROW_FIELDS * first_row), ROW_FIELDS * num_rows)
        head, num_queries = kv_head * group, num_rows * group
        copy_queries(rows, num_rows, group, slot_bytes, q_at + head * slot_bytes, q_stride, q_rows)
        is_half = _HAS_HALVES and num_queries >= _MIN_HALF_QUERIES
        if is_half:
            for query in range(num_queries):
                query_factors[query] = _halve(q_rows + query * slot_bytes, head_dim)
        sums_view[:] = 0
        tops[:num_queries] = -np.inf
        totals[:num_queries] = 0
        pool_offset = kv_head * num_slots * slot_bytes
        is_int16 = _IN_FLOATS and num_queries >= _MIN_INT16_QUERIES
        if is_int16:
            pack_int16_queries(q_rows, num_queries, head_dim, q_int16s, query_factors)
        if _IN_FLOATS:
            widen(q_rows, num_queries * head_dim // 16, q_floats)
        lowest, stop, num_keys = span(ranges, first_range, stop_range, rows, num_rows)
        place[0], place[1] = first_range, 0
        for base in range(0, stop, BLOCK):
            # In integers a block's values share their scale, so that it has to hold the same keys
            # whatever the rows of the task see of them.
            count = min(BLOCK, (num_keys if is_int16 else stop) - base)
            fill_offsets(ranges, place, count, slot_bytes, offsets)
            if base + count <= lowest:
                continue
            if is_int16 and pack_int16_block(
                k_pool + pool_offset, v_pool + pool_offset, offsets.ctypes.data, count, head_dim,
                keys, values, key_factors.ctypes.data, value_factors.ctypes.data,
            ):  # fmt: skip
                add_int16_block(
                    rows, group, num_queries, q_int16s, query_factors, head_dim, base, count, scale,
                    keys, values, key_factors.ctypes.data, value_factors.ctypes.data, scores,
                    weights, sums, tops, totals,
                )  # fmt: skip
                continue
            if _IN_FLOATS:  # with few queries; what is not finite, too
                _add_floats(
                    rows, group, num_queries, q_floats, head_dim, base, count, scale,
                    k_pool + pool_offset, v_pool + pool_offset, offsets.ctypes.data, scores, sums,
                    tops, totals,
                )  # fmt: skip
                continue
            _pack_block(
                k_pool + pool_offset, v_pool + pool_offset, offsets, (count + 15) // 16, num_parts,
                keys, values,
            )  # fmt: skip
            if is_half:
                num_elements = (count + 15) // 16 * 16 * head_dim
                key_factor = _halve(keys, num_elements)
                value_factor = _halve(values, num_elements)
                for query in range(num_queries):
                    factors[query] = query_factors[query] * key_factor
            _add_block(
                rows, group, num_queries, q_rows, head_dim, base, count, scale, keys, values,
                scores, weights, sums, tops, totals, is_half, factors.ctypes.data, value_factor,
            )  # fmt: skip
        _store_results(
            rows, num_queries, group, scale, tops, totals, sums, head_dim, num_heads, head, o, lse
        )
    # A use: numba frees an array after the last one, whoever has its address.
    memory[0] = 0
    factors[0] = 0
    key_factors[0] = 0
    value_factors[0] = 0


@cfunc(types.void(types.int64), cache=keeps_code())
def _merge(args):
    num_rows, width, num_heads, head_dim = (
        load_int64(args, 1), load_int64(args, 2), load_int64(args, 3), load_int64(args, 4),
    )  # fmt: skip
    table = carray(int64_pointer(load_int64(args, 5)), num_rows * width)
    o_at, lse_at, out_at = load_int64(args, 6), load_int64(args, 7), load_int64(args, 8)
    total = np.empty(head_dim, np.float32)
    while True:
        row = fetch_add(args, 1)
        if row >= num_rows:
            break
        for head in range(num_heads):
            top = np.float32(-np.inf)
            for i in range(row * width, (row + 1) * width):
                if table[i] >= 0:
                    lse = carray(float32_pointer(lse_at), 1 << 40)[table[i] * num_heads + head]
                    top = max(top, lse)
            total[:] = 0
            norm = np.float32(0)
            for i in range(row * width, (row + 1) * width):
                if table[i] < 0:
                    continue
                place = table[i] * num_heads + head
                lse = carray(float32_pointer(lse_at), 1 << 40)[place]
                weight = np.float32(np.exp(lse - top))
                norm += weight
                part = carray(float32_pointer(o_at + 4 * place * head_dim), head_dim)
                for d in range(head_dim):
                    total[d] += weight * part[d]
            scale_to_bfloat(
                total.ctypes.data, head_dim // 16, np.float32(1) / norm,
                out_at + 2 * (row * num_heads + head) * head_dim,
            )  # fmt: skip


ATTEND: int = _attend.address
MERGE: int = _merge.address
_Args = ctypes.c_int64 * 17


def attend(work: TaskLists, q: Tensor, k_pool: Tensor, v_pool: Tensor, scale_bits: int) -> Tensor:
    """q: [T, Hq, D] bfloat16; k_pool, v_pool: [Hkv, slots, D], D a multiple of 32 -> [T, Hq, D].

    scale_bits: the bits of the float32 that scores are multiplied with, which must be positive.
    """
    _, num_heads, head_dim = q.shape
    out = q.new_empty(work.num_rows, num_heads, head_dim)
    args = _Args(*attend_args(q, k_pool, v_pool, scale_bits))
    args[1], args[2], args[3], args[4] = task_fields(work)
    args[13] = out.data_ptr()
    if work.table is None:
        run_kernel(ATTEND, args)
        return out
    o = torch.empty(work.num_results, num_heads, head_dim)
    lse = torch.empty(work.num_results, num_heads)
    args[13], args[14] = o.data_ptr(), lse.data_ptr()
    run_kernel(ATTEND, args)
    args = _Args(0, 0, 0, num_heads, head_dim, 0, o.data_ptr(), lse.data_ptr(), out.data_ptr())
    args[1], args[2], args[5] = merge_fields(work)
    run_kernel(MERGE, args)
    return out


def attend_args(q: Tensor, k_pool: Tensor, v_pool: Tensor, scale_bits: int) -> list[int]:
    """Of `ATTEND`, without the tasks (1 to 4) and where results go: 13, and 14 if they are partial
    results in float32, which `MERGE` joins."""
    _, num_heads, head_dim = q.shape
    return [
        0, 0, 0, 0, 0, q.data_ptr(), 2 * q.stride(0), k_pool.data_ptr(), v_pool.data_ptr(),
        k_pool.shape[1], head_dim, num_heads // k_pool.shape[0], scale_bits, 0, 0, num_heads,
    ]  # fmt: skip


def task_fields(work: TaskLists) -> tuple[int, int, int, int]:
    """Fields 1 to 4 of `ATTEND`."""
    return (
        len(work.tasks), work.tasks.ctypes.data, work.ranges.ctypes.data, work.entries.ctypes.data,
    )  # fmt: skip


def merge_fields(work: TaskLists) -> tuple[int, int, int]:
    """Fields 1, 2 and 5 of `MERGE`."""
    assert work.table is not None, "there is nothing to merge"
    return work.num_rows, work.table.shape[1], work.table.ctypes.data
