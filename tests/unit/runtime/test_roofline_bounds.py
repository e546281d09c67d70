"""What must hold of the cost model for any numbers: monotony, windows, devices, refusals."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline import cost
from umbel.runtime.roofline.devices import DEVICES
from umbel.runtime.roofline.records import Speculation, StepBound, StepWork, Workload
from umbel.runtime.roofline.shapes import SHAPES

H100 = DEVICES["h100"]
SHAPE_70B, SMOLLM2 = SHAPES["70b"], SHAPES["smollm2-135m"]


def loaded(batch: int, context_len: int, shared: int = 0, fan_out: int | None = None) -> Workload:
    return Workload(batch=batch, context_len=context_len, shared_prefix_len=shared, fan_out=fan_out)


def test_tensor_parallel_divides_weights_and_adds_collectives() -> None:
    one = cost.decode_bound(SHAPE_70B, loaded(64, 1024), H100)
    eight = cost.decode_bound(SHAPE_70B, replace(loaded(64, 1024), tensor_parallel=8), H100)

    assert eight.weights_s == pytest.approx(one.weights_s / 8)
    assert eight.kv_s == pytest.approx(one.kv_s / 8)
    assert one.collectives_s == 0
    # 160 all-reduces of 64 x 8192 bfloat16, of which a device sends 2 * 7/8
    assert eight.collectives_s == pytest.approx(160 * 64 * 8192 * 2 * 1.75 / 450e9)


def test_kv_heads_are_duplicated_when_devices_outnumber_them() -> None:
    wide = cost.decode_bound(SHAPE_70B, replace(loaded(1, 1024), tensor_parallel=16), H100)
    eight = cost.decode_bound(SHAPE_70B, replace(loaded(1, 1024), tensor_parallel=8), H100)

    assert wide.kv_s == eight.kv_s


def test_collectives_need_an_interconnect() -> None:
    alone = replace(H100, interconnect_bandwidth=None)

    with pytest.raises(InvalidRequest, match="no interconnect"):
        cost.decode_bound(SHAPE_70B, replace(loaded(1, 0), tensor_parallel=2), alone)


def test_a_windowed_layer_reads_its_window_only() -> None:
    shape = replace(SMOLLM2, windows=(512,) * 15 + (None,) * 15)
    workload = loaded(4, 2048, shared=1792)  # own: 256, so a window shares 256 of its 512

    assert cost.mean_kv_tokens(shape, workload) == (1792 + 4 * 256 + 256 + 4 * 256) / 2
    assert cost.mean_context(shape, workload) == (2048 + 512) / 2


@given(start=st.integers(0, 40), num=st.integers(0, 40), window=st.integers(1, 50))
@settings(deadline=None, max_examples=100)
def test_causal_pairs_count_what_each_row_sees(start: int, num: int, window: int) -> None:
    positions = range(start, start + num)

    assert cost.causal_pairs(start, num) == sum(p + 1 for p in positions)
    assert cost.causal_pairs(start, num, window=window) == sum(
        min(p + 1, window) for p in positions
    )


def test_an_untied_input_table_is_stored_but_not_streamed() -> None:
    shape = SHAPES["llama-3-8b"]
    table = 128_256 * 4096 * 2

    streamed = cost.streamed_weight_bytes(shape, "bfloat16")
    without_head = cost.streamed_weight_bytes(shape, "bfloat16", with_head=False)

    assert streamed == cost.weight_bytes(shape, "bfloat16") - table
    assert without_head == streamed - table


def test_narrow_weights_without_arithmetic_of_their_own_are_computed_wider() -> None:
    assert cost.peak_flops(DEVICES["a100"], "float8") == 312e12
    assert cost.peak_flops(H100, "int4") == 989.4e12

    with pytest.raises(InvalidRequest, match="no FLOP rate for float16"):
        cost.peak_flops(replace(H100, peak_flops={"bfloat16": 1e12}), "float16")


def test_a_step_without_rows_has_no_work() -> None:
    work = cost.step_work(
        SMOLLM2,
        rows=0,
        logits_rows=0,
        kv_tokens=0,
        num_pairs=0,
        dtype="bfloat16",
        kv_dtype="bfloat16",
    )

    assert work == StepWork()


def test_a_chunk_beside_decode_rows_adds_its_rows_and_pairs_only() -> None:
    workload = loaded(4, 256)
    plain = cost.decode_work(SMOLLM2, workload)
    pairs = cost.causal_pairs(64, 32)
    mixed = cost.mixed_work(SMOLLM2, workload, chunk=32, chunk_pairs=pairs)

    assert cost.mixed_work(SMOLLM2, workload, chunk=0, chunk_pairs=0) == plain
    assert mixed.memory_bytes == plain.memory_bytes
    assert mixed.linear_flops - plain.linear_flops == cost.linear_flops(SMOLLM2, 32, 1)
    assert mixed.attention_flops - plain.attention_flops == pytest.approx(
        cost.attention_flops(SMOLLM2, pairs)
    )


# What must hold for any numbers


AMOUNTS = st.floats(0, 1e18, allow_nan=False)
WORKS = st.builds(
    StepWork,
    weight_bytes=AMOUNTS,
    kv_bytes=AMOUNTS,
    linear_flops=AMOUNTS,
    attention_flops=AMOUNTS,
    collective_bytes=AMOUNTS,
)
PARTS = ("weight_bytes", "kv_bytes", "linear_flops", "attention_flops", "collective_bytes")


@given(work=WORKS, part=st.sampled_from(PARTS), more=AMOUNTS)
@settings(deadline=None, max_examples=200)
def test_bounds_are_monotone_in_bytes_and_flops(work: StepWork, part: str, more: float) -> None:
    larger = replace(work, **{part: getattr(work, part) + more})

    before = cost.step_bound(work, H100, "bfloat16").total_s
    after = cost.step_bound(larger, H100, "bfloat16").total_s

    assert after >= before


@given(
    batch=st.integers(1, 512),
    context_len=st.integers(2, 8192),
    shared=st.floats(0, 0.99),
    fan_out=st.none() | st.integers(1, 600),
    field=st.sampled_from(["batch", "context_len"]),
)
@settings(deadline=None, max_examples=200)
def test_more_rows_or_context_never_lower_a_step_and_sharing_never_raises_it(
    batch: int, context_len: int, shared: float, fan_out: int | None, field: str
) -> None:
    workload = loaded(batch, context_len, int(shared * context_len), fan_out)
    larger = replace(workload, **{field: getattr(workload, field) + 1})
    flat = replace(workload, shared_prefix_len=0)

    step_s = cost.decode_bound(SMOLLM2, workload, H100).total_s

    assert cost.decode_bound(SMOLLM2, larger, H100).total_s >= step_s
    assert cost.decode_bound(SMOLLM2, flat, H100).total_s >= step_s


@given(bound=st.builds(StepBound, **dict.fromkeys(StepBound.__dataclass_fields__, AMOUNTS)))
@settings(deadline=None, max_examples=100)
def test_a_bound_is_never_below_any_of_its_parts(bound: StepBound) -> None:
    parts = [getattr(bound, name) for name in StepBound.__dataclass_fields__]

    assert bound.total_s >= max(parts)


@given(
    rows=st.integers(2, 200),
    tokens=st.integers(0, 5000),
    group_size=st.sampled_from([1, 3, 8]),
    tile_rows=st.sampled_from([16, 64]),
)
@settings(deadline=None, max_examples=200)
def test_splitting_pays_exactly_from_the_length_that_the_formula_names(
    rows: int, tokens: int, group_size: int, tile_rows: int
) -> None:
    saved = cost.split_saves_bytes(
        rows, tokens, group_size=group_size, head_dim=64, element_bytes=2, tile_rows=tile_rows
    )
    length = cost.split_pays_len(
        rows, group_size=group_size, head_dim=64, element_bytes=2, tile_rows=tile_rows
    )

    assert (saved >= 0) == (length is not None and tokens >= length - 1e-9)


def test_a_partial_result_is_priced_in_tokens() -> None:
    tokens = cost.partial_result_tokens(group_size=3, head_dim=64, element_bytes=2)

    assert tokens == pytest.approx(3 * 65 * 8 / (2 * 64 * 2))


# Nonsense is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: loaded(0, 10), "batch=0"),
        (lambda: loaded(1, -1), "context_len=-1"),
        (lambda: loaded(1, 10, shared=10), "shared_prefix_len=10"),
        (lambda: loaded(1, 10, fan_out=0), "fan_out=0"),
        (lambda: Workload(dtype="float12"), "float12"),
        (lambda: Speculation(draft_len=0, acceptance=0.5), "draft_len=0"),
        (lambda: Speculation(draft_len=1, acceptance=1.5), "acceptance=1.5"),
        (lambda: Speculation(draft_len=1, acceptance=math.nan), "acceptance=nan"),
        (lambda: cost.step_bound(StepWork(), H100, "bfloat16", overhead_s=-1.0), "overhead_s"),
        (lambda: cost.effective_flops(H100, "bfloat16", 0.0), "efficiency=0.0"),
        (lambda: cost.prefill_flops(SMOLLM2, 10, cached=11), "cached=11"),
        (lambda: cost.forced_speedup_limit(1.0), "forced_share=1.0"),
        (lambda: cost.expected_tokens_tree([0], [0.5]), "a node before 0"),
        (lambda: replace(H100, bandwidth=-1.0), "bandwidth=-1.0"),
        (lambda: replace(H100, peak_flops={"fp16": 1.0}), "fp16"),
        (lambda: replace(SMOLLM2, num_kv_heads=2), "9 query heads"),
    ],
)
def test_nonsense_is_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make()

    assert message in str(caught.value)


# A measured step


def test_a_measured_step_is_its_bound_and_overhead() -> None:
    workload = loaded(16, 256)
    work = cost.decode_work(SMOLLM2, workload)
    bound = cost.step_bound(work, H100, "bfloat16")

    slow = cost.explained_step(work, 10 * bound.total_s, H100, "bfloat16")
    exact = cost.explained_step(work, bound.total_s, H100, "bfloat16")

    assert slow.total_s == pytest.approx(10 * bound.total_s)
    assert slow.binding == "overhead"
    assert exact == bound
    assert cost.explained_step(work, bound.total_s / 2, H100, "bfloat16") == bound


def test_shares_of_the_limits_are_full_at_the_bound() -> None:
    reading = StepWork(weight_bytes=3e9, kv_bytes=0.35e9, linear_flops=1e9)
    computing = StepWork(weight_bytes=1.0, linear_flops=989.4e9)

    assert cost.bandwidth_share(reading, 1e-3, H100) == pytest.approx(1.0)
    assert cost.bandwidth_share(reading, 4e-3, H100) == pytest.approx(0.25)
    assert cost.flops_share(computing, 1e-3, H100, "bfloat16") == pytest.approx(1.0)

    with pytest.raises(InvalidRequest, match="measured_s"):
        cost.bandwidth_share(reading, 0.0, H100)
