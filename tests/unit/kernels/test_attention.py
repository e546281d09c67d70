"""Paged attention against a plain float64 computation, over random forests of requests."""

import math
import random
from dataclasses import dataclass, field
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.kernels import attention_tasks
from umbel.kernels.attention import AttentionStep, attend_dense, attend_dense_plain, merge_partials
from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.native import threads


@dataclass
class Path:
    """A request: the slot of each position, and how many of the last positions are query rows."""

    slots: list[int]
    num_rows: int
    shared: list[tuple[int, int, int]] = field(default_factory=list)  # (stretch id, begin, end)

    @property
    def start(self) -> int:
        return len(self.slots) - self.num_rows


class Forest:
    """Random requests that share stretches of keys, in a pool that is NaN wherever nobody wrote."""

    def __init__(self, seed: int, num_slots: int = 6000, *, max_range: int = 40) -> None:
        self._random = random.Random(seed)
        self._blocks = [
            list(range(b, b + max_range)) for b in range(0, num_slots - max_range, max_range)
        ]
        self._random.shuffle(self._blocks)
        self.num_slots = num_slots
        self.paths: list[Path] = []
        self._num_stretches = 0

    def take(self, num_tokens: int) -> list[int]:
        slots: list[int] = []
        while len(slots) < num_tokens:
            slots += self._blocks.pop()[: num_tokens - len(slots)]
        return slots

    def add(self, num_tokens: int, num_rows: int) -> None:
        self.paths.append(Path(self.take(num_tokens), num_rows))

    def add_family(
        self, prefix: list[int], lengths: list[tuple[int, int]], up: Path | None
    ) -> None:
        """Requests below one prefix, each of (own tokens, rows). The prefix is a shared stretch and
        begins where the last stretch of `up` ends."""
        stem = Path(up.slots[: up.shared[-1][2]], 0, list(up.shared)) if up else Path([], 0)
        stem.shared.append((self._num_stretches, len(stem.slots), len(stem.slots) + len(prefix)))
        stem.slots += prefix
        self._num_stretches += 1
        for own, rows in lengths:
            self.paths.append(Path(stem.slots + self.take(own), rows, list(stem.shared)))

    def step(self, *, share: bool) -> AttentionStep:
        members: dict[tuple[int, int, int], list[int]] = {}
        for i, path in enumerate(self.paths):
            for stretch in path.shared if share else []:
                members.setdefault(stretch, []).append(i)
        shared = [
            KeyStretch(begin, as_ranges(self.paths[runs[0]].slots[begin:end]), runs)
            for (_, begin, end), runs in members.items()
        ]
        tails = []
        for path in self.paths:
            begin = path.shared[-1][2] if share and path.shared else 0
            tails.append(KeyStretch(begin, as_ranges(path.slots[begin:])))
        return AttentionStep([QueryRun(p.start, p.num_rows) for p in self.paths], shared, tails)

    @property
    def num_rows(self) -> int:
        return sum(path.num_rows for path in self.paths)


def as_ranges(slots: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for slot in slots:
        if ranges and sum(ranges[-1]) == slot:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((slot, 1))
    return ranges


@dataclass
class Tensors:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float


def make_tensors(
    forest: Forest,
    heads: int = 3,
    kv_heads: int = 1,
    dim: int = 32,
    dtype: torch.dtype = torch.float32,
) -> Tensors:
    generator = torch.Generator().manual_seed(7)
    k = torch.randn(kv_heads, forest.num_slots, dim, generator=generator).to(dtype)
    v = torch.randn(kv_heads, forest.num_slots, dim, generator=generator).to(dtype)
    q = torch.randn(forest.num_rows, heads, dim, generator=generator).to(dtype)
    unused = torch.ones(forest.num_slots, dtype=torch.bool)
    for path in forest.paths:
        unused[path.slots] = False
    k[:, unused] = math.nan
    v[:, unused] = math.nan
    return Tensors(q, k, v, 1.3 / math.sqrt(dim))


def dense_attention(forest: Forest, t: Tensors, window: int | None = None) -> torch.Tensor:
    """[T, Hq, D] float64, one row and head at a time."""
    group = t.q.shape[1] // t.k.shape[0]
    out, row = torch.zeros(t.q.shape, dtype=torch.float64), 0
    for path in forest.paths:
        for i in range(path.start, len(path.slots)):
            low = 0 if window is None else max(0, i - window + 1)
            slots = path.slots[low : i + 1]
            k = t.k[:, slots].double().repeat_interleave(group, 0)
            v = t.v[:, slots].double().repeat_interleave(group, 0)
            scores = torch.einsum("hd,hkd->hk", t.q[row].double(), k) * t.scale
            out[row] = torch.einsum("hk,hkd->hd", scores.softmax(-1), v)
            row += 1
    return out


def check(forest: Forest, t: Tensors, window: int | None = None) -> None:
    """In float32; and in bfloat16, which the native kernel computes where there is one."""
    check_as_it_is(forest, t, window, 1e-5)
    half = Tensors(t.q.bfloat16(), t.k.bfloat16(), t.v.bfloat16(), t.scale)
    check_as_it_is(forest, half, window, 1e-2)


def check_as_it_is(forest: Forest, t: Tensors, window: int | None, tolerance: float) -> None:
    wanted = dense_attention(forest, t, window)
    for share in (True, False):
        step = forest.step(share=share)
        for _ in range(2):  # two layers: the second reuses tables and buffers
            got = step.attend(t.q, t.k, t.v, scale=t.scale, window=window)

            assert got.dtype == t.q.dtype
            torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


def test_a_single_token_context_returns_its_value() -> None:
    forest = Forest(0)
    forest.add(1, 1)
    t = make_tensors(forest)

    got = forest.step(share=True).attend(t.q, t.k, t.v, scale=t.scale)

    torch.testing.assert_close(got, t.v[:, forest.paths[0].slots].expand(3, 1, 32).transpose(0, 1))


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (3, 1), (6, 2), (8, 1)])
@pytest.mark.parametrize("dim", [32, 64])
def test_decode_rows_of_unlike_length_match_dense_attention(
    heads: int, kv_heads: int, dim: int
) -> None:
    forest = Forest(1)
    for length in (1, 2, 40, 41, 100, 333, 900):
        forest.add(length, 1)

    check(forest, make_tensors(forest, heads, kv_heads, dim))


def test_a_lone_decode_row_reads_a_stretch_of_slots_in_place() -> None:
    forest = Forest(2, max_range=600)
    forest.add(600, 1)

    check(forest, make_tensors(forest, 6, 2, 64))


@pytest.mark.parametrize("rows", [2, 4, 16, 17, 60])
def test_prefill_on_a_cached_prefix_matches_dense_attention(rows: int) -> None:
    forest = Forest(3)
    forest.add(rows, rows)
    forest.add(90 + rows, rows)
    forest.add(1 + rows, rows)

    check(forest, make_tensors(forest, 6, 2))


def test_a_prefix_on_two_levels_is_read_once_for_all_rows_below() -> None:
    forest = Forest(4, max_range=300)
    forest.add_family(forest.take(310), [(5, 1), (70, 1)], None)
    forest.add_family(forest.take(40), [(3, 1), (1, 1), (30, 25)], forest.paths[0])
    forest.add(20, 3)

    check(forest, make_tensors(forest, 6, 2, 64))


@pytest.mark.parametrize("rows", [2, 20])
def test_query_only_rows_match_though_their_first_position_is_shared(rows: int) -> None:
    # Position `start` itself lies in the shared stretch, so the first row sees nothing of its tail.
    forest = Forest(5)
    prefix = forest.take(50)
    forest.add_family(prefix, [(rows - 1, rows), (0, 1), (4, 1)], None)

    check(forest, make_tensors(forest, 3, 1))


@pytest.mark.parametrize("window", [1, 7, 64, 300, 5000])
def test_a_sliding_window_hides_keys_that_are_too_far(window: int) -> None:
    forest = Forest(6, max_range=280)
    forest.add_family(forest.take(290), [(5, 1), (100, 1), (30, 25), (3, 4)], None)
    forest.add_family(forest.take(33), [(2, 1), (400, 300)], forest.paths[0])
    forest.add(600, 80)
    forest.add(9, 9)

    check(forest, make_tensors(forest, 6, 2), window)


def test_bfloat16_stays_within_the_rounding_of_its_values() -> None:
    forest = Forest(7, max_range=300)
    forest.add_family(forest.take(300), [(5, 1), (70, 1), (40, 30)], None)
    t = make_tensors(forest, 6, 2, 64, torch.bfloat16)

    check_as_it_is(forest, t, None, 1e-2)
    check_as_it_is(forest, t, 80, 1e-2)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    heads=st.sampled_from([(1, 1), (3, 1), (8, 1), (4, 2)]),
    window=st.sampled_from([None, None, 1, 20, 150]),
    max_range=st.sampled_from([7, 40, 300]),
    piece_keys=st.sampled_from([7, 32, 1024]),
)
def test_random_forests_match_dense_attention(
    seed: int, heads: tuple[int, int], window: int | None, max_range: int, piece_keys: int
) -> None:
    forest, rng = Forest(seed, max_range=max_range), random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        up = rng.choice(forest.paths) if forest.paths and rng.random() < 0.5 else None
        lengths = []
        for _ in range(rng.randint(2, 5)):
            own = rng.choice([1, 2, 17, 60])
            lengths.append((own, rng.randint(1, own)))
        forest.add_family(forest.take(rng.choice([1, 16, 120, 300])), lengths, up)
    forest.add(rng.choice([1, 30, 200]), 1)

    with mock.patch.object(attention_tasks, "PIECE_KEYS", piece_keys):
        check(forest, make_tensors(forest, *heads), window)


def test_a_long_row_is_cut_the_same_alone_and_beside_others() -> None:
    forest = Forest(9, 9000, max_range=500)
    forest.add(2500, 1)
    t = make_tensors(forest, 6, 2, 64, torch.bfloat16)
    alone = forest.step(share=False).attend(t.q, t.k, t.v, scale=t.scale)
    for length in (3, 1024, 2100):
        forest.add(length, 1)
    t.q = torch.cat([t.q, torch.randn(3, 6, 64).bfloat16()])
    step = forest.step(share=False)

    beside = step.attend(t.q, t.k, t.v, scale=t.scale)

    if threads.is_available():
        assert torch.equal(beside[:1], alone)
    lists = step.tasks(None, 3, 2)
    lengths = [
        int(lists.ranges[first:stop, 1].sum())
        for first, stop in lists.tasks[lists.tasks[:, 2] == 0][:, :2]
    ]
    assert sorted(lengths) == [3, 52, 452, 1024, 1024, 1024, 1024, 1024]


@pytest.mark.parametrize("num_rows", [1, 16, 17, 100, 512, 1000])
def test_a_runs_rows_are_shared_out_evenly_and_the_tasks_that_see_most_come_first(
    num_rows: int,
) -> None:
    forest = Forest(10, 9000, max_range=500)
    forest.add(num_rows + 40, num_rows)

    lists = forest.step(share=False).tasks(None, 3, 2)

    tasks = lists.tasks[lists.tasks[:, 2] == 1]
    rows = [list(range(first, first + count)) for first, count in tasks[:, 3:]]
    sizes = [len(of_task) for of_task in rows]
    assert sorted(row for of_task in rows for row in of_task) == list(range(num_rows))
    assert max(sizes) - min(sizes) <= 1
    assert 3 * max(sizes) <= attention_tasks.MAX_TASK_QUERIES
    seen = [int(lists.entries[of_task, 2].sum()) for of_task in rows]
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_a_request_whose_keys_are_nan_spoils_no_other(dtype: torch.dtype, tolerance: float) -> None:
    forest = Forest(8)
    forest.add_family(forest.take(60), [(5, 1), (9, 1), (30, 20), (4, 3)], None)
    t = make_tensors(forest, 6, 2, dtype=dtype)
    wanted = dense_attention(forest, t)
    t.k[:, forest.paths[1].slots[-1]] = math.nan
    t.q[1] = math.nan

    got = forest.step(share=True).attend(t.q, t.k, t.v, scale=t.scale).double()

    assert got[1].isnan().all()
    others = [row for row in range(forest.num_rows) if row != 1]
    torch.testing.assert_close(got[others], wanted[others], rtol=tolerance, atol=tolerance)


def test_queries_may_be_a_view_of_a_fused_projection() -> None:
    forest = Forest(9)
    forest.add(40, 1)
    forest.add(50, 40)
    t = make_tensors(forest, 6, 2)
    fused = torch.cat([t.q, torch.zeros(forest.num_rows, 4, 32)], 1)
    t.q = fused[:, :6]
    assert not t.q.is_contiguous()

    check(forest, t)


def test_a_row_without_any_key_is_refused() -> None:
    step = AttentionStep([QueryRun(0, 1), QueryRun(0, 1)], [], [KeyStretch(0, [(0, 1)])] * 2)
    step.attend(torch.ones(2, 1, 8), torch.ones(1, 4, 8), torch.ones(1, 4, 8), scale=1.0)

    step = AttentionStep([QueryRun(0, 1)] * 2, [], [KeyStretch(0, [(0, 1)]), KeyStretch(0, [])])
    with pytest.raises(AssertionError, match="row 1 sees no key"):
        step.attend(torch.ones(2, 1, 8), torch.ones(1, 4, 8), torch.ones(1, 4, 8), scale=1.0)


def test_runs_and_tails_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="0 tails for 1 runs"):
        AttentionStep([QueryRun(0, 1)], [], [])


def test_partials_merge_as_if_computed_at_once_and_empty_ones_have_no_weight() -> None:
    scores = torch.randn(5, 2, 30, dtype=torch.float64) * 40
    values = torch.randn(30, 8, dtype=torch.float64)
    parts = [scores[..., :1], scores[..., 1:7], scores[..., 7:]]
    o = [p.softmax(-1) @ v for p, v in zip(parts, values.split([1, 6, 23]), strict=True)]
    lse = [p.logsumexp(-1) for p in parts]
    table = torch.arange(15).view(3, 5).t()
    empty = torch.full((5, 1), 15)

    got = merge_partials(
        torch.cat([*o, torch.zeros(1, 2, 8)]).float(),
        torch.cat([*lse, torch.full((1, 2), -math.inf)]).float(),
        torch.cat([table, empty], 1),
    )

    torch.testing.assert_close(got.double(), scores.softmax(-1) @ values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("is_causal", "is_masked"), [(False, False), (True, False), (False, True)])
def test_the_flash_kernel_and_the_plain_product_agree(is_causal: bool, is_masked: bool) -> None:
    q, k, v = torch.randn(3, 2, 2, 9, 16).unbind(0)
    mask = None
    if is_masked:
        mask = torch.zeros(1, 1, 9, 9).masked_fill(torch.rand(9, 9) < 0.4, -math.inf)
        mask[..., 0] = 0.0

    fast = attend_dense(q, k, v, scale=0.2, is_causal=is_causal, mask=mask)
    plain = attend_dense_plain(q, k, v, scale=0.2, is_causal=is_causal, mask=mask)

    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-5)
