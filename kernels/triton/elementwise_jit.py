"""Kernels that read and write each value once: norm, rotation with the write to the pool, gating.

Each is bound by memory; the bytes are in the docstrings.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
GELU_SCALE = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)
MAX_FP8 = tl.constexpr(448.0)


@triton.jit
def add_rms_norm_kernel(
    X, RESIDUAL, WEIGHT, OUT, stride_x, stride_residual, eps,
    E: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
):  # fmt: skip
    """Grid (rows). Moves 4 * E elements a row, 2 * E without a residual; the weight stays in the L2
    cache."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    ok = at < E
    x = tl.load(X + row * stride_x + at, mask=ok, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(RESIDUAL + row * stride_residual + at, mask=ok, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(X.dtype.element_ty)
        tl.store(RESIDUAL + row * stride_residual + at, x, mask=ok)
    x = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / E + eps)
    y = x * inverse * tl.load(WEIGHT + at, mask=ok, other=0.0)
    tl.store(OUT + row * E + at, y.to(OUT.dtype.element_ty), mask=ok)


@triton.jit
def _to_pool(x, factor, POOL, HAS_SCALES: tl.constexpr):
    if HAS_SCALES:
        x = tl.minimum(tl.maximum(x / factor, -MAX_FP8), MAX_FP8)
    return x.to(POOL.dtype.element_ty)


@triton.jit
def rotate_and_write_kernel(
    QKV, TABLE, POSITIONS, SLOTS, Q_WEIGHT, K_WEIGHT, K_SCALE, V_SCALE, OUT, K, V,
    stride_qkv, stride_slot, stride_head, eps,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr, HAS_ROPE: tl.constexpr, HAS_NORM: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):  # fmt: skip
    """Grid (rows, blocks of heads). Moves each query, key and value element in and out once, and
    the row's D floats of the table."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    at = tl.arange(0, BLOCK_HALF)
    half = D // 2
    d_ok = (at < half)[None, :]
    ok = (head < HQ + 2 * HKV)[:, None] & d_ok
    source = QKV + row * stride_qkv + head[:, None] * D + at[None, :]
    low = tl.load(source, mask=ok, other=0.0).to(tl.float32)
    high = tl.load(source + half, mask=ok, other=0.0).to(tl.float32)
    is_q = (head < HQ)[:, None]
    is_k = ((head >= HQ) & (head < HQ + HKV))[:, None]
    is_v = ((head >= HQ + HKV) & (head < HQ + 2 * HKV))[:, None]
    if HAS_NORM:
        mean = (tl.sum(low * low, 1) + tl.sum(high * high, 1)) / D
        inverse = tl.where(is_v, 1.0, tl.rsqrt(mean + eps)[:, None])
        w_ok = at < half
        q_low = tl.load(Q_WEIGHT + at, mask=w_ok, other=0.0)[None, :]
        q_high = tl.load(Q_WEIGHT + half + at, mask=w_ok, other=0.0)[None, :]
        k_low = tl.load(K_WEIGHT + at, mask=w_ok, other=0.0)[None, :]
        k_high = tl.load(K_WEIGHT + half + at, mask=w_ok, other=0.0)[None, :]
        # Rounded to the activations' type, as the separate norm does.
        low = low * inverse * tl.where(is_q, q_low, tl.where(is_k, k_low, 1.0))
        high = high * inverse * tl.where(is_q, q_high, tl.where(is_k, k_high, 1.0))
        low = low.to(QKV.dtype.element_ty).to(tl.float32)
        high = high.to(QKV.dtype.element_ty).to(tl.float32)
    if HAS_ROPE:
        angle = TABLE + tl.load(POSITIONS + row).to(tl.int64) * D + at
        cos = tl.where(is_v, 1.0, tl.load(angle, mask=at < half, other=0.0)[None, :])
        sin = tl.where(is_v, 0.0, tl.load(angle + half, mask=at < half, other=0.0)[None, :])
        turned = low * cos - high * sin
        high = high * cos + low * sin
        low = turned
    out = OUT + row * (HQ * D) + head[:, None] * D + at[None, :]
    tl.store(out, low.to(OUT.dtype.element_ty), mask=is_q & d_ok)
    tl.store(out + half, high.to(OUT.dtype.element_ty), mask=is_q & d_ok)
    slot = tl.load(SLOTS + row).to(tl.int64)
    if slot >= 0:
        kv_head = (head - HQ) % HKV
        k_factor = 1.0
        v_factor = 1.0
        if HAS_SCALES:
            k_factor = tl.load(K_SCALE + kv_head, mask=head >= HQ, other=1.0)[:, None]
            v_factor = tl.load(V_SCALE + kv_head, mask=head >= HQ, other=1.0)[:, None]
        place = slot * stride_slot + kv_head[:, None].to(tl.int64) * stride_head + at[None, :]
        tl.store(K + place, _to_pool(low, k_factor, K, HAS_SCALES), mask=is_k & d_ok)
        tl.store(K + place + half, _to_pool(high, k_factor, K, HAS_SCALES), mask=is_k & d_ok)
        tl.store(V + place, _to_pool(low, v_factor, V, HAS_SCALES), mask=is_v & d_ok)
        tl.store(V + place + half, _to_pool(high, v_factor, V, HAS_SCALES), mask=is_v & d_ok)


@triton.jit
def gated_activation_kernel(
    GATE_UP, OUT, stride_in, F: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr
):
    """Grid (rows, blocks of F). Moves 3 * F elements a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = at < F
    gate = tl.load(GATE_UP + row * stride_in + at, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(GATE_UP + row * stride_in + F + at, mask=ok, other=0.0).to(tl.float32)
    if GELU:  # gate / 2 * (1 + tanh(u)) is gate times the logistic function of 2 u
        u = (gate + 0.044715 * gate * gate * gate) * GELU_SCALE
        active = gate / (1.0 + tl.exp2(u * (-2.0 * LOG2E)))
    else:
        active = gate / (1.0 + tl.exp2(gate * (-1.0 * LOG2E)))
    # Rounded before the product, as the two separate operations do.
    active = active.to(OUT.dtype.element_ty).to(tl.float32)
    tl.store(OUT + row * F + at, (active * up).to(OUT.dtype.element_ty), mask=ok)


@triton.jit
def copy_rows_kernel(
    SOURCE, TARGET, IDXS, source_outer, target_outer,
    WORDS: tl.constexpr, BLOCK: tl.constexpr, IS_SCATTER: tl.constexpr,
):  # fmt: skip
    """Grid (rows, outer, blocks of words): row i of one side is row IDXS[i] of the other. Moves
    each 32-bit word in and out once."""
    i = tl.program_id(0).to(tl.int64)
    outer = tl.program_id(1).to(tl.int64)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    ok = at < WORDS
    idx = tl.load(IDXS + i).to(tl.int64)
    source_row = idx
    target_row = i
    if IS_SCATTER:
        source_row = i
        target_row = idx
    words = tl.load(SOURCE + outer * source_outer + source_row * WORDS + at, mask=ok, other=0)
    tl.store(TARGET + outer * target_outer + target_row * WORDS + at, words, mask=ok)
