"""The worked examples of the cost model, to three digits."""

from dataclasses import replace

import pytest

from umbel.runtime.roofline import cost
from umbel.runtime.roofline.devices import DEVICES
from umbel.runtime.roofline.records import ModelShape, Speculation, Workload
from umbel.runtime.roofline.shapes import SHAPES

H100 = DEVICES["h100"]
SHAPE_70B, SHAPE_8B, SMOLLM2 = SHAPES["70b"], SHAPES["8b"], SHAPES["smollm2-135m"]
KNEE = cost.knee(H100, "bfloat16")
HALF_PEAK = 0.5 * H100.peak_flops["bfloat16"]
FP16 = 2.0


def close(expected: float) -> object:
    """Equal to three significant digits."""
    return pytest.approx(expected, rel=1e-3)


def loaded(batch: int, context_len: int, shared: int = 0, fan_out: int | None = None) -> Workload:
    return Workload(batch=batch, context_len=context_len, shared_prefix_len=shared, fan_out=fan_out)


def shared_speedup(shape: ModelShape, workload: Workload) -> tuple[float, float]:
    """Milliseconds of a step's memory traffic, flat and shared."""
    flat = cost.decode_bound(shape, replace(workload, shared_prefix_len=0), H100)
    tree = cost.decode_bound(shape, workload, H100)
    return flat.memory_s * 1e3, tree.memory_s * 1e3


# The figures that started the project


def test_70b_in_fp16_weighs_140_gb() -> None:
    assert cost.weight_bytes(SHAPE_70B, "float16") == 140e9
    assert cost.weight_bytes(SHAPES["llama-3-70b"], "float16") == close(141.1e9)


def test_one_row_of_70b_takes_41_8_ms() -> None:
    bound = cost.decode_bound(SHAPE_70B, loaded(1, 0), H100)

    assert bound.total_s == close(41.79e-3)
    assert cost.tokens_per_s(1, bound.total_s) == close(23.93)
    assert bound.binding == "weights"


def test_64_rows_of_70b_without_kv_make_1530_tokens_per_s() -> None:
    bound = cost.decode_bound(SHAPE_70B, loaded(64, 0), H100)

    assert cost.tokens_per_s(64, bound.total_s) == close(1531.4)


@pytest.mark.parametrize(("context_len", "expected"), [(1024, 1327.8), (8192, 687.6)])
def test_kv_lowers_the_tokens_per_s_of_64_rows(context_len: int, expected: float) -> None:
    bound = cost.decode_bound(SHAPE_70B, loaded(64, context_len), H100)

    assert cost.tokens_per_s(64, bound.total_s) == close(expected)


def test_the_knee_uses_dense_rates() -> None:
    sparse_or_float8 = cost.knee(H100, "float8")

    assert close(295.3) == KNEE
    assert sparse_or_float8 == close(590.7)
    assert 1979e12 / H100.bandwidth == close(591)


def test_kv_of_eight_heads_of_128_takes_4096_bytes_per_layer_and_token() -> None:
    kappa = cost.kv_bytes_per_token(SHAPE_70B, "float16")

    assert kappa / SHAPE_70B.num_layers == 4096
    assert kappa * 8192 == 2_684_354_560
    assert kappa * 8192 * 64 == close(171.8e9)


@pytest.mark.parametrize(
    ("shape", "expected"), [(SHAPE_70B, 327_680), (SHAPE_8B, 131_072), (SMOLLM2, 23_040)]
)
def test_kv_bytes_per_token(shape: ModelShape, expected: int) -> None:
    assert cost.kv_bytes_per_token(shape, "bfloat16") == expected


def test_smollm2_is_counted_exactly() -> None:
    assert SMOLLM2.num_parameters == 134_515_008


# F1 to F5: intensity, knee, step, capacity


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 1.000), (8, 7.98), (64, 63.0), (256, 240.9), (512, 455.1)]
)
def test_intensity_is_about_the_number_of_rows(rows: int, expected: float) -> None:
    assert cost.projection_intensity(rows, 8192, 8192, FP16) == close(expected)


def test_intensity_falls_behind_rows_in_narrow_matrices() -> None:
    assert cost.projection_intensity(64, 4096, 4096, FP16) == close(62.06)
    assert cost.intensity_limit(576, 576, FP16) == close(288)


@pytest.mark.parametrize(
    ("d_in", "d_out", "expected"),
    [(8192, 8192, 318.3), (8192, 28_672, 309.7), (4096, 4096, 345.1), (576, 1536, 1001)],
)
def test_knee_rows(d_in: int, d_out: int, expected: float) -> None:
    rows = cost.knee_rows(KNEE, d_in, d_out, FP16)

    assert rows == close(expected)
    assert cost.projection_intensity(rows, d_in, d_out, FP16) == pytest.approx(KNEE)


def test_a_576_wide_projection_never_reaches_the_knee_of_an_h100() -> None:
    assert cost.knee_rows(KNEE, 576, 576, FP16) is None


def test_step_of_64_rows_over_1024_tokens() -> None:
    assert cost.decode_bound(SHAPE_70B, loaded(64, 1024), H100).total_s == close(48.20e-3)


@pytest.mark.parametrize(
    ("shape", "context_len", "expected"),
    [
        (SHAPE_70B, 1024, 417.2),
        (SHAPE_70B, 8192, 52.15),
        (SHAPE_8B, 1024, 119.7),
        (SMOLLM2, 1024, 11.40),
    ],
)
def test_batch_at_which_kv_equals_weights(
    shape: ModelShape, context_len: int, expected: float
) -> None:
    assert cost.kv_equals_weights_batch(shape, loaded(1, context_len)) == close(expected)


def test_largest_batch_in_memory() -> None:
    workload = loaded(1, 4096)
    free = cost.free_memory_bytes(SHAPE_8B, workload, H100, memory_use=0.9, reserved_bytes=2e9)

    assert cost.max_batch(SHAPE_8B, workload, free) == 100


def test_largest_batch_with_shared_prefixes_fills_groups_first() -> None:
    kappa = cost.kv_bytes_per_token(SHAPE_8B, "bfloat16")
    workload = loaded(1, 100, shared=90, fan_out=4)  # a group: 90 + 4 * 10 tokens

    assert cost.max_batch(SHAPE_8B, workload, 130 * kappa) == 4
    assert cost.max_batch(SHAPE_8B, workload, 229 * kappa) == 4
    assert cost.max_batch(SHAPE_8B, workload, 240 * kappa) == 6
    assert cost.max_batch(SHAPE_8B, replace(workload, fan_out=None), 240 * kappa) == 15
    assert cost.max_batch(SHAPE_8B, workload, -1.0) == 0


# F6, F7, F18, F19, F20: prefill and latency


@pytest.mark.parametrize(
    ("shape", "crossover", "time_ms"),
    [(SHAPE_70B, 106_812, 590.7), (SHAPE_8B, 61_264, 68.7), (SMOLLM2, 7_784, 1.407)],
)
def test_prefill(shape: ModelShape, crossover: float, time_ms: float) -> None:
    flops = cost.prefill_flops(shape, 2048)

    assert cost.linear_equals_attention_len(shape) == close(crossover)
    assert cost.prefill_s(flops, H100, "float16", efficiency=0.5) * 1e3 == close(time_ms)


def test_prefill_of_a_cached_prompt_is_the_difference() -> None:
    whole, first = cost.prefill_flops(SHAPE_8B, 1000), cost.prefill_flops(SHAPE_8B, 600)

    assert cost.prefill_flops(SHAPE_8B, 1000, cached=600) == pytest.approx(whole - first)


def test_prefill_without_logits_of_every_token_skips_the_head() -> None:
    saved = cost.prefill_flops(SMOLLM2, 101) - cost.prefill_flops(SMOLLM2, 101, logits_rows=1)

    assert saved == pytest.approx(2 * 100 * 49_152 * 576)


def test_chunk_for_a_step_target() -> None:
    flops_per_s = cost.effective_flops(H100, "bfloat16", 0.6)

    assert cost.chunk_for_step_s(SHAPE_8B, 50e-3, 64, flops_per_s) == 1784
    assert cost.free_chunk(KNEE, 64, FP16) == 231


def test_prefill_that_keeps_rows_busy() -> None:
    assert cost.prefill_tokens_per_step(64, 512, 128) == 256


def test_rows_in_flight_with_a_constant_step() -> None:
    assert cost.rows_in_flight(4, 0.5, 200, lambda rows: 50e-3) == close(42)


def test_rows_in_flight_when_steps_grow_with_rows() -> None:
    rows = cost.rows_in_flight(4, 0.5, 200, lambda rows: 10e-3 + 1e-3 * rows)

    assert rows == close(50)  # B = 4 (0.5 + 200 (0.01 + 0.001 B))
    assert cost.rows_in_flight(6, 0.5, 200, lambda rows: 10e-3 + 1e-3 * rows) is None


def test_launch_floor() -> None:
    assert cost.launch_floor_s(30 * 8, 4e-6) == close(0.96e-3)
    assert cost.decode_bound(SMOLLM2, loaded(1, 0), H100).weights_s == close(0.0803e-3)


def test_half_fixed_rows_of_a_measured_curve() -> None:
    assert round(cost.half_fixed_rows(43e-3, 1.4e-3)) == 31


# F8, F9: sharing


def test_sharing_reads_13_6_times_fewer_bytes() -> None:
    assert cost.sharing_ratio(loaded(64, 4096 + 256, shared=4096)) == close(13.6)


@pytest.mark.parametrize(
    ("shape", "flat_ms", "tree_ms", "speedup"),
    [
        (SHAPE_70B, 69.04, 43.79, 1.576),
        (SHAPE_8B, 15.69, 5.595, 2.804),
        (SMOLLM2, 1.996, 0.2212, 9.025),
    ],
)
def test_step_with_a_shared_prefix(
    shape: ModelShape, flat_ms: float, tree_ms: float, speedup: float
) -> None:
    flat, tree = shared_speedup(shape, loaded(64, 4096 + 256, shared=4096))

    assert flat == close(flat_ms)
    assert tree == close(tree_ms)
    assert flat / tree == close(speedup)


@pytest.mark.parametrize(("group_size", "expected"), [(8, 37), (3, 99), (1, 296)])
def test_rows_from_which_shared_attention_is_bound_by_arithmetic(
    group_size: int, expected: int
) -> None:
    assert cost.shared_attention_knee_rows(group_size, FP16, KNEE) == expected


@pytest.mark.parametrize(
    ("rows", "prefix", "own", "group_size", "head_dim", "flat", "planned", "pays_from"),
    [
        (16, 4096, 128, 8, 128, 34_603_008, 5_374_976, 18.4),
        (64, 8192, 256, 8, 128, 276_824_064, 42_471_424, 18.4),
        (32, 1024, 64, 3, 64, 8_912_896, 1_098_496, 6.5),
        (8, 128, 512, 3, 64, 1_310_720, 1_093_824, 7.0),
    ],
)
def test_bytes_of_a_star(
    rows: int,
    prefix: int,
    own: int,
    group_size: int,
    head_dim: int,
    flat: int,
    planned: int,
    pays_from: float,
) -> None:
    def item(num_rows: int, tokens: int) -> float:
        return cost.attention_item_bytes(
            num_rows,
            tokens,
            group_size=group_size,
            head_dim=head_dim,
            element_bytes=FP16,
            tile_rows=64,
        )

    saved = cost.split_saves_bytes(
        rows, prefix, group_size=group_size, head_dim=head_dim, element_bytes=FP16, tile_rows=64
    )
    length = cost.split_pays_len(
        rows, group_size=group_size, head_dim=head_dim, element_bytes=FP16, tile_rows=64
    )

    assert rows * item(1, prefix + own) == flat
    assert flat - saved == planned
    assert length == pytest.approx(pays_from, abs=0.05)


def test_splitting_off_a_single_row_never_pays() -> None:
    length = cost.split_pays_len(1, group_size=8, head_dim=128, element_bytes=2, tile_rows=64)

    assert length is None


# F10 to F12: speculation and forced tokens


@pytest.mark.parametrize(("acceptance", "expected"), [(0.7, 2.7731), (0.5, 1.9375), (0.8, 3.3616)])
def test_expected_tokens_of_a_chain(acceptance: float, expected: float) -> None:
    chain = Speculation(draft_len=4, acceptance=acceptance)
    as_tree = cost.expected_tokens_tree([None, 0, 1, 2], [acceptance] * 4)

    assert cost.expected_tokens_chain(chain) == close(expected)
    assert as_tree == close(expected)


def test_expected_tokens_of_certain_drafts_and_of_a_tree() -> None:
    assert cost.expected_tokens_chain(Speculation(draft_len=4, acceptance=1.0)) == 5
    assert cost.expected_tokens_tree([None, None, 0], [0.6, 0.3, 0.5]) == pytest.approx(2.2)


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, 1.40), (32, 1.40), (64, 1.483), (128, 2.567), (256, 4.734)]
)
def test_break_even_of_speculation(batch: int, expected: float) -> None:
    def step_s(rows: int) -> float:
        return cost.decode_bound(SHAPE_8B, loaded(rows, 0), H100).total_s

    drafts = Speculation(draft_len=4, acceptance=0.7, draft_cost=0.1)
    break_even = cost.break_even_tokens(batch, drafts, step_s)
    speedup = cost.speculation_speedup(batch, drafts, step_s)

    assert break_even == close(expected)
    assert speedup == close(2.7731 / expected)


def test_best_draft_length_is_the_argmax_and_zero_when_nothing_pays() -> None:
    def step_s(rows: int) -> float:
        return 44e-3 + 1.4e-3 * rows

    speedups = [
        cost.speculation_speedup(1, Speculation(draft_len=k, acceptance=0.7), step_s)
        for k in range(1, 17)
    ]

    assert cost.best_draft_len(1, 0.7, step_s) == 1 + speedups.index(max(speedups))
    assert cost.best_draft_len(1, 0.01, step_s) == 0


def test_forced_tokens() -> None:
    measured_ms = {1: 44.2, 8: 52.2}  # a step by rows, bfloat16 on a CPU

    assert cost.forced_speedup_limit(0.5) == 2
    assert cost.forced_run_ratio(7, measured_ms.__getitem__) == close(1.181)


# F13 to F17: moving KV, pages, masks


@pytest.mark.parametrize(
    ("shape", "expected"), [(SHAPE_70B, 1.158e9), (SHAPE_8B, 4.037e9), (SMOLLM2, 42.4e9)]
)
def test_link_from_which_loading_a_prefix_beats_computing_it(
    shape: ModelShape, expected: float
) -> None:
    assert cost.load_pays_bandwidth(shape, "bfloat16", HALF_PEAK) == close(expected)


def test_transfer_to_a_decode_device() -> None:
    num_bytes = cost.kv_bytes_per_token(SHAPE_70B, "bfloat16") * 4096
    flops = cost.prefill_flops(SHAPE_70B, 4096)

    assert num_bytes == close(1.342e9)
    assert cost.transfer_s(num_bytes, 50e9) == close(26.84e-3)
    assert cost.prefill_s(flops, H100, "bfloat16", efficiency=0.5, devices=8) == close(150.5e-3)


def test_preemption_takes_the_cheaper_way_back() -> None:
    swap = cost.preempt_cost(SHAPE_8B, 4096, "bfloat16", HALF_PEAK, link_bandwidth=64e9)
    nearly_cached = cost.preempt_cost(
        SHAPE_8B, 4096, "bfloat16", HALF_PEAK, link_bandwidth=1e9, cached=4000
    )
    no_link = cost.preempt_cost(SHAPE_8B, 4096, "bfloat16", HALF_PEAK, link_bandwidth=None)

    assert swap.swap_s == close(2 * 131_072 * 4096 / 64e9)
    assert swap.recompute_s == close(cost.prefill_flops(SHAPE_8B, 4096) / HALF_PEAK)
    assert swap.cheaper == "swap"
    assert nearly_cached.cheaper == "recompute"
    assert no_link.cheaper == "recompute"


def test_page_waste() -> None:
    tokens = cost.page_waste_tokens(64, 16)

    assert tokens == 480
    assert tokens * cost.kv_bytes_per_token(SMOLLM2, "bfloat16") == close(11.06e6)


def test_mask_and_logits_traffic() -> None:
    assert cost.mask_bytes(64, 49_152) == 393_216
    assert cost.logits_bytes(64, 49_152) == close(12.58e6)
    assert SMOLLM2.num_head_parameters / SMOLLM2.num_parameters == pytest.approx(0.21, abs=0.005)
