"""Attention of a ragged step over a paged pool, following a work list; and its torch twin.

Decode, shared prefixes, prefill over a cached prefix and the verification of draft trees are the
same operation: the work list says which rows read which keys. `attention_jit` has the kernels.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from umbel.kernels.triton.backend import Backend, check_tensor, choose_backend
from umbel.kernels.triton.work_list import WIDE_TILE
from umbel.kernels.triton.work_split import NUM_ROWS
from umbel.kernels.triton.work_tensors import WorkTensors

ACTIVATIONS = (torch.bfloat16, torch.float16, torch.float32)
MAX_TREE_NODES = 64
LOG2E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class KVScales:
    """Factors of an fp8 pool: a key is its stored value times its head's factor."""

    k: Tensor  # [Hkv] float32
    v: Tensor  # [Hkv] float32


@dataclass(frozen=True, slots=True)
class TreeMask:
    """Draft trees under verification: node i of a row's tree is the key at position begin + i.

    A row sees all keys before its tree, and of the tree the nodes whose bits are set. The rows of
    one run are the nodes of one tree in order, parents first; other rows: begin = position + 1.
    """

    begin: Tensor  # [T] int32
    bits: Tensor  # [T] int64


def attend(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    work: WorkTensors,
    *,
    scale: float,
    softcap: float | None = None,
    kv_scales: KVScales | None = None,
    tree: TreeMask | None = None,
    out: Tensor | None = None,
    backend: Backend | None = None,
) -> Tensor:
    """Attention of all rows of the step in one layer.

    q: [T, Hq, D], dense but for the stride of T; k_pool, v_pool: [slots, Hkv, D] in any order of
    strides with a dense D, of q's dtype or float8_e4m3fn (with kv_scales). softcap: scores become
    c * tanh(s / c). With a window, a tree is seen whole, and the window has at least 64 keys.
    Scores and sums are float32. Writes and returns `out`, [T, Hq, D] dense, of q's dtype.
    """
    _check(q, k_pool, v_pool, work, kv_scales, tree)
    num_rows, num_heads, head_dim = q.shape
    if out is None:
        out = torch.empty(num_rows, num_heads, head_dim, dtype=q.dtype, device=q.device)
    if num_rows == 0:
        return out
    run = _attend_triton if choose_backend(q, backend) == "triton" else _attend_torch
    run(q, k_pool, v_pool, work, scale, softcap, kv_scales, tree, out)
    return out


def _check(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    work: WorkTensors,
    kv_scales: KVScales | None,
    tree: TreeMask | None,
) -> None:
    heads = k_pool.shape[1] * work.group if k_pool.ndim == 3 else None
    check_tensor("q", q, shape=(None, heads, None), dtypes=ACTIVATIONS, device=q.device)
    num_rows, _, head_dim = q.shape
    if q.stride()[1:] != (head_dim, 1):
        raise ValueError(f"q has strides {q.stride()}; expected heads and D to be dense")
    if num_rows > work.capacity.num_rows:
        raise ValueError(f"got {num_rows} rows; the work list is of {work.capacity.num_rows}")
    pool_dtypes = (q.dtype,) if kv_scales is None else (torch.float8_e4m3fn,)
    for name, pool in (("k_pool", k_pool), ("v_pool", v_pool)):
        check_tensor(name, pool, shape=(None, None, head_dim), dtypes=pool_dtypes, device=q.device)
        if pool.stride(2) != 1 or pool.stride() != k_pool.stride():
            raise ValueError(
                f"{name} has strides {pool.stride()}, k_pool {k_pool.stride()}; expected the "
                f"same, with a dense D"
            )
    if kv_scales is not None:
        for name, factor in (("kv_scales.k", kv_scales.k), ("kv_scales.v", kv_scales.v)):
            check_tensor(
                name, factor, shape=(k_pool.shape[1],), dtypes=(torch.float32,), device=q.device
            )
    if tree is not None:
        check_tensor(
            "tree.begin", tree.begin, shape=(num_rows,), dtypes=(torch.int32,), device=q.device
        )
        check_tensor(
            "tree.bits", tree.bits, shape=(num_rows,), dtypes=(torch.int64,), device=q.device
        )
        if work.window is not None and work.window < MAX_TREE_NODES:
            raise ValueError(
                f"window={work.window} is shorter than a draft tree may be; expected at least "
                f"{MAX_TREE_NODES}"
            )


def _attend_triton(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    work: WorkTensors,
    scale: float,
    softcap: float | None,
    kv_scales: KVScales | None,
    tree: TreeMask | None,
    out: Tensor,
) -> None:
    from umbel.kernels.triton.attention_jit import attend_items_kernel, merge_partials_kernel

    num_heads, head_dim = q.shape[1:]
    block_d = 1 << (head_dim - 1).bit_length()
    unused = work.positions
    for items, tile in ((work.narrow, work.narrow_tile), (work.wide, WIDE_TILE)):
        if len(items) == 0:
            continue
        shape = tile_shape(tile, head_dim, k_pool.element_size())
        attend_items_kernel[(len(items), k_pool.shape[1])](
            q,
            k_pool,
            v_pool,
            items,
            work.rows,
            work.positions,
            work.pages,
            unused if tree is None else tree.begin,
            unused if tree is None else tree.bits,
            unused if kv_scales is None else kv_scales.k,
            unused if kv_scales is None else kv_scales.v,
            out,
            work.partial_out,
            work.partial_lse,
            q.stride(0),
            k_pool.stride(0),
            k_pool.stride(1),
            scale if softcap is not None else scale * LOG2E,
            softcap or 1.0,
            work.window or 0,
            HQ=num_heads,
            G=work.group,
            D=head_dim,
            BLOCK_D=block_d,
            PAGE=work.block_size,
            BLOCK_M=tile,
            BLOCK_N=shape.block_n,
            HAS_WINDOW=work.window is not None,
            HAS_TREE=tree is not None,
            HAS_CAP=softcap is not None,
            HAS_SCALES=kv_scales is not None,
            TWO_LOOPS=tile == WIDE_TILE and work.window is None and tree is None,
            num_warps=shape.num_warps,
            num_stages=shape.num_stages,
        )
    if work.has_partials:
        merge_partials_kernel[(q.shape[0], num_heads)](
            work.partial_out,
            work.partial_lse,
            work.merge_begin,
            work.merge_list,
            out,
            HQ=num_heads,
            D=head_dim,
            BLOCK_D=block_d,
            BLOCK_P=8,
            num_warps=1,
        )


@dataclass(frozen=True, slots=True)
class TileShape:
    """How a kernel's tile is compiled: see the table in docs/kernels.md."""

    block_n: int  # keys a turn
    num_warps: int
    num_stages: int


def tile_shape(tile: int, head_dim: int, element_bytes: int) -> TileShape:
    """The shape that compiles without spills and keeps copies in flight, by tile height."""
    if tile == WIDE_TILE:
        return TileShape(64 if head_dim <= 128 else 32, 8, 3 if element_bytes <= 2 else 2)
    return TileShape(64 if head_dim <= 128 else 32, 4, 3 if element_bytes <= 2 else 2)


def _attend_torch(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    work: WorkTensors,
    scale: float,
    softcap: float | None,
    kv_scales: KVScales | None,
    tree: TreeMask | None,
    out: Tensor,
) -> None:
    """The same items, one after another, in float32."""
    partial_out, partial_lse = work.partial_out, work.partial_lse
    rows_of, pages, positions = work.rows.long(), work.pages.long(), work.positions.long()
    for item in [*work.narrow.tolist(), *work.wide.tolist()]:
        rows_begin, num_rows, begin, end, _, page_offset, partial, _ = item
        if item[NUM_ROWS] == 0:
            continue
        rows = rows_of[rows_begin : rows_begin + num_rows]
        n = torch.arange(begin, end, device=q.device)
        slots = pages[page_offset + n // work.block_size] * work.block_size + n % work.block_size
        k, v = k_pool[slots].float(), v_pool[slots].float()  # [L, Hkv, D]
        if kv_scales is not None:
            k, v = k * kv_scales.k[:, None], v * kv_scales.v[:, None]
        seen = _seen(n, positions[rows], work.window, tree, rows)
        o, lse = _attend_rows(q[rows].float(), k, v, seen, scale, softcap)
        if partial < 0:
            out[rows] = o.to(out.dtype)
        else:
            partial_out[partial : partial + num_rows] = o
            partial_lse[partial : partial + num_rows] = lse * LOG2E
    begins = work.merge_begin.tolist()
    for row in range(len(out)):
        merged = work.merge_list[begins[row] : begins[row + 1]].long()
        if len(merged):
            weights = torch.softmax(partial_lse[merged] / LOG2E, 0)  # [P, Hq]
            out[row] = (partial_out[merged] * weights[..., None]).sum(0).to(out.dtype)


def _seen(
    n: Tensor, positions: Tensor, window: int | None, tree: TreeMask | None, rows: Tensor
) -> Tensor:
    """[rows, L] bool."""
    positions = positions[:, None]
    seen = n <= positions
    near = seen if window is None else seen & (n > positions - window)
    if tree is None:
        return near
    node = n - tree.begin[rows].long()[:, None]
    bit = (tree.bits[rows, None] >> node.clamp(0, MAX_TREE_NODES - 1)) & 1
    is_near = torch.ones_like(seen) if window is None else n > positions - window
    return torch.where(node < 0, is_near, bit != 0)


def _attend_rows(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """q: [n, Hq, D]; k, v: [L, Hkv, D] -> o [n, Hq, D] and lse [n, Hq], 0 and -inf where a row sees
    nothing."""
    num_rows, num_heads, head_dim = q.shape
    q = q.view(num_rows, k.shape[1], -1, head_dim)  # [n, Hkv, G, D]
    scores = torch.einsum("nhgd,lhd->nhgl", q, k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen[:, None, None, :], -torch.inf)
    lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    o = torch.einsum("nhgl,lhd->nhgd", weights, v)
    return o.reshape(num_rows, num_heads, head_dim), lse.reshape(num_rows, num_heads)
