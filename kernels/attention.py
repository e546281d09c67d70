"""Paged attention over a ragged batch whose rows share stretches of keys; the torch implementation.

The runner builds one `AttentionStep` per step and calls `attend` in every layer. The keys of a
row are split into disjoint parts: stretches shared with other rows, read once for all of them,
and a private tail. Each part yields (o, lse); parts merge by log-sum-exp, so how the keys are
split never changes the result beyond rounding (Hydragen, arXiv 2402.05099).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umbel.kernels.attention_parts import KeyStretch, Part, QueryRun, split_into_parts
from umbel.kernels.attention_tasks import MAX_TASK_QUERIES, TaskLists
from umbel.kernels.native import threads
from umbel.kernels.native.threads import float_bits


class AttentionStep:
    """The split of one step's attention, built once and used by all layers.

    runs: the query rows, numbered 0..T-1 over the runs in order. shared: stretches of keys wholly
    visible to all rows of the runs they list. tails: one per run, causal: the row at position p
    sees the keys at positions <= p. Together they must cover each position <= p of each row
    exactly once.
    """

    def __init__(
        self, runs: list[QueryRun], shared: list[KeyStretch], tails: list[KeyStretch]
    ) -> None:
        if len(tails) != len(runs):
            raise ValueError(f"got {len(tails)} tails for {len(runs)} runs; every run has one tail")
        self._runs = runs
        self._shared = shared
        self._tails = tails
        # By window and queries per KV head.
        self._works: dict[tuple[int | None, int], _Work] = {}
        self._tasks: dict[tuple[int | None, int], TaskLists] = {}

    def attend(
        self, q: Tensor, k_pool: Tensor, v_pool: Tensor, *, scale: float, window: int | None = None
    ) -> Tensor:
        """Attention of all rows of the step in one layer.

        q: [T, Hq, D]; k_pool, v_pool: [Hkv, slots, D] of the same dtype, one layer of the pool,
        with the step's own keys already written. window: a key at position j is visible to a row
        at position i iff 0 <= i - j < window; None: all j <= i. Scores and sums are float32.
        Returns [T, Hq, D] of q's dtype.
        """
        num_rows, num_heads, _ = q.shape
        group = num_heads // k_pool.shape[0]
        if _is_native(q, group):
            return self._attend_natively(q, k_pool, v_pool, scale, window, group)
        work = self._works.get((window, group))
        if work is None:
            parts = split_into_parts(self._runs, self._shared, self._tails, window, group)
            work = self._works[window, group] = _Work(parts, num_rows, k_pool)
        return work.run(q, k_pool, v_pool, scale)

    def _attend_natively(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        scale: float,
        window: int | None,
        group: int,
    ) -> Tensor:
        from umbel.kernels.native.attention import attend  # compiles on the first import

        tasks = self.tasks(window, group, k_pool.shape[0])
        return attend(tasks, q, k_pool, v_pool, float_bits(scale))

    def tasks(self, window: int | None, group: int, num_kv_heads: int) -> TaskLists:
        """What the native kernel computes for layers of this kind."""
        tasks = self._tasks.get((window, group))
        if tasks is None:
            tasks = self._tasks[window, group] = TaskLists(
                self._runs,
                self._shared,
                self._tails,
                window=window,
                group=group,
                num_kv_heads=num_kv_heads,
            )
        return tasks


def _is_native(q: Tensor, group: int) -> bool:
    """Whether the native kernel computes this: it has the same result as the torch parts."""
    return (
        q.dtype == torch.bfloat16
        and q.shape[2] % 32 == 0
        and group <= MAX_TASK_QUERIES
        and q.device.type == "cpu"
        and q.stride(1) == q.shape[2]
        and threads.is_available()
    )


class _Work:
    """The parts that one kind of layer computes, and the table that merges them."""

    def __init__(self, parts: list[Part], num_rows: int, pool: Tensor) -> None:
        offset = 0
        self._parts: list[_PlacedPart] = []
        for part in parts:
            self._parts.append(_PlacedPart(part, offset, pool))
            offset += len(part.rows)
        self._num_partials = offset
        table = _merge_table(parts, num_rows)
        self._is_identity = np.array_equal(table[:, 0], np.arange(offset))
        self._table = torch.from_numpy(table).to(pool.device)
        gathered = max((len(p.index) for p in self._parts if p.index is not None), default=0)
        self._k_buffer = pool.new_empty(gathered, pool.shape[2])
        self._v_buffer = pool.new_empty(gathered, pool.shape[2])

    def run(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, scale: float) -> Tensor:
        _, num_heads, head_dim = q.shape
        if self._table.shape[1] == 1:
            o = q.new_empty(self._num_partials, num_heads, head_dim)
            lse = None
        else:
            o = q.new_empty(self._num_partials + 1, num_heads, head_dim, dtype=torch.float32)
            lse = q.new_empty(self._num_partials + 1, num_heads, dtype=torch.float32)
            o[-1].zero_()  # the empty part: weight exp(-inf) on a finite value
            lse[-1].fill_(-torch.inf)
        for part in self._parts:
            k, v = part.keys(k_pool, self._k_buffer), part.keys(v_pool, self._v_buffer)
            part.compute(q, k, v, scale, o, lse)
        if lse is None:
            return o if self._is_identity else o.index_select(0, self._table.view(-1))
        return merge_partials(o, lse, self._table).to(q.dtype)


class _PlacedPart:
    """A part with its tensors, and its place in the list of partial results."""

    def __init__(self, part: Part, offset: int, pool: Tensor) -> None:
        num_kv_heads, num_slots, _ = pool.shape
        self._part = part
        self._offset = offset
        first, num_rows = int(part.rows[0]), len(part.rows)
        is_stretch = np.array_equal(part.rows, np.arange(first, first + num_rows))
        self._row_slice = slice(first, first + num_rows) if is_stretch else None
        self._rows = torch.from_numpy(part.rows).to(pool.device)
        self._mask = None if part.mask is None else torch.from_numpy(part.mask).to(pool.device)
        self.index: Tensor | None = None  # [B * Hkv * L] rows of the pool seen as [Hkv * slots, D]
        if isinstance(part.slots, slice):
            return
        heads = np.arange(num_kv_heads)[None, :, None] * num_slots
        self.index = torch.from_numpy((heads + part.slots[:, None]).reshape(-1)).to(pool.device)

    def keys(self, pool: Tensor, buffer: Tensor) -> Tensor:
        """[B, Hkv, L, D] of the part's slots: a view of the pool, or gathered into `buffer`."""
        num_kv_heads, _, head_dim = pool.shape
        if isinstance(self._part.slots, slice):
            return pool[:, self._part.slots].unsqueeze(0)
        assert self.index is not None
        out = buffer[: len(self.index)]
        torch.index_select(pool.view(-1, head_dim), 0, self.index, out=out)
        return out.view(self._part.batch, num_kv_heads, -1, head_dim)

    def compute(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, o: Tensor, lse: Tensor | None
    ) -> None:
        """Store the partial results of the rows in o: [N, Hq, D] and lse: [N, Hq]."""
        part, num_kv_heads = self._part, k.shape[1]
        head_dim, group = q.shape[2], q.shape[1] // num_kv_heads
        q = q[self._row_slice] if self._row_slice is not None else q.index_select(0, self._rows)
        q = q.view(part.batch, -1, num_kv_heads, group, head_dim)  # [B, n, Hkv, g, D]
        if part.is_folded:
            # The heads of a GQA group are query rows: each key is read once for all of them.
            split = (part.batch, num_kv_heads, q.shape[1], group)
            q = q.transpose(1, 2).flatten(2, 3)  # [B, Hkv, n * g, D]
        else:
            # The heads of a GQA group are a batch over the same keys: the rows stay in causal
            # order.
            q = q[0].permute(2, 1, 0, 3)  # [g, Hkv, n, D]
            k, v = k.expand(group, -1, -1, -1), v.expand(group, -1, -1, -1)
        part_o, part_lse = attend_dense(
            q, k, v, scale=scale, is_causal=part.is_causal, mask=self._mask
        )
        if part.is_folded:
            part_o = part_o.view(*split, head_dim).transpose(1, 2)  # [B, n, Hkv, g, D]
            part_lse = part_lse.view(split).transpose(1, 2)
        else:
            part_o = part_o.permute(2, 1, 0, 3).unsqueeze(0)  # [1, n, Hkv, g, D]
            part_lse = part_lse.permute(2, 1, 0).unsqueeze(0)
        place = slice(self._offset, self._offset + len(self._rows))
        o[place].view(part_o.shape).copy_(part_o)
        if lse is not None:
            lse[place].view(part_lse.shape).copy_(part_lse)


def attend_dense(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, is_causal: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention of q over all keys, and the log-sum-exp of its scores.

    q: [B, H, n, D]; k, v: [B, H, L, D], any strides with a dense last dimension; L >= 1.
    is_causal (n == L, no mask): row i sees keys 0..i. mask: [B or 1, 1, n, L] float32, 0 or -inf.
    Returns o: [B, H, n, D] of q's dtype and lse: [B, H, n] float32; both are undefined in rows
    that see no key.

    On the CPU this is torch's flash kernel, called below `scaled_dot_product_attention` because
    only the operator returns the log-sum-exp. Batched products with a softmax between them are as
    fast for one row per sequence, but three to five times slower for prefill, and round bfloat16
    scores.
    """
    if q.device.type != "cpu":
        return attend_dense_plain(q, k, v, scale=scale, is_causal=is_causal, mask=mask)
    o, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return o, lse


def attend_dense_plain(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, is_causal: bool, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`attend_dense` in elementary operations: for other devices, and to test against."""
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * scale
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~visible, -torch.inf)
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    return torch.matmul(torch.exp(scores - lse.unsqueeze(-1)), v.float()).to(q.dtype), lse


def merge_partials(o: Tensor, lse: Tensor, table: Tensor) -> Tensor:
    """Join partial results of disjoint sets of keys.

    o: [N, Hq, D] and lse: [N, Hq], float32; an empty part is o = 0, lse = -inf. table: [T, P]
    int64, the partials of each row, of which at least one is not empty. Returns [T, Hq, D]
    float32.
    """
    num_rows, width = table.shape
    flat = table.view(-1)
    weights = lse.index_select(0, flat).view(num_rows, width, -1).softmax(1)  # [T, P, Hq]
    parts = o.index_select(0, flat).view(num_rows, width, *o.shape[1:])  # [T, P, Hq, D]
    return parts.mul_(weights.unsqueeze(-1)).sum(1)


def _merge_table(parts: list[Part], num_rows: int) -> NDArray[np.int64]:
    """[T, P]: the partials of each row, in order; where it has fewer than P, one past the last."""
    is_result = np.concatenate([part.is_result for part in parts])
    rows = np.concatenate([part.rows for part in parts])[is_result]
    partials = np.flatnonzero(is_result)
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=num_rows)
    assert counts.min() > 0, f"row {counts.argmin()} sees no key: the plan does not cover it"
    table = np.full((num_rows, counts.max()), len(is_result))
    column = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    table[rows[order], column] = partials[order]
    return table
