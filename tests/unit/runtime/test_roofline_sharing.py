"""What the cost model says a shared prefix saves is what the attention plan saves."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.radix_cache import (
    AppendOutcome,
    AttentionPlan,
    CutCost,
    Lease,
    Namespace,
    RadixCache,
    RunSpan,
    TokenKind,
    plan_attention,
)
from umbel.runtime.roofline import cost
from umbel.runtime.roofline.records import Workload
from umbel.runtime.roofline.shapes import SHAPES

SMOLLM2 = SHAPES["smollm2-135m"]
KAPPA = cost.kv_bytes_per_token(SMOLLM2, "bfloat16")
FREE_CUTS = CutCost(row_tokens=0.0, segment_tokens=0.0)


def lease_on(cache: RadixCache, tokens: Sequence[int]) -> Lease:
    lease = cache.lease(Namespace("model"))
    passed = lease.advance(tokens, 0, len(tokens))
    result = lease.append(tokens, passed, len(tokens), kind=TokenKind.PROMPT)
    assert result.outcome is AppendOutcome.OK
    cache.commit_step()
    return lease


def decode_runs(paths: Sequence[Sequence[int]]) -> list[RunSpan]:
    cache = RadixCache(4096, 4)
    leases = [lease_on(cache, path) for path in paths]
    return [RunSpan(lease, lease.num_tokens - 1, 1) for lease in leases]


def tokens_read(plan: AttentionPlan) -> int:
    return sum(part.num_tokens for part in [*plan.segments, *plan.tails])


def planned_bytes(plan: AttentionPlan, num_rows: int, num_pairs: int) -> float:
    work = cost.step_work(
        SMOLLM2,
        rows=num_rows,
        logits_rows=num_rows,
        kv_tokens=tokens_read(plan),
        num_pairs=num_pairs,
        dtype="bfloat16",
        kv_dtype="bfloat16",
    )
    return work.kv_bytes


@given(
    paths=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24), min_size=1, max_size=8),
    cut=st.builds(CutCost, row_tokens=st.floats(0, 4), segment_tokens=st.floats(0, 8)),
)
@settings(deadline=None, max_examples=150)
def test_the_saving_of_a_random_tree_is_the_byte_difference_of_its_plans(
    paths: list[list[int]], cut: CutCost
) -> None:
    runs = decode_runs(paths)
    num_pairs = sum(len(path) for path in paths)
    flat, tree = plan_attention(runs, share=False), plan_attention(runs, cost=cut)

    saved = KAPPA * cost.saved_kv_tokens(
        (segment.num_tokens, len(segment.run_idxs)) for segment in tree.segments
    )

    difference = planned_bytes(flat, len(runs), num_pairs) - planned_bytes(
        tree, len(runs), num_pairs
    )
    assert difference == saved
    assert tokens_read(flat) == num_pairs


@given(
    batch=st.integers(1, 12),
    prefix=st.integers(1, 40),
    own=st.integers(1, 10),
    fan_out=st.none() | st.integers(1, 12),
)
@settings(deadline=None, max_examples=100)
def test_the_planners_workload_reads_what_the_plan_of_such_a_tree_reads(
    batch: int, prefix: int, own: int, fan_out: int | None
) -> None:
    workload = Workload(
        batch=batch, context_len=prefix + own, shared_prefix_len=prefix, fan_out=fan_out
    )
    paths = []
    for row in range(batch):
        group = 0 if fan_out is None else row // fan_out
        paths.append([1000 + group] * prefix + [row] * own)
    runs = decode_runs(paths)

    assert tokens_read(plan_attention(runs, share=False)) == cost.flat_kv_tokens(workload)
    assert tokens_read(plan_attention(runs, cost=FREE_CUTS)) == cost.tree_kv_tokens(workload)
