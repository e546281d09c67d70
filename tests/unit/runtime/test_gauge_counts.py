"""The gauge counts of a step what its attention plan reads, writes and computes."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.radix_cache import (
    AppendOutcome,
    CutCost,
    Lease,
    Namespace,
    RadixCache,
    RunSpan,
    TokenKind,
    plan_attention,
)
from umbel.runtime.roofline import cost
from umbel.runtime.roofline.model_costs import ModelCosts, StepCounts
from umbel.runtime.roofline.shapes import SHAPES
from umbel.runtime.step import Run, StepPlan

SMOLLM2 = SHAPES["smollm2-135m"]
KAPPA = cost.kv_bytes_per_token(SMOLLM2, "bfloat16")
COSTS = ModelCosts(SMOLLM2, "bfloat16", "bfloat16")
WINDOWED = ModelCosts(replace(SMOLLM2, num_layers=3, windows=(None, 5, 5)), "bfloat16", "bfloat16")
FREE_CUTS = CutCost(row_tokens=0.0, segment_tokens=0.0)

# (path, rows at its end, how many of them have their KV already)
paths = st.lists(st.integers(0, 1), min_size=1, max_size=24)
run_specs = st.lists(st.tuples(paths, st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=6)


def lease_on(cache: RadixCache, tokens: Sequence[int]) -> Lease:
    lease = cache.lease(Namespace("model"))
    passed = lease.advance(tokens, 0, len(tokens))
    result = lease.append(tokens, passed, len(tokens), kind=TokenKind.PROMPT)
    assert result.outcome is AppendOutcome.OK
    cache.commit_step()
    return lease


def step_plan(
    specs: Sequence[tuple[Sequence[int], int, int]],
    *,
    share: bool = True,
    cut: CutCost | None = None,
) -> StepPlan:
    cache = RadixCache(4096, 4)
    runs = []
    for tokens, num_rows, num_known in specs:
        lease = lease_on(cache, tokens)
        end = lease.num_tokens
        start = max(0, end - num_rows)
        run = Run(lease, list(tokens[start:]), start, min(start + num_known, end), [end - 1])
        runs.append(run)
    spans = [RunSpan(run.lease, run.start, len(run.tokens)) for run in runs]
    return StepPlan(runs=runs, attention=plan_attention(spans, share=share, cost=cut))


def tokens_of(counts: StepCounts) -> float:
    return counts.read_kv_tokens + counts.written_kv_tokens


@given(specs=run_specs)
@settings(deadline=None, max_examples=100)
def test_the_gauge_counts_what_the_plan_reads_and_writes(
    specs: list[tuple[list[int], int, int]],
) -> None:
    plan = step_plan(specs, cut=FREE_CUTS)
    assert plan.attention is not None

    counts = COSTS.count(plan)

    rows = [(run, run.start + at) for run in plan.runs for at in range(len(run.tokens))]
    assert counts.rows == len(rows)
    assert counts.logits_rows == len(plan.runs)
    assert counts.num_pairs == sum(position + 1 for _, position in rows)
    assert counts.written_kv_tokens == sum(at >= run.write_from for run, at in rows)
    assert tokens_of(counts) == sum(
        part.num_tokens for part in [*plan.attention.segments, *plan.attention.tails]
    )


@given(specs=run_specs)
@settings(deadline=None, max_examples=100)
def test_bytes_saved_by_sharing_are_what_the_segments_save(
    specs: list[tuple[list[int], int, int]],
) -> None:
    flat, tree = step_plan(specs, share=False), step_plan(specs, cut=FREE_CUTS)
    assert tree.attention is not None

    flat_work, tree_work = (COSTS.work(COSTS.count(plan)) for plan in (flat, tree))

    saved = cost.saved_kv_tokens(
        (segment.num_tokens, len(segment.run_idxs)) for segment in tree.attention.segments
    )
    assert flat_work.kv_bytes - tree_work.kv_bytes == KAPPA * saved
    assert flat_work.flops == tree_work.flops
    assert flat_work.weight_bytes == tree_work.weight_bytes


@given(specs=run_specs)
@settings(deadline=None, max_examples=100)
def test_a_layer_with_a_window_counts_only_what_it_sees(
    specs: list[tuple[list[int], int, int]],
) -> None:
    plan = step_plan(specs, share=False)

    counts = WINDOWED.count(plan)

    kv_tokens, num_pairs = 0, 0
    for window in (None, 5, 5):
        for run in plan.runs:
            seen = set()
            for at in range(len(run.tokens)):
                row = run.start + at
                first = 0 if window is None else max(0, row - window + 1)
                seen |= set(range(first, row + 1))
                num_pairs += row + 1 - first
            kv_tokens += len(seen)
    assert abs(tokens_of(counts) - kv_tokens / 3) < 1e-9
    assert abs(counts.num_pairs - num_pairs / 3) < 1e-9


@given(specs=run_specs)
@settings(deadline=None, max_examples=50)
def test_a_step_with_one_more_run_moves_and_computes_more(
    specs: list[tuple[list[int], int, int]],
) -> None:
    whole = COSTS.work(COSTS.count(step_plan(specs, share=False)))
    part = COSTS.work(COSTS.count(step_plan(specs[1:], share=False)))

    assert whole.kv_bytes > part.kv_bytes
    assert whole.flops > part.flops
    assert whole.weight_bytes >= part.weight_bytes


def test_a_cut_is_priced_by_the_model() -> None:
    cut = COSTS.cut_cost()

    assert cut.row_tokens == cost.partial_result_tokens(group_size=3, head_dim=64, element_bytes=2)
    assert cut.segment_tokens == CutCost().segment_tokens


def test_a_cut_that_was_measured_is_priced_so() -> None:
    cut = CutCost(row_tokens=200.0, segment_tokens=800.0)

    assert replace(COSTS, measured_cut=cut).cut_cost() == cut


def test_a_step_without_rows_has_no_work() -> None:
    counts = COSTS.count(StepPlan())

    assert counts == StepCounts()
    assert COSTS.work(counts).memory_bytes == 0
