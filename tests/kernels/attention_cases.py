"""Steps of attention with their pools, and what they should give, computed densely in float64.

Used by the tests in the interpreter and by `benchmarks/gpu_check.py` on a GPU.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.triton.attention import KVScales, TreeMask
from umbel.kernels.triton.work_list import WorkList, plan_work
from umbel.kernels.triton.work_split import DeviceRates, HeadShape

# Few programs of small tiles: a program of the interpreter costs milliseconds.
FEW_PROCESSORS = DeviceRates(num_processors=4, programs_per_processor=1)


@dataclass(slots=True, kw_only=True)
class Case:
    """A forest of shared stretches with runs below them. A run is (parents, own keys, rows): it
    reads the stretches `parents`, then has `own` cached keys and `rows` new ones."""

    shared: list[int] = field(default_factory=list)  # keys of each stretch, placed in turn
    parents: list[int | None] = field(default_factory=list)  # of each stretch
    runs: list[tuple[int | None, int, int]]
    num_kv_heads: int = 2
    group: int = 3
    head_dim: int = 32
    block_size: int = 16
    chunk: int | None = 64
    window: int | None = None
    softcap: float | None = None
    trees: bool = False
    dtype: torch.dtype = torch.float32
    is_fp8: bool = False
    token_major: bool = True


CASES: dict[str, Case] = {
    "one key": Case(runs=[(None, 0, 1)]),
    "ragged decode": Case(runs=[(None, n - 1, 1) for n in (1, 5, 16, 17, 100, 257)]),
    "5000 keys": Case(runs=[(None, 4999, 1), (None, 2, 1)], chunk=None, num_kv_heads=1),
    "group of 1": Case(runs=[(None, 30, 1), (None, 70, 1)], group=1),
    "group of 7, heads of 80": Case(runs=[(None, 40, 1)], group=7, head_dim=80),
    "heads of 256": Case(runs=[(None, 40, 1)], num_kv_heads=1, head_dim=256),
    "blocks of 1": Case(runs=[(None, 40, 1), (None, 7, 1)], block_size=1),
    "blocks of 128": Case(runs=[(None, 140, 1)], block_size=128),
    "one level": Case(shared=[100], parents=[None], runs=[(0, own, 1) for own in (0, 3, 40, 90)]),
    "three levels": Case(
        shared=[96, 48, 31],
        parents=[None, 0, 0],
        runs=[(1, 9, 1)] * 5 + [(2, 20, 1)] * 3 + [(0, 0, 1), (None, 33, 1)],
        group=4,
    ),
    "cut inside of blocks": Case(
        shared=[37, 6], parents=[None, 0], runs=[(1, 0, 1), (1, 30, 1), (0, 3, 1)]
    ),
    "more rows than a tile": Case(
        shared=[70], parents=[None], runs=[(0, 4, 1)] * 11, group=8, num_kv_heads=1
    ),
    "extend": Case(runs=[(None, 0, 9), (None, 37, 20), (None, 64, 1), (None, 5, 50)]),
    "long prefill": Case(runs=[(None, 70, 130), (None, 0, 90)], num_kv_heads=1, group=2),
    "prefill and decode below one prefix": Case(
        shared=[80], parents=[None], runs=[(0, 0, 60), (0, 10, 1), (0, 2, 35)], num_kv_heads=1
    ),
    "window": Case(runs=[(None, 100, 1), (None, 3, 1), (None, 20, 40)], window=24),
    "window over a shared prefix": Case(
        shared=[100], parents=[None], runs=[(0, 5, 1), (0, 90, 1), (0, 0, 30)], window=40
    ),
    "window with long prefill": Case(runs=[(None, 60, 100)], window=33, num_kv_heads=1, group=1),
    "soft cap": Case(runs=[(None, 50, 1), (None, 0, 20)], softcap=1.5),
    "trees": Case(runs=[(None, n, 8) for n in (0, 45, 130)], trees=True),
    "trees of 64 below a prefix": Case(
        shared=[40], parents=[None], runs=[(0, 3, 64), (0, 20, 5)], trees=True, num_kv_heads=1
    ),
    "trees in a window": Case(runs=[(None, 100, 8)], trees=True, window=64),
    "heads before tokens": Case(
        shared=[40], parents=[None], runs=[(0, 3, 1), (0, 5, 1)], token_major=False
    ),
}


@dataclass(slots=True)
class Step:
    """A case with its tensors. Every slot that no row may see holds NaN."""

    case: Case
    work: WorkList
    q: Tensor
    k_pool: Tensor  # [slots, Hkv, D]
    v_pool: Tensor
    scales: KVScales | None
    tree: TreeMask | None
    expected: Tensor  # [T, Hq, D] float64
    scale: float


def build(case: Case, seed: int = 0) -> Step:
    """Draw the tensors of a case and compute what attention should give."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    placer = _Placer(case, rng)
    paths: list[list[int]] = []  # slots of each stretch's whole path
    stretches: list[KeyStretch] = []
    for length, parent in zip(case.shared, case.parents, strict=True):
        above = [] if parent is None else paths[parent]
        slots = placer.extend(above, length)
        paths.append(above + slots)
        stretches.append(KeyStretch(len(above), _ranges(slots), []))
    runs, tails, contexts = [], [], []
    for run_idx, (parent, own, num_rows) in enumerate(case.runs):
        above = [] if parent is None else paths[parent]
        slots = placer.extend(above, own + num_rows)
        runs.append(QueryRun(len(above) + own, num_rows))
        tails.append(KeyStretch(len(above), _ranges(slots)))
        contexts.append(above + slots)
        while parent is not None:
            stretches[parent].run_idxs.append(run_idx)
            parent = case.parents[parent]
    heads = HeadShape(
        num_kv_heads=case.num_kv_heads,
        group=case.group,
        head_dim=case.head_dim,
        element_bytes=case.dtype.itemsize,
    )
    used = [s for s in stretches if s.run_idxs]
    work = plan_work(
        runs,
        used,
        tails,
        heads=heads,
        block_size=case.block_size,
        rates=FEW_PROCESSORS,
        window=case.window,
        chunk=case.chunk,
    )
    return _with_tensors(case, work, runs, contexts, placer, generator, rng)


class _Placer:
    """Hands out blocks in random order; position p of a path lies at offset p % size of a block."""

    def __init__(self, case: Case, rng: np.random.Generator) -> None:
        self._size = case.block_size
        keys = sum(case.shared) + sum(own + rows for _, own, rows in case.runs)
        num_blocks = keys // self._size + 2 * (len(case.shared) + len(case.runs)) + 1
        self._free = rng.permutation(num_blocks).tolist()
        self.num_slots = num_blocks * self._size
        self.copies: list[tuple[int, int]] = []  # slots: from, to

    def extend(self, above: list[int], length: int) -> list[int]:
        """Slots of `length` more positions; inside of a block that is a copy of what is above."""
        slots: list[int] = []
        block = -1
        for position in range(len(above), len(above) + length):
            offset = position % self._size
            if offset == 0 or block < 0:
                block = self._free.pop()
                self.copies += [
                    (above[position - offset + i], block * self._size + i) for i in range(offset)
                ]
            slots.append(block * self._size + offset)
        return slots


def _with_tensors(
    case: Case,
    work: WorkList,
    runs: list[QueryRun],
    contexts: list[list[int]],
    placer: _Placer,
    generator: torch.Generator,
    rng: np.random.Generator,
) -> Step:
    shape = (placer.num_slots, case.num_kv_heads, case.head_dim)
    used = torch.tensor(sorted({slot for context in contexts for slot in context}))
    pools, factors = [], []
    for _ in range(2):
        values = torch.randn(shape, generator=generator)
        factor = torch.rand(case.num_kv_heads, generator=generator) + 0.5
        pool = torch.full(shape, torch.nan, dtype=case.dtype)
        pool = pool.to(torch.float8_e4m3fn) if case.is_fp8 else pool
        pool[used] = values[used].to(pool.dtype)
        for source, target in placer.copies:
            pool[target] = pool[source]
        if not case.token_major:
            pool = pool.transpose(0, 1).contiguous().transpose(0, 1)
        pools.append(pool)
        factors.append(factor if case.is_fp8 else torch.ones_like(factor))
    num_heads = case.num_kv_heads * case.group
    q = torch.randn(work.num_rows, num_heads, case.head_dim, generator=generator).to(case.dtype)
    tree, seen = _trees(case, runs, rng)
    k, v = (p.double() * f.double()[:, None] for p, f in zip(pools, factors, strict=True))
    expected = torch.cat(
        [
            _dense(q_run, k[slots], v[slots], run_seen, case.softcap)
            for q_run, slots, run_seen in zip(
                q.double().split([run.num_rows for run in runs]), contexts, seen, strict=True
            )
        ]
    )
    scales = KVScales(*factors) if case.is_fp8 else None
    return Step(case, work, q, *pools, scales, tree, expected, case.head_dim**-0.5)


def _trees(
    case: Case, runs: list[QueryRun], rng: np.random.Generator
) -> tuple[TreeMask | None, list[Tensor]]:
    """The tree masks, and for each run what its rows see: [rows, keys] bool."""
    seen, begins, bits = [], [], []
    for run in runs:
        positions = torch.arange(run.start, run.end)[:, None]
        keys = torch.arange(run.end)[None, :]
        near = torch.ones_like(keys >= 0) if case.window is None else keys > positions - case.window
        if case.trees:
            ancestors = np.eye(run.num_rows, dtype=bool)
            for node in range(1, run.num_rows):
                ancestors[node] |= ancestors[rng.integers(0, node)]
            in_tree = torch.zeros(run.num_rows, run.end, dtype=torch.bool)
            in_tree[:, run.start :] = torch.from_numpy(ancestors)
            seen.append(torch.where(keys < run.start, near, in_tree))
            begins += [run.start] * run.num_rows
            bits += [sum(1 << int(i) for i in np.flatnonzero(row)) for row in ancestors]
        else:
            seen.append((keys <= positions) & near)
    if not case.trees:
        return None, seen
    signed = [b - (1 << 64) if b >= 1 << 63 else b for b in bits]
    return TreeMask(torch.tensor(begins, dtype=torch.int32), torch.tensor(signed)), seen


def _dense(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, softcap: float | None) -> Tensor:
    """q: [n, Hq, D]; k, v: [L, Hkv, D]; all float64."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("nhd,lhd->nhl", q, k) / math.sqrt(q.shape[2])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    return torch.einsum("nhl,lhd->nhd", scores.softmax(-1), v)


def _ranges(slots: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for slot in slots:
        if ranges and sum(ranges[-1]) == slot:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((slot, 1))
    return ranges
