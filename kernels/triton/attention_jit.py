"""The attention kernels: one program computes one work item for one KV head; another merges.

Keys of a paged pool are read once per item for all query rows and heads of its tile. Softmax is
kept in base 2 and float32, with the running maximum and sum of FlashAttention (arXiv 2205.14135);
partial results merge as in Hydragen (arXiv 2402.05099). The index of the next keys' page is loaded
one turn ahead: a page table load inside the turn would leave no copy of keys in flight.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NEGATIVE = tl.constexpr(float("-inf"))


@triton.jit
def _scores(q, k, scale, softcap, HAS_CAP: tl.constexpr):
    """Scores in base 2."""
    s = tl.dot(q, k, input_precision="ieee") * scale
    if HAS_CAP:  # cap * tanh(s / cap); exp2 overflows to infinity, which gives 1
        e = tl.exp2(s * (2.0 * LOG2E / softcap))
        s = softcap * LOG2E * (1.0 - 2.0 / (e + 1.0))
    return s


@triton.jit
def _visible(
    n, end, row_pos, tree_begin, tree_bits, window, HAS_WINDOW: tl.constexpr, HAS_TREE: tl.constexpr
):
    """[M, N]: which keys at positions n each row sees."""
    seen = (n < end)[None, :]
    if HAS_TREE:
        node = n[None, :] - tree_begin[:, None]
        bit = (tree_bits[:, None] >> tl.minimum(tl.maximum(node, 0), 63).to(tl.int64)) & 1
        near = node < 0
        if HAS_WINDOW:
            near = near & (n[None, :] > row_pos[:, None] - window)
        seen = seen & (near | ((node >= 0) & (bit != 0)))
    else:
        seen = seen & (n[None, :] <= row_pos[:, None])
        if HAS_WINDOW:
            seen = seen & (n[None, :] > row_pos[:, None] - window)
    return seen


@triton.jit
def _add_keys(
    acc, l_i, m_i, q, K, V, PAGES, begin, end, row_pos, tree_begin, tree_bits,
    stride_slot, scale, softcap, window,
    PAGE: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_TREE: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """Let all rows of the tile attend to the keys at positions begin .. end - 1. Unless MASKED,
    every row sees all of them and their number is a multiple of BLOCK_N."""
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    d_ok = offs_d < D
    first = begin + offs_n
    page = tl.load(PAGES + first // PAGE, mask=first < end, other=0)
    for start in range(begin, end, BLOCK_N):
        n = start + offs_n
        after = n + BLOCK_N
        next_page = tl.load(PAGES + after // PAGE, mask=after < end, other=0)
        slot = (page * PAGE + n % PAGE).to(tl.int64) * stride_slot
        n_ok = n < end
        k_ok = d_ok[:, None]
        v_ok = d_ok[None, :]
        if MASKED:
            k_ok = k_ok & n_ok[None, :]
            v_ok = v_ok & n_ok[:, None]
        k = tl.load(K + slot[None, :] + offs_d[:, None], mask=k_ok, other=0.0)
        s = _scores(q, k.to(q.dtype), scale, softcap, HAS_CAP)
        if MASKED:
            seen = _visible(n, end, row_pos, tree_begin, tree_bits, window, HAS_WINDOW, HAS_TREE)
            s = tl.where(seen, s, NEGATIVE)
        m_new = tl.maximum(m_i, tl.max(s, 1))
        m_safe = tl.where(m_new == NEGATIVE, 0.0, m_new)
        p = tl.exp2(s - m_safe[:, None])
        decay = tl.exp2(m_i - m_safe)
        l_i = l_i * decay + tl.sum(p, 1)
        acc = acc * decay[:, None]
        # An unwritten slot may hold NaN: it must not reach the product, even with weight 0.
        v = tl.load(V + slot[:, None] + offs_d[None, :], mask=v_ok, other=0.0)
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc, input_precision="ieee")
        m_i = m_new
        page = next_page
    return acc, l_i, m_i


@triton.jit
def attend_items_kernel(
    Q, K, V, ITEMS, ROWS, POSITIONS, PAGES, TREE_BEGIN, TREE_BITS, K_SCALE, V_SCALE,
    OUT, PARTIAL_OUT, PARTIAL_LSE,
    stride_q, stride_slot, stride_head, scale, softcap, window,
    HQ: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_TREE: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SCALES: tl.constexpr, TWO_LOOPS: tl.constexpr,
):  # fmt: skip
    """Grid (items, KV heads). Per item and head: rows * G * D query elements, and each key and
    value once: 2 * D * bytes a key, for 4 * BLOCK_M * D FLOPs of tensor-core work."""
    item = ITEMS + tl.program_id(0) * 8
    kv_head = tl.program_id(1)
    num_rows = tl.load(item + 1)
    if num_rows == 0:
        return
    rows_begin = tl.load(item)
    key_begin = tl.load(item + 2)
    key_end = tl.load(item + 3)
    all_visible_end = tl.load(item + 4)
    page_offset = tl.load(item + 5)
    partial = tl.load(item + 6)
    offs_m = tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    place = offs_m // G
    head = kv_head * G + offs_m % G
    m_ok = place < num_rows
    md_ok = m_ok[:, None] & (offs_d < D)[None, :]
    row = tl.load(ROWS + rows_begin + place, mask=m_ok, other=0).to(tl.int64)
    row_pos = tl.load(POSITIONS + row, mask=m_ok, other=0)
    tree_begin = row_pos
    tree_bits = row
    if HAS_TREE:
        tree_begin = tl.load(TREE_BEGIN + row, mask=m_ok, other=0)
        tree_bits = tl.load(TREE_BITS + row, mask=m_ok, other=0)
    q = tl.load(
        Q + row[:, None] * stride_q + head[:, None] * D + offs_d[None, :], mask=md_ok, other=0.0
    )
    if HAS_SCALES:
        scale = scale * tl.load(K_SCALE + kv_head)
    K += kv_head.to(tl.int64) * stride_head
    V += kv_head.to(tl.int64) * stride_head
    PAGES += page_offset
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    m_i = tl.full((BLOCK_M,), NEGATIVE, tl.float32)
    begin = key_begin
    if TWO_LOOPS:
        begin = key_begin + tl.maximum(all_visible_end - key_begin, 0) // BLOCK_N * BLOCK_N
        begin = tl.minimum(begin, key_begin + (key_end - key_begin) // BLOCK_N * BLOCK_N)
        acc, l_i, m_i = _add_keys(
            acc, l_i, m_i, q, K, V, PAGES, key_begin, begin, row_pos, tree_begin, tree_bits,
            stride_slot, scale, softcap, window,
            PAGE, D, BLOCK_D, BLOCK_N, False, HAS_WINDOW, HAS_TREE, HAS_CAP,
        )  # fmt: skip
    acc, l_i, m_i = _add_keys(
        acc, l_i, m_i, q, K, V, PAGES, begin, key_end, row_pos, tree_begin, tree_bits,
        stride_slot, scale, softcap, window,
        PAGE, D, BLOCK_D, BLOCK_N, True, HAS_WINDOW, HAS_TREE, HAS_CAP,
    )  # fmt: skip
    l_safe = tl.where(l_i == 0.0, 1.0, l_i)
    acc = acc / l_safe[:, None]
    if HAS_SCALES:
        acc = acc * tl.load(V_SCALE + kv_head)
    if partial >= 0:
        lse = tl.where(l_i == 0.0, NEGATIVE, m_i + tl.log2(l_safe))
        at = (partial + place).to(tl.int64) * HQ + head
        tl.store(PARTIAL_OUT + at[:, None] * D + offs_d[None, :], acc, mask=md_ok)
        tl.store(PARTIAL_LSE + at, lse, mask=m_ok)
    else:
        at = row * HQ + head
        out = acc.to(OUT.dtype.element_ty)
        tl.store(OUT + at[:, None] * D + offs_d[None, :], out, mask=md_ok)


@triton.jit
def merge_partials_kernel(
    PARTIAL_OUT, PARTIAL_LSE, MERGE_BEGIN, MERGE_LIST, OUT,
    HQ: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Grid (rows, query heads). Rows that merge nothing are left alone. Reads (D + 1) * 4 bytes per
    partial result, writes D elements."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    begin = tl.load(MERGE_BEGIN + row)
    end = tl.load(MERGE_BEGIN + row + 1)
    if begin == end:
        return
    offs_p = tl.arange(0, BLOCK_P)
    offs_d = tl.arange(0, BLOCK_D)
    d_ok = offs_d < D
    m_i = tl.full((1,), NEGATIVE, tl.float32)
    l_i = tl.zeros((1,), tl.float32)
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for first in range(begin, end, BLOCK_P):
        ok = first + offs_p < end
        at = tl.load(MERGE_LIST + first + offs_p, mask=ok, other=0).to(tl.int64) * HQ + head
        lse = tl.load(PARTIAL_LSE + at, mask=ok, other=NEGATIVE)
        part = tl.load(
            PARTIAL_OUT + at[:, None] * D + offs_d[None, :],
            mask=ok[:, None] & d_ok[None, :],
            other=0.0,
        )
        m_new = tl.maximum(m_i, tl.max(lse, 0))
        m_safe = tl.where(m_new == NEGATIVE, 0.0, m_new)
        weight = tl.exp2(lse - m_safe)
        decay = tl.exp2(m_i - m_safe)
        acc = acc * decay + tl.sum(part * weight[:, None], 0)
        l_i = l_i * decay + tl.sum(weight, 0)
        m_i = m_new
    out = acc / tl.where(l_i == 0.0, 1.0, l_i)
    at = (row.to(tl.int64) * HQ + head) * D
    tl.store(OUT + at + offs_d, out.to(OUT.dtype.element_ty), mask=d_ok)
