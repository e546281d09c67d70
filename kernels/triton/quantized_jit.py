"""Products of few rows with quantized weights, which are read once, as they are stored.

The tile is computed with the weights on the left, `W[BN, BK] @ x.T[BK, BM]`, so that the tensor
cores take the converted weights from registers and few rows pad to 16 only. K may be split over
programs; their partial sums are then added in order, so results do not vary.
"""

import triton
import triton.language as tl


@triton.jit
def _store_sums(acc, OUT, PARTIALS, n, m, ok, num_rows, N, SPLIT: tl.constexpr):
    at = m[None, :].to(tl.int64) * N + n[:, None]
    if SPLIT == 1:
        tl.store(OUT + at, acc.to(OUT.dtype.element_ty), mask=ok)
    else:
        part = tl.program_id(1).to(tl.int64) * num_rows * N
        tl.store(PARTIALS + part + at, acc, mask=ok)


@triton.jit
def int4_linear_kernel(
    X, CODES, SCALES, OUT, PARTIALS, num_rows, N, K, stride_x, k_per_split,
    BM: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of N, splits of K, blocks of rows). Reads K / 2 bytes of codes and a scale per
    128 of them for each of N outputs, and x; 2 * rows * N * K FLOPs.

    CODES: int32 [N, K / 8]; in a run of 128 codes bits 4i .. 4i + 3 of word j are code 16 i + j. A
    code in the low mantissa bits of 2**7 (bfloat16) or 2**10 (float16) makes that number plus the
    code, without a conversion from integers.
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    word_at = tl.arange(0, 16)
    n_ok = n < N
    m_ok = m < num_rows
    begin = tl.program_id(1) * k_per_split
    end = tl.minimum(begin + k_per_split, K)
    codes = CODES + n[:, None].to(tl.int64) * (K // 8) + word_at[None, :]
    x_at = X + m[None, :].to(tl.int64) * stride_x + word_at[:, None]
    scale_at = SCALES + n.to(tl.int64) * (K // 128)
    acc = tl.zeros((BN, BM), tl.float32)
    for k in range(begin, end, 128):
        words = tl.load(codes + k // 8, mask=n_ok[:, None], other=0)
        scale = tl.load(scale_at + k // 128, mask=n_ok, other=0.0).to(tl.float32)
        product = tl.zeros((BN, BM), tl.float32)
        for i in tl.static_range(8):
            bits = (words >> (4 * i)) & 0xF
            if X.dtype.element_ty == tl.bfloat16:
                w = (bits | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True) - 136.0
            else:
                w = (bits | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1032.0
            x = tl.load(x_at + k + 16 * i, mask=m_ok[None, :], other=0.0)
            product = tl.dot(w.to(X.dtype.element_ty), x, product, input_precision="ieee")
        acc += product * scale[:, None]
    ok = n_ok[:, None] & m_ok[None, :]
    _store_sums(acc, OUT, PARTIALS, n, m, ok, num_rows, N, SPLIT)


@triton.jit
def byte_linear_kernel(
    X, CODES, SCALES, OUT, PARTIALS, num_rows, N, K, stride_x, k_per_split,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PER_GROUP: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """As `int4_linear_kernel` for codes of one byte, int8 or float8_e4m3fn: [N, K]. A scale per BK
    codes (PER_GROUP), else per output."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    at = tl.arange(0, BK)
    n_ok = n < N
    m_ok = m < num_rows
    begin = tl.program_id(1) * k_per_split
    end = tl.minimum(begin + k_per_split, K)
    codes = CODES + n[:, None].to(tl.int64) * K + at[None, :]
    x_at = X + m[None, :].to(tl.int64) * stride_x + at[:, None]
    scale_at = SCALES + n.to(tl.int64) * (K // BK)
    acc = tl.zeros((BN, BM), tl.float32)
    for k in range(begin, end, BK):
        w = tl.load(codes + k, mask=n_ok[:, None], other=0.0).to(X.dtype.element_ty)
        x = tl.load(x_at + k, mask=m_ok[None, :], other=0.0)
        if PER_GROUP:
            scale = tl.load(scale_at + k // BK, mask=n_ok, other=0.0).to(tl.float32)
            acc += tl.dot(w, x, input_precision="ieee") * scale[:, None]
        else:
            acc = tl.dot(w, x, acc, input_precision="ieee")
    if not PER_GROUP:
        acc *= tl.load(SCALES + n, mask=n_ok, other=0.0).to(tl.float32)[:, None]
    ok = n_ok[:, None] & m_ok[None, :]
    _store_sums(acc, OUT, PARTIALS, n, m, ok, num_rows, N, SPLIT)


@triton.jit
def add_partials_kernel(PARTIALS, OUT, total, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """Grid (blocks of all outputs). SPLIT * 4 bytes in for each output."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < total
    acc = tl.zeros((BLOCK,), tl.float32)
    part = tl.zeros((1,), tl.int64)
    for _ in tl.static_range(SPLIT):
        acc += tl.load(PARTIALS + part + at, mask=ok, other=0.0)
        part += total
    tl.store(OUT + at, acc.to(OUT.dtype.element_ty), mask=ok)
