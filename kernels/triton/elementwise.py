"""RMS norm with the residual, rotation with the write to the pool, and gated activations.

Each is one kernel on a GPU, and a few torch operations with the same roundings elsewhere.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from umbel.kernels.triton.attention import ACTIVATIONS, KVScales
from umbel.kernels.triton.backend import Backend, check_tensor, choose_backend

MAX_FP8 = 448.0
ActivationKind = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class HeadNormWeights:
    """The norm of each query's and key's head before rotation."""

    q: Tensor  # [D] float32
    k: Tensor  # [D] float32
    eps: float


def add_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    *,
    out: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """The norm of `x + residual`, which also becomes the residual, in place.

    x: [T, E], dense rows; residual: [T, E] of x's dtype, or None: the norm of x; weight: [E]
    float32. The sum is rounded to x's dtype first. Returns `out`, [T, E] dense, of x's dtype.
    """
    check_tensor("x", x, shape=(None, None), dtypes=ACTIVATIONS, device=x.device)
    num_rows, size = x.shape
    check_tensor("weight", weight, shape=(size,), dtypes=(torch.float32,), device=x.device)
    for name, rows in (("x", x), ("residual", residual)):
        if rows is not None:
            check_tensor(name, rows, shape=(num_rows, size), dtypes=(x.dtype,), device=x.device)
            _check_dense_rows(name, rows)
    if out is None:
        out = torch.empty(num_rows, size, dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    if choose_backend(x, backend) == "torch":
        if residual is not None:
            x = residual.add_(x)
        out.copy_(functional.rms_norm(x.float(), (size,), weight, eps))
        return out
    from umbel.kernels.triton.elementwise_jit import add_rms_norm_kernel

    block = _power_of_two(size)
    add_rms_norm_kernel[(num_rows,)](
        x,
        x if residual is None else residual,
        weight,
        out,
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        eps,
        E=size,
        BLOCK=block,
        HAS_RESIDUAL=residual is not None,
        num_warps=min(8, max(1, block // 512)),
    )
    return out


def rotate_and_write(
    qkv: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    *,
    table: Tensor | None,
    positions: Tensor,
    head_norm: HeadNormWeights | None = None,
    kv_scales: KVScales | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Rotate queries and keys by their positions and write keys and values to the pool.

    qkv: [T, (Hq + 2 Hkv) D], dense rows, queries first; slots: [T] int32, -1 where nothing is
    written; pools: [slots, Hkv, D] with any order of strides and a dense D, of qkv's dtype, or
    float8_e4m3fn with kv_scales. table: [P, D] float32, the cosines of each position, then the
    sines, of the half-split rotation; None: no rotation. positions: [T] int32. Returns the
    queries, [T, Hq, D].
    """
    num_kv_heads, head_dim = k_pool.shape[1:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    _check_rotation(qkv, slots, k_pool, v_pool, table, positions, kv_scales)
    q = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if len(qkv) == 0:
        return q
    if choose_backend(qkv, backend) == "torch":
        heads = qkv.view(len(qkv), -1, head_dim)
        rotated = _rotated(heads, num_heads, num_kv_heads, table, positions, head_norm)
        q.copy_(rotated[:, :num_heads])
        is_kept = slots >= 0
        kept = slots[is_kept].long()
        for idx, pool in enumerate((k_pool, v_pool)):
            values = rotated[is_kept, num_heads + idx * num_kv_heads :][:, :num_kv_heads]
            if kv_scales is not None:
                factor = (kv_scales.k, kv_scales.v)[idx][:, None]
                values = (values / factor).clamp(-MAX_FP8, MAX_FP8)
            pool[kept] = values.to(pool.dtype)
        return q
    from umbel.kernels.triton.elementwise_jit import rotate_and_write_kernel

    block_half = _power_of_two(head_dim // 2)
    block_heads = max(1, min(_power_of_two(num_heads + 2 * num_kv_heads), 1024 // block_half))
    norm = head_norm or HeadNormWeights(qkv, qkv, 0.0)
    scales = kv_scales or KVScales(qkv, qkv)
    rotate_and_write_kernel[(len(qkv), -(-(num_heads + 2 * num_kv_heads) // block_heads))](
        qkv,
        qkv if table is None else table,
        positions,
        slots,
        norm.q,
        norm.k,
        scales.k,
        scales.v,
        q,
        k_pool,
        v_pool,
        qkv.stride(0),
        k_pool.stride(0),
        k_pool.stride(1),
        norm.eps,
        HQ=num_heads,
        HKV=num_kv_heads,
        D=head_dim,
        BLOCK_H=block_heads,
        BLOCK_HALF=block_half,
        HAS_ROPE=table is not None,
        HAS_NORM=head_norm is not None,
        HAS_SCALES=kv_scales is not None,
        num_warps=4,
    )
    return q


def gated_activation(
    gate_up: Tensor,
    kind: ActivationKind = "silu",
    *,
    out: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """gate_up: [T, 2F], dense rows, gate first -> act(gate) * up, [T, F], of the same dtype."""
    check_tensor("gate_up", gate_up, shape=(None, None), dtypes=ACTIVATIONS, device=gate_up.device)
    _check_dense_rows("gate_up", gate_up)
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = torch.empty(num_rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if num_rows == 0:
        return out
    if choose_backend(gate_up, backend) == "torch":
        gate, up = gate_up.chunk(2, dim=-1)
        active = (
            functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh")
        )
        return torch.mul(active, up, out=out)
    from umbel.kernels.triton.elementwise_jit import gated_activation_kernel

    block = min(2048, _power_of_two(size))
    gated_activation_kernel[(num_rows, -(-size // block))](
        gate_up,
        out,
        gate_up.stride(0),
        F=size,
        BLOCK=block,
        GELU=kind == "gelu_tanh",
        num_warps=8 if block == 2048 else 4,
    )
    return out


def _rotated(
    heads: Tensor,
    num_heads: int,
    num_kv_heads: int,
    table: Tensor | None,
    positions: Tensor,
    head_norm: HeadNormWeights | None,
) -> Tensor:
    """[T, Hq + 2 Hkv, D] float32: queries and keys normed and rotated, values as they are."""
    size = heads.shape[2]
    num_rotated = num_heads + num_kv_heads
    rows = heads.float()
    qk, v = rows[:, :num_rotated], rows[:, num_rotated:]
    if head_norm is not None:
        normed = functional.rms_norm(qk, (size,), None, head_norm.eps)
        weights = [head_norm.q.expand(num_heads, -1), head_norm.k.expand(num_kv_heads, -1)]
        qk = (normed * torch.cat(weights)).to(heads.dtype).float()
    if table is not None:
        cos, sin = table[positions.long()].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, D/2]
        low, high = qk.chunk(2, dim=-1)
        qk = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    return torch.cat((qk, v), dim=1)


def _check_rotation(
    qkv: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    table: Tensor | None,
    positions: Tensor,
    kv_scales: KVScales | None,
) -> None:
    device = qkv.device
    check_tensor("qkv", qkv, shape=(None, None), dtypes=ACTIVATIONS, device=device)
    _check_dense_rows("qkv", qkv)
    num_rows = len(qkv)
    num_kv_heads, head_dim = k_pool.shape[1:]
    if head_dim % 2 or qkv.shape[1] % head_dim or qkv.shape[1] // head_dim <= 2 * num_kv_heads:
        raise ValueError(
            f"qkv has rows of {qkv.shape[1]} for {num_kv_heads} KV heads of {head_dim}; expected "
            f"(Hq + 2 Hkv) D with an even D"
        )
    dtypes = (qkv.dtype,) if kv_scales is None else (torch.float8_e4m3fn,)
    for name, pool in (("k_pool", k_pool), ("v_pool", v_pool)):
        check_tensor(name, pool, shape=(None, num_kv_heads, head_dim), dtypes=dtypes, device=device)
        if pool.stride(2) != 1 or pool.stride() != k_pool.stride():
            raise ValueError(
                f"{name} has strides {pool.stride()}; expected k_pool's, and a dense D"
            )
    for name, ints in (("slots", slots), ("positions", positions)):
        check_tensor(name, ints, shape=(num_rows,), dtypes=(torch.int32,), device=device)
    if table is not None:
        check_tensor("table", table, shape=(None, head_dim), dtypes=(torch.float32,), device=device)


def _check_dense_rows(name: str, rows: Tensor) -> None:
    if rows.stride(1) != 1:
        raise ValueError(f"{name} has strides {rows.stride()}; expected dense rows")


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()
