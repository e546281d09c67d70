"""Attention on a GPU: all cases of the tests against float64, then large shapes, timed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from attention_cases import CASES, Case, build
from gpu_timing import COLD_BYTES, Check, Session, relative_error
from torch import Tensor

from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.triton.attention import KVScales, TreeMask, attend
from umbel.kernels.triton.work_list import WorkList, plan_work
from umbel.kernels.triton.work_split import DeviceRates, HeadShape
from umbel.kernels.triton.work_tensors import load_work

BLOCK = 16
HEADS = HeadShape(num_kv_heads=8, group=4, head_dim=128, element_bytes=2)  # Llama 3.1 8B
TOLERANCES = {torch.float32: 2e-3, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def check_cases(session: Session) -> None:
    """The cases that the interpreter runs, in each dtype. bfloat16 on all of them."""
    names = list(CASES) if session.is_timed else ["ragged decode", "three levels", "extend"]
    for name in names:
        dtypes = [torch.bfloat16]
        if name in ("three levels", "extend", "trees"):
            dtypes += [torch.float16, torch.float32]
        for dtype in dtypes:
            _check_case(session, name, replace(CASES[name], dtype=dtype))
    runs: list[tuple[int | None, int, int]] = [(0, 20, 1), (0, 70, 1), (0, 0, 12)]
    fp8 = Case(shared=[50], parents=[None], runs=runs, dtype=torch.bfloat16, is_fp8=True)
    _check_case(session, "fp8 pool", fp8)


def _check_case(session: Session, name: str, case: Case) -> None:
    step = build(case)
    device = session.device
    scales, tree = step.scales, step.tree
    if scales is not None:
        scales = KVScales(scales.k.to(device), scales.v.to(device))
    if tree is not None:
        tree = TreeMask(tree.begin.to(device), tree.bits.to(device))
    work = load_work(
        step.work, num_heads=case.num_kv_heads * case.group, head_dim=case.head_dim, device=device
    )
    out = torch.full_like(step.q, torch.nan, device=device)
    attend(
        step.q.to(device),
        step.k_pool.to(device),
        step.v_pool.to(device),
        work,
        scale=step.scale,
        softcap=case.softcap,
        kv_scales=scales,
        tree=tree,
        out=out,
        backend="triton",
    )
    error = relative_error(out.cpu(), step.expected)
    title = f"attention: {name}, {str(case.dtype)[6:]}"
    session.add(Check(name=title, error=error, tolerance=TOLERANCES[case.dtype]))


@dataclass(slots=True, kw_only=True)
class Shape:
    """Requests of one timed launch: `prefix` keys shared by all, then own keys and new rows."""

    name: str
    own: Sequence[int]
    prefix: int = 0
    num_rows: int = 1  # of each request
    share: bool = True
    is_fp8: bool = False
    is_tree: bool = False
    target: float | None = None


def _shapes() -> list[Shape]:
    rng = np.random.default_rng(0)
    return [
        Shape(name="decode, 1 x 4096", own=[4096], target=0.3),
        Shape(name="decode, 1 x 32768", own=[32768], target=0.75),
        Shape(name="decode, 64 x 4096", own=[4096] * 64, target=0.8),
        Shape(
            name="decode, 64 of 100 to 8192", own=rng.integers(100, 8192, 64).tolist(), target=0.8
        ),
        Shape(name="decode, 65536 and 63 x 512", own=[65536] + [512] * 63, target=0.75),
        Shape(name="decode, 256 x 1024", own=[1024] * 256, target=0.8),
        Shape(name="decode, 64 x 4096, fp8 pool", own=[4096] * 64, is_fp8=True, target=0.6),
        Shape(name="shared prefix, 64 rows, 4096 + 256", own=[256] * 64, prefix=4096, target=0.5),
        Shape(name="  the same, not shared", own=[256] * 64, prefix=4096, share=False),
        Shape(name="shared prefix, 256 rows, 4096 + 64", own=[64] * 256, prefix=4096),
        Shape(name="  the same, not shared", own=[64] * 256, prefix=4096, share=False),
        Shape(
            name="trees, 16 x 8 over 4096", own=[4096] * 16, num_rows=8, is_tree=True, target=0.65
        ),
        Shape(name="prefill, 2048", own=[0], num_rows=2048, target=0.35),
        Shape(name="prefill, 8192", own=[0], num_rows=8192, target=0.45),
        Shape(name="prefill, 512 over 8192", own=[8192], num_rows=512, target=0.35),
    ]


_SMALL_SHAPES = [
    Shape(name="decode, 2 ragged", own=[5, 90]),
    Shape(name="shared prefix, 3 rows", own=[4, 9, 20], prefix=64),
    Shape(name="not shared, 3 rows", own=[4, 9, 20], prefix=64, share=False),
]


def check_shapes(session: Session) -> None:
    """Bytes are those of the keys, each read once per item, queries, outputs and partial results;
    "not shared" counts what sharing would read, so that both lines compare."""
    times: dict[str, float] = {}
    last = ""
    for shape in _shapes() if session.is_timed else _SMALL_SHAPES:
        if not session.has_time(40):
            session.add_row("left out", check=shape.name)
            continue
        time_us = _check_shape(session, shape)
        if shape.prefix:
            if shape.share:
                last = shape.name
                times[last] = time_us
            else:
                session.add_row("sharing", shape=last, gain=time_us / times[last])


def _check_shape(session: Session, shape: Shape) -> float:
    heads = replace(HEADS, element_bytes=1) if shape.is_fp8 else HEADS
    if not session.is_timed:
        heads = HeadShape(num_kv_heads=1, group=4, head_dim=32, element_bytes=2)
    problem = _Problem(session.device, shape, heads)
    num_bytes, flops = problem.num_bytes(), problem.flops()
    copies = 1
    if session.is_timed and num_bytes < COLD_BYTES:
        copies = min(8, int(COLD_BYTES // num_bytes) + 1)
    problems = [problem, *[_Problem(session.device, shape, heads) for _ in range(copies - 1)]]
    out = problem.run()
    rows = sorted({0, len(out) // 2, len(out) - 1})
    error = relative_error(out[rows], torch.stack([problem.expected(row) for row in rows]))
    error = error if bool(out.isfinite().all()) else float("nan")
    time_us = session.time_us([one.run for one in problems])
    session.add(
        Check(
            name=f"attention: {shape.name}",
            error=error,
            tolerance=1e-2,
            time_us=time_us,
            num_bytes=num_bytes,
            flops=flops,
            target=shape.target,
            note=f"chunk {problem.work.chunk}, {problem.num_items} items",
        )
    )
    return time_us


class _Problem:
    """A shape's plan and tensors. Pools are random, their spare block holds NaN."""

    def __init__(self, device: torch.device, shape: Shape, heads: HeadShape) -> None:
        self._shape = shape
        self._heads = heads
        sizes = [-(-(own + shape.num_rows) // BLOCK) for own in shape.own]
        num_prefix = -(-shape.prefix // BLOCK)
        assert shape.prefix % BLOCK == 0, "so that own keys begin a block"
        order = torch.randperm(num_prefix + sum(sizes)).tolist()
        prefix, order = order[:num_prefix], order[num_prefix:]
        self._blocks = []
        for size in sizes:
            self._blocks.append(prefix + order[:size])
            order = order[size:]
        self.work = self._plan()
        self.num_items = len(self.work.narrow) + len(self.work.wide)
        num_blocks = num_prefix + sum(sizes) + 1
        pool = (num_blocks * BLOCK, heads.num_kv_heads, heads.head_dim)
        dtype = torch.float8_e4m3fn if shape.is_fp8 else torch.bfloat16
        self._pools = []
        for _ in range(2):
            values = torch.randn(pool, dtype=torch.bfloat16, device=device)
            values[-BLOCK:] = torch.nan
            self._pools.append(values.to(dtype))
        num_rows, num_heads = self.work.num_rows, heads.num_kv_heads * heads.group
        self._q = torch.randn(
            num_rows, num_heads, heads.head_dim, dtype=torch.bfloat16, device=device
        )
        self._out = torch.full_like(self._q, torch.nan)
        self._tensors = load_work(
            self.work, num_heads=num_heads, head_dim=heads.head_dim, device=device
        )
        self._scales = self._tree = None
        if shape.is_fp8:
            ones = torch.ones(heads.num_kv_heads, device=device)
            self._scales = KVScales(ones, ones)
        if shape.is_tree:  # a chain: each node sees all before it
            node = torch.arange(num_rows, device=device) % shape.num_rows
            begin = torch.tensor(shape.own, device=device).repeat_interleave(shape.num_rows)
            self._tree = TreeMask(begin.int(), (2 << node) - 1)

    def run(self) -> Tensor:
        return attend(
            self._q,
            *self._pools,
            self._tensors,
            scale=self._heads.head_dim**-0.5,
            kv_scales=self._scales,
            tree=self._tree,
            out=self._out,
            backend="triton",
        )

    def expected(self, row: int) -> Tensor:
        """[Hq, D] float64 of one row."""
        run_idx, heads = row // self._shape.num_rows, self._heads
        blocks = torch.tensor(self._blocks[run_idx], device=self._q.device)
        slots = (blocks[:, None] * BLOCK + torch.arange(BLOCK, device=blocks.device)).view(-1)
        slots = slots[: int(self.work.positions[row]) + 1]
        k, v = (pool[slots].double() for pool in self._pools)
        q = self._q[row].double().view(heads.num_kv_heads, heads.group, heads.head_dim)
        scores = torch.einsum("hgd,lhd->hgl", q, k) * heads.head_dim**-0.5
        return torch.einsum("hgl,lhd->hgd", scores.softmax(-1), v).flatten(0, 1)

    def num_bytes(self) -> float:
        """With each key read once for all rows that share it."""
        keys = self._shape.prefix + sum(own + self._shape.num_rows for own in self._shape.own)
        heads = self._heads
        head_rows = heads.num_kv_heads * heads.group
        row_bytes = head_rows * heads.head_dim * 2 * 2
        partial_bytes = head_rows * (heads.head_dim + 1) * 8
        kv = keys * heads.num_kv_heads * heads.head_dim * 2 * heads.element_bytes
        return kv + self.work.num_rows * row_bytes + self.work.num_partials * partial_bytes

    def flops(self) -> float:
        """Of the pairs of row and visible key."""
        pairs = float((self.work.positions.astype(np.int64) + 1).sum())
        return 4.0 * self._heads.num_kv_heads * self._heads.group * self._heads.head_dim * pairs

    def _plan(self) -> WorkList:
        shape = self._shape
        prefix = shape.prefix // BLOCK if shape.share else 0
        runs = [QueryRun(shape.prefix + own, shape.num_rows) for own in shape.own]
        tails = []
        for run, blocks in zip(runs, self._blocks, strict=True):
            ranges = [(block * BLOCK, BLOCK) for block in blocks[prefix:]]
            short = len(blocks) * BLOCK - run.end
            ranges[-1] = (ranges[-1][0], BLOCK - short)
            tails.append(KeyStretch(prefix * BLOCK, ranges))
        shared = []
        if prefix:
            ranges = [(block * BLOCK, BLOCK) for block in self._blocks[0][:prefix]]
            shared.append(KeyStretch(0, ranges, list(range(len(runs)))))
        return plan_work(
            runs, shared, tails, heads=self._heads, block_size=BLOCK, rates=DeviceRates()
        )
