"""Filters, penalties, masks and draws against plain numpy."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from umbel.kernels.masks import forbid_unmasked, is_allowed, most_likely_allowed, unpack_masks
from umbel.kernels.sampling import (
    Filter,
    add_bias,
    ban,
    draw,
    most_likely,
    penalize_counts,
    penalize_repetition,
    uniform,
)

FILTERS = [
    Filter(),
    Filter(top_k=1),
    Filter(top_k=7),
    Filter(top_k=10_000),
    Filter(top_p=0.05),
    Filter(top_p=0.7),
    Filter(top_p=0.999),
    Filter(min_p=0.2),
    Filter(min_p=1.0),
    Filter(top_k=20, top_p=0.8),
    Filter(top_k=20, top_p=0.9, min_p=0.3),
    Filter(top_p=0.9, min_p=0.1),
]


def make_logits(num_rows: int, vocab_size: int, seed: int = 0, spread: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * spread


def filtered_softmax(
    logits: NDArray[np.float64], temperature: float, f: Filter
) -> NDArray[np.float64]:
    """[V]: the probabilities that a draw must follow, by sorting everything."""
    order = np.argsort(-logits, kind="stable")
    if f.top_k:
        order = order[: f.top_k]
    weights = np.exp((logits[order] - logits[order[0]]) / temperature)
    probs = weights / weights.sum()
    below = np.cumsum(probs) - probs
    kept = (below < f.top_p) & (probs >= f.min_p * probs[0])
    result = np.zeros(len(logits))
    result[order[kept]] = probs[kept] / probs[kept].sum()
    return result


def draw_many(
    row: torch.Tensor, temperature: float, f: Filter, uniforms: torch.Tensor
) -> torch.Tensor:
    n = len(uniforms)
    return draw(row.expand(n, -1), torch.full((n,), temperature), uniforms, [f] * n)


@pytest.mark.parametrize("f", FILTERS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_draws_follow_the_filtered_softmax(f: Filter, temperature: float) -> None:
    row, n = make_logits(1, 90), 4000
    probs = filtered_softmax(row[0].double().numpy(), temperature, f)
    evenly = (torch.arange(n, dtype=torch.float64) + 0.5) / n

    tokens = draw_many(row, temperature, f, evenly)

    # Even steps through the inverse distribution hit each token in proportion, to within one step.
    counts = np.bincount(tokens.numpy(), minlength=90)
    assert np.abs(counts - probs * n).max() <= 1.01
    assert set(np.flatnonzero(counts)) <= set(np.flatnonzero(probs))


def test_draws_from_a_large_vocabulary_follow_the_softmax() -> None:
    row, n = make_logits(1, 2001, spread=1.0), 2000
    probs = filtered_softmax(row[0].double().numpy(), 1.0, Filter())
    evenly = (torch.arange(n, dtype=torch.float64) + 0.5) / n

    tokens = draw_many(row, 1.0, Filter(), evenly).numpy()

    assert np.array_equal(tokens, np.sort(tokens))  # the draw inverts the cumulative distribution
    cumulative = np.cumsum(probs)
    assert (cumulative[tokens] >= evenly.numpy() - 1e-5).all()
    assert ((cumulative - probs)[tokens] <= evenly.numpy() + 1e-5).all()


def test_top_p_of_a_flat_distribution_looks_beyond_the_first_candidates() -> None:
    row = make_logits(1, 3000, spread=0.01)
    probs = filtered_softmax(row[0].double().numpy(), 1.0, Filter(top_p=0.9))
    uniforms = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    tokens = draw_many(row, 1.0, Filter(top_p=0.9), uniforms)

    assert (probs[tokens.numpy()] > 0).all()
    ranks = row[0].argsort(descending=True).argsort()[tokens]
    assert ranks.max() > 2000
    assert (row[0, tokens].mean() - float(probs @ row[0].double().numpy())).abs() < 1e-3


@pytest.mark.parametrize("share", [0.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize("f", [Filter(), Filter(min_p=0.5), Filter(top_k=50), Filter(top_p=0.9)])
def test_tokens_of_no_weight_are_never_drawn_at_the_ends(share: float, f: Filter) -> None:
    row = torch.full((1, 700), -torch.inf)
    row[0, 300:320] = 1.0

    token = draw_many(row, 1.0, f, torch.tensor([share], dtype=torch.float64))

    assert 300 <= int(token) < 320


def test_a_tiny_temperature_is_the_greedy_choice() -> None:
    row = make_logits(1, 50) * 100

    token = draw_many(row, 1e-30, Filter(), torch.tensor([0.999], dtype=torch.float64))

    assert int(token) == int(row.argmax())


def test_a_draw_does_not_depend_on_the_other_rows() -> None:
    logits = make_logits(len(FILTERS) * 2, 3000)
    filters = FILTERS * 2
    uniforms = torch.rand(len(filters), dtype=torch.float64)
    temperatures = torch.rand(len(filters)) + 0.3

    together = draw(logits, temperatures, uniforms, filters)

    for i, f in enumerate(filters):
        alone = draw(logits[i : i + 1], temperatures[i : i + 1], uniforms[i : i + 1], [f])
        assert int(alone) == int(together[i])


def test_the_uniform_stream_is_fixed_and_even() -> None:
    numbers = np.array([uniform(seed, i) for seed in range(40) for i in range(500)])
    expected = len(numbers) / 20

    counts = np.histogram(numbers, bins=20, range=(0.0, 1.0))[0]

    # A change of these values would change what every seed generates.
    assert uniform(0, 0) == 0.6524484863740322
    assert uniform(2**63 - 1, 7) == 0.6572466933996467
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    assert ((counts - expected) ** 2 / expected).sum() < 45  # 19 degrees of freedom: p = 0.0007
    by_seed = numbers.reshape(40, 500)
    assert np.abs(np.corrcoef(by_seed)[np.triu_indices(40, 1)]).max() < 0.2
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_equal_logits_give_the_lowest_id() -> None:
    logits = torch.zeros(2, 100)
    logits[1, [17, 60, 99]] = 5.0

    best, tokens = most_likely(logits)

    assert tokens.tolist() == [0, 17]
    assert best.tolist() == [0.0, 5.0]


def test_a_nan_is_the_highest_of_its_row_only() -> None:
    logits = torch.zeros(2, 10)
    logits[0, 3] = torch.nan

    best, tokens = most_likely(logits)

    assert best.isnan().tolist() == [True, False]
    assert tokens[1] == 0


def test_bias_and_bans_ignore_ids_beyond_the_vocabulary() -> None:
    row = torch.zeros(4)

    add_bias(row, {1: 2.5, 3: -1.0, 9: 50.0})
    ban(row, [0, 4])

    assert row.tolist() == [-torch.inf, 2.5, 0.0, -1.0]


def test_the_repetition_penalty_counts_each_token_once() -> None:
    row = torch.tensor([2.0, -2.0, 4.0, 0.0])

    penalize_repetition(row, [0, 1, 1, 0, 3], 2.0)

    assert row.tolist() == [1.0, -4.0, 4.0, 0.0]


def test_frequency_counts_occurrences_and_presence_does_not() -> None:
    row = torch.tensor([1.0, 1.0, 1.0])

    penalize_counts(row, [1, 2, 2, 2], frequency=0.5, presence=0.25)

    assert row.tolist() == [1.0, 0.25, -0.75]


def test_penalties_over_nothing_change_nothing() -> None:
    row = torch.tensor([1.0, -1.0])

    penalize_repetition(row, [], 2.0)
    penalize_counts(row, [], frequency=1.0, presence=1.0)

    assert row.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100, 4097])
def test_packed_masks_forbid_what_bool_masks_forbid(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    allowed = rng.random((3, vocab_size)) < 0.5
    packed = np.zeros((3, -(-vocab_size // 32)), dtype=np.uint32)
    for row, token in zip(*np.nonzero(allowed), strict=True):
        packed[row, token // 32] |= np.uint32(1 << (token % 32))
    logits = make_logits(5, vocab_size)
    before = logits.clone()
    logits[4] = torch.nan

    forbid_unmasked(logits, [1, 4, 0], packed)

    assert np.array_equal(unpack_masks(packed, vocab_size), allowed)
    wanted = before[:2].masked_fill(~torch.from_numpy(allowed[[2, 0]]), -torch.inf)
    assert torch.equal(logits[:2], wanted)
    assert torch.equal(logits[2:4], before[2:4])
    assert torch.equal(logits[4].isnan(), torch.from_numpy(allowed[1]))


def test_masks_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \(1, 2\)"):
        forbid_unmasked(torch.zeros(1, 33), [0], np.zeros((1, 1), dtype=np.uint32))


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100, 4097])
def test_the_most_likely_allowed_token_is_that_of_the_masked_row(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    for share in (0.0, 0.01, 0.5, 1.0):
        allowed = rng.random(vocab_size) < share
        packed = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
        for token in np.flatnonzero(allowed):
            packed[token // 32] |= np.uint32(1 << (token % 32))
        # Few values, so that many are equal.
        row = rng.integers(0, 5, vocab_size).astype(np.float32)
        row[~allowed & (rng.random(vocab_size) < 0.1)] = np.nan
        masked = np.where(allowed, row, -np.inf)

        peak, token_id = most_likely_allowed(row, packed)

        assert (peak, token_id) == (masked.max(), masked.argmax())
        assert [is_allowed(packed, i) for i in range(vocab_size)] == allowed.tolist()


def test_a_nan_among_the_allowed_is_the_most_likely() -> None:
    row = np.array([0.0, np.nan, 2.0], dtype=np.float32)

    peak, token_id = most_likely_allowed(row, np.array([0b110], dtype=np.uint32))

    assert np.isnan(peak)
    assert token_id == 1
