"""The attention plan: every position once, shared stretches once for all, when that pays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.radix_cache import (
    AttentionPlan,
    CutCost,
    Lease,
    Namespace,
    RadixCache,
    RunSpan,
    SlotRange,
    TokenKind,
    plan_attention,
)

HERE = Namespace("model")
FREE = CutCost(row_tokens=0.0, segment_tokens=0.0)


def _path(cache: RadixCache, tokens: list[int]) -> Lease:
    lease = cache.lease(HERE)
    passed = lease.advance(tokens, 0, len(tokens))
    lease.append(tokens, passed, len(tokens), kind=TokenKind.PROMPT)
    cache.commit_step()
    return lease


def _star(num_leaves: int, num_shared: int, num_own: int, block_size: int = 4) -> list[RunSpan]:
    """Runs of one row at the end of paths that have a common prefix."""
    cache = RadixCache(4096, block_size)
    shared = list(range(num_shared))
    paths = [_path(cache, [*shared, *[1000 + i] * num_own]) for i in range(num_leaves)]
    return [RunSpan(path, path.num_tokens - 1, 1) for path in paths]


def _flat_slots(ranges: list[SlotRange]) -> list[int]:
    return [slot for piece in ranges for slot in range(piece.start, piece.start + piece.length)]


def _assert_reads_everything_once(runs: list[RunSpan], plan: AttentionPlan) -> None:
    assert len(plan.tails) == len(runs)
    assert all(len(segment.run_idxs) > 1 for segment in plan.segments)
    for idx, (run, tail) in enumerate(zip(runs, plan.tails, strict=True)):
        position, slots = 0, []
        for segment in plan.segments:
            if idx in segment.run_idxs:
                assert segment.position == position
                position += segment.num_tokens
                slots += _flat_slots(segment.ranges)
        assert tail.position == position <= run.start
        stop = run.start + run.num_tokens
        assert slots + _flat_slots(tail.ranges) == run.lease.slots(0, stop)


def _tokens_read(runs: list[RunSpan], plan: AttentionPlan, cost: CutCost) -> float:
    total = float(sum(tail.num_tokens for tail in plan.tails))
    for segment in plan.segments:
        num_rows = sum(runs[idx].num_tokens for idx in segment.run_idxs)
        total += segment.num_tokens + cost.segment_tokens + cost.row_tokens * num_rows
    return total


def test_no_runs_need_no_plan() -> None:
    assert plan_attention([]) == AttentionPlan([], [])


def test_one_run_is_only_a_tail() -> None:
    lease = _path(RadixCache(16, 4), list(range(10)))

    plan = plan_attention([RunSpan(lease, 0, 10)])

    assert plan.segments == []
    assert [(tail.position, tail.ranges) for tail in plan.tails] == [(0, [SlotRange(0, 10)])]


def test_forks_read_their_prefix_once() -> None:
    runs = _star(num_leaves=20, num_shared=100, num_own=3)

    plan = plan_attention(runs)

    assert [(s.position, s.num_tokens, s.run_idxs) for s in plan.segments] == [
        (0, 100, list(range(20)))
    ]
    assert plan.segments[0].ranges == [SlotRange(0, 100)]
    assert {tail.position for tail in plan.tails} == {100}
    _assert_reads_everything_once(runs, plan)


def test_query_only_rows_inside_one_node_share_what_lies_before_them() -> None:
    lease = _path(RadixCache(64, 4), list(range(200)))
    runs = [RunSpan(lease.fork(), 150, 1) for _ in range(200)]

    plan = plan_attention(runs)

    assert [(s.position, s.num_tokens) for s in plan.segments] == [(0, 150)]
    assert {(tail.position, tail.num_tokens) for tail in plan.tails} == {(150, 1)}
    _assert_reads_everything_once(runs, plan)


def test_a_run_that_starts_inside_the_prefix_shares_only_what_it_sees() -> None:
    cache = RadixCache(256, 4)
    lease = _path(cache, list(range(300)))
    runs = [RunSpan(lease.fork(), start, 20) for start in (100, 250, 250)]

    plan = plan_attention(runs, cost=FREE)

    assert [(s.position, s.num_tokens, s.run_idxs) for s in plan.segments] == [
        (0, 100, [0, 1, 2]),
        (100, 150, [1, 2]),
    ]
    _assert_reads_everything_once(runs, plan)


def test_a_deeper_common_stretch_is_a_segment_of_its_own() -> None:
    cache = RadixCache(1024, 4)
    top = list(range(200))
    middles = [top + [500 + i] * 200 for i in range(2)]
    paths = [_path(cache, [*middle, 900 + i]) for middle in middles for i in range(8)]
    runs = [RunSpan(path, path.num_tokens - 1, 1) for path in paths]

    plan = plan_attention(runs)

    assert [(s.position, s.num_tokens, s.run_idxs) for s in plan.segments] == [
        (0, 200, list(range(16))),
        (200, 200, list(range(8))),
        (200, 200, list(range(8, 16))),
    ]
    _assert_reads_everything_once(runs, plan)


def test_nodes_under_the_same_runs_are_one_segment() -> None:
    cache = RadixCache(256, 4)
    lease = _path(cache, list(range(95)))
    lease.append([500] * 5, 0, 5, kind=TokenKind.OUTPUT)
    cache.commit_step()
    runs = [RunSpan(lease.fork(), 99, 1) for _ in range(10)]

    plan = plan_attention(runs)

    assert cache.stats().num_nodes == 2
    assert [s.ranges for s in plan.segments] == [[SlotRange(0, 99)]]


def test_a_short_prefix_is_not_read_apart() -> None:
    runs = _star(num_leaves=20, num_shared=4, num_own=3)

    plan = plan_attention(runs)

    assert plan.segments == []
    _assert_reads_everything_once(runs, plan)


def test_a_stretch_above_only_two_segments_is_read_with_them() -> None:
    cache = RadixCache(1024, 4)
    paths = [_path(cache, [*range(100), *[500 + i // 8] * 200, 900 + i]) for i in range(16)]
    runs = [RunSpan(path, path.num_tokens - 1, 1) for path in paths]

    plan = plan_attention(runs)

    assert [(s.position, s.num_tokens) for s in plan.segments] == [(0, 300), (0, 300)]
    _assert_reads_everything_once(runs, plan)


def test_without_sharing_every_run_reads_its_whole_context() -> None:
    runs = _star(num_leaves=20, num_shared=100, num_own=3)

    plan = plan_attention(runs, share=False)

    assert plan.segments == []
    assert {(tail.position, tail.num_tokens) for tail in plan.tails} == {(0, 103)}


@pytest.mark.parametrize(("start", "num_tokens"), [(-1, 1), (0, 0), (5, 6)])
def test_rows_outside_the_lease_raise(start: int, num_tokens: int) -> None:
    lease = _path(RadixCache(16, 4), list(range(10)))

    with pytest.raises(ValueError, match="within the 10 tokens of the lease"):
        plan_attention([RunSpan(lease, start, num_tokens)])


@settings(deadline=None, max_examples=150)
@given(
    block_size=st.integers(1, 5),
    paths=st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, 1), min_size=1, max_size=30)),
        min_size=1,
        max_size=12,
    ),
    picks=st.lists(st.tuples(*[st.integers(0, 99)] * 3), max_size=16),
    cost=st.builds(CutCost, st.sampled_from([0.0, 0.5, 2.0]), st.sampled_from([0.0, 3.0, 20.0])),
    share=st.booleans(),
)
def test_any_forest_is_read_once_and_at_no_more_than_the_flat_price(
    block_size: int,
    paths: list[tuple[bool, list[int]]],
    picks: list[tuple[int, int, int]],
    cost: CutCost,
    share: bool,
) -> None:
    cache = RadixCache(400, block_size)
    leases = []
    for is_other, tokens in paths:
        lease = cache.lease(Namespace("model", tenant="other" if is_other else None))
        passed = lease.advance(tokens, 0, len(tokens))
        lease.append(tokens, passed, len(tokens), kind=TokenKind.PROMPT)
        cache.commit_step()
        leases.append(lease)
    runs = []
    for which, start_pick, length_pick in picks:
        lease = leases[which % len(leases)]
        start = start_pick % lease.num_tokens
        runs.append(RunSpan(lease, start, 1 + length_pick % (lease.num_tokens - start)))

    plan = plan_attention(runs, share=share, cost=cost)

    _assert_reads_everything_once(runs, plan)
    flat = plan_attention(runs, share=False)
    assert _tokens_read(runs, plan, cost) <= _tokens_read(runs, flat, cost)
