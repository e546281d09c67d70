"""The choice of tokens against float64: kept sets, draws, masks, penalties, large vocabularies."""

import numpy as np
import pytest
import torch
from torch import Tensor

from umbel.kernels import sampling
from umbel.kernels.triton.backend import Backend
from umbel.kernels.triton.choosing import ChoiceParams, TokenMasks, choose_tokens, log_sum_exp
from umbel.kernels.triton.logit_edits import RowEdits, edit_logits, pack_edits

BACKENDS: tuple[Backend, ...] = ("triton", "torch")
both_backends = pytest.mark.parametrize("backend", BACKENDS)
MASS_ERROR = 3e-6  # of float32 sums, relative to the whole


def draw_logits(rows: int, size: int, *, spread: float = 3.0, seed: int = 0) -> Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * spread


def params_for(
    rows: int,
    *,
    temperature: float = 1.0,
    filters: list[tuple[int, float, float]] | None = None,
    seed: int = 0,
) -> ChoiceParams:
    uniforms = torch.rand(rows, generator=torch.Generator().manual_seed(seed))
    columns: dict[str, Tensor] = {}
    if filters is not None:
        columns["top_k"] = torch.tensor([k for k, _, _ in filters], dtype=torch.int32)
        columns["top_p"] = torch.tensor([p for _, p, _ in filters])
        columns["min_p"] = torch.tensor([p for _, _, p in filters])
    return ChoiceParams(temperatures=torch.full((rows,), temperature), uniforms=uniforms, **columns)


def draw_masks(rows: int, size: int, *, density: float, seed: int = 0) -> tuple[TokenMasks, Tensor]:
    rng = np.random.default_rng(seed)
    allowed = rng.random((rows, size)) < density
    padded = np.zeros((rows, -(-size // 32) * 32), dtype=bool)
    padded[:, :size] = allowed
    padded[:, size:] = True  # bits beyond the vocabulary mean nothing
    words = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    numbers = torch.arange(rows, dtype=torch.int32)
    return TokenMasks(torch.from_numpy(words.copy()), numbers), torch.from_numpy(allowed)


def assert_drawn(logits: Tensor, params: ChoiceParams, thresholds: Tensor, tokens: Tensor) -> None:
    """Every token is where its uniform number falls among the kept ones, up to rounding."""
    for row, token in enumerate(tokens.long().tolist()):
        x = logits[row].double() / float(params.temperatures[row])
        x = x.masked_fill(logits[row] < thresholds[row], -torch.inf)
        probs = x.softmax(0)
        high = probs.cumsum(0)
        uniform = float(params.uniforms[row])
        assert probs[token] > 0
        assert high[token] - probs[token] - MASS_ERROR <= uniform <= high[token] + MASS_ERROR


def assert_kept(x: Tensor, kept: Tensor, top_k: int, top_p: float, min_p: float) -> None:
    """`kept` is what the filters keep of x = logits / temperature; equals are kept together, and a
    token whose rank depends on rounding may be either."""
    order = x.double().sort(descending=True).values
    floors = [-torch.inf, -torch.inf]
    if top_k > 0:
        floors = [float(order[min(top_k, len(order)) - 1])] * 2
        order = order[order >= floors[0]]
    if top_p < 1:
        mass = order.exp().cumsum(0) / order.exp().sum()
        for side, error in enumerate((MASS_ERROR, -MASS_ERROR)):
            rank = int(torch.searchsorted(mass, top_p + error))
            floors[side] = float(order[min(rank, len(order) - 1)])
    if min_p > 0:
        floors = [max(floor, float(order[0]) + np.log(min_p)) for floor in floors]
    assert (kept | (x < floors[1] + 1e-5) | x.isneginf()).all()
    assert (~kept | (x >= floors[0] - 1e-5)).all()


@both_backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 31, 33, 3000])
def test_greedy_takes_the_lowest_of_the_most_likely(
    size: int, dtype: torch.dtype, backend: Backend
) -> None:
    logits = draw_logits(3, size).round().to(dtype)  # many equals

    tokens = choose_tokens(logits, params_for(3, temperature=0.0), tile=256, backend=backend).tokens

    assert tokens.tolist() == [int((x == x.max()).nonzero()[0, 0]) for x in logits]


@both_backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.01, 0.7, 5.0])
@pytest.mark.parametrize("density", [0.0005, 0.3, 1.0])
def test_a_draw_inverts_the_distribution_of_allowed_tokens(
    density: float, temperature: float, dtype: torch.dtype, backend: Backend
) -> None:
    logits = draw_logits(5, 1501).to(dtype)
    masks, allowed = draw_masks(5, 1501, density=density)
    allowed[:, 17] = True
    masks.words[:, 0] |= 1 << 17
    params = params_for(5, temperature=temperature)

    choices = choose_tokens(logits, params, masks, tile=512, backend=backend)

    masked = logits.float().masked_fill(~allowed, -torch.inf)
    assert_drawn(masked, params, choices.thresholds, choices.tokens)


@both_backends
@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize("spread", [0.02, 1.0, 6.0])
def test_filters_keep_what_sorting_would(
    spread: float, temperature: float, backend: Backend
) -> None:
    filters = [
        (5, 1.0, 0.0),
        (0, 0.9, 0.0),
        (0, 1.0, 0.1),
        (40, 0.7, 0.05),
        (1, 0.5, 0.0),
        (5000, 1e-6, 0.0),
        (0, 1.0, 0.0),
        (0, 0.9999, 1.0),
    ]
    logits = draw_logits(len(filters), 1700, spread=spread)
    masks, allowed = draw_masks(len(filters), 1700, density=0.8)
    params = params_for(len(filters), temperature=temperature, filters=filters)

    choices = choose_tokens(logits, params, masks, tile=1024, backend=backend)

    masked = logits.masked_fill(~allowed, -torch.inf)
    assert_drawn(masked, params, choices.thresholds, choices.tokens)
    for row, row_filter in enumerate(filters):
        kept = masked[row] >= choices.thresholds[row]
        assert_kept(masked[row] / temperature, kept, *row_filter)


@both_backends
def test_equal_logits_at_the_edge_are_kept_together(backend: Backend) -> None:
    logits = torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]])
    params = params_for(1, filters=[(2, 1.0, 0.0)])

    threshold = choose_tokens(logits, params, tile=32, backend=backend).thresholds

    assert (logits[0] >= threshold[0]).tolist() == [True, True, True, True, False]


@both_backends
def test_the_last_token_that_is_kept_may_be_the_best_of_its_tile(backend: Backend) -> None:
    logits = torch.zeros(2, 128)
    logits[:, :3] = 5.0
    logits[:, 100] = 3.0
    logits[:, 10] = torch.nextafter(torch.tensor(3.0), torch.tensor(0.0))
    filters = [(4, 1.0, 0.0), (0, 0.75, 0.0)]  # the first three have 0.73 of the mass, four 0.765

    thresholds = choose_tokens(
        logits, params_for(2, filters=filters), tile=64, backend=backend
    ).thresholds

    kept = logits >= thresholds[:, None]
    assert kept[0].nonzero()[:, 0].tolist() == [0, 1, 2, 100]
    assert kept[1].nonzero()[:, 0].tolist() == [0, 1, 2, 100]


@both_backends
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_rows_with_nothing_to_choose_from_fail_alone(bad: float, backend: Backend) -> None:
    logits = draw_logits(5, 100)
    masks, allowed = draw_masks(5, 100, density=0.5)
    masks.words[1] = 0
    logits[2, allowed[2].nonzero()[0, 0]] = bad
    logits[3, (~allowed[3]).nonzero()[0, 0]] = bad  # not allowed: no matter
    logits[4] = -torch.inf

    for temperature in (0.0, 1.0):
        params = params_for(5, temperature=temperature)
        tokens = choose_tokens(logits, params, masks, tile=64, backend=backend).tokens.tolist()

        assert [token >= 0 for token in tokens] == [True, False, False, True, False]


@both_backends
def test_rows_without_a_mask_may_share_a_step_with_others(backend: Backend) -> None:
    logits = draw_logits(3, 200)
    masks, allowed = draw_masks(1, 200, density=0.1)
    masks = TokenMasks(masks.words, torch.tensor([-1, 0, -1], dtype=torch.int32))

    greedy = params_for(3, temperature=0.0)
    tokens = choose_tokens(logits, greedy, masks, tile=64, backend=backend).tokens.tolist()

    expected = logits.argmax(1).tolist()
    expected[1] = int(logits[1].masked_fill(~allowed[0], -torch.inf).argmax())
    assert tokens == expected


@pytest.mark.parametrize("size", [128256, 262144])
def test_large_vocabularies_are_read_in_tiles(size: int) -> None:
    logits = draw_logits(2, size).to(torch.bfloat16)
    params = params_for(2, filters=[(0, 1.0, 0.02), (0, 1.0, 0.0)])

    choices = choose_tokens(logits, params, backend="triton")

    assert_drawn(logits, params, choices.thresholds, choices.tokens)


def test_uniform_numbers_at_the_ends_choose_tokens_that_have_a_chance() -> None:
    logits = draw_logits(2, 300)
    logits[:, :10] = -torch.inf
    logits[:, -10:] = -torch.inf
    uniforms = torch.tensor([0.0, 1.0 - 2.0**-24])
    params = ChoiceParams(temperatures=torch.ones(2), uniforms=uniforms)

    tokens = choose_tokens(logits, params, tile=64, backend="triton").tokens.tolist()

    assert tokens == [10, 289]


@both_backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_sum_exp_is_that_of_float64(dtype: torch.dtype, backend: Backend) -> None:
    logits = draw_logits(4, 1500).to(dtype)
    logits[2, 5] = torch.nan

    total = log_sum_exp(logits, tile=256, backend=backend)

    expected = logits.double().logsumexp(1)
    assert (total - expected)[[0, 1, 3]].abs().max() < 1e-5
    assert total[2] == torch.inf


@both_backends
def test_edits_are_those_of_the_sampler(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    rows = [
        RowEdits(),
        RowEdits(bias={3: 5.0, 900: -2.0, 5000: 1.0}, banned=[3, 7, 5000]),
        RowEdits(
            tokens=rng.integers(0, 1100, 3000).tolist(),
            output=rng.integers(0, 50, 200).tolist(),
            repetition=1.3,
            frequency=0.2,
            presence=0.5,
            bias={1: 1.0},
        ),
        RowEdits(tokens=[1, 2], output=[2, 2], frequency=-0.5),
    ]
    logits = draw_logits(len(rows), 1000)
    expected = logits.clone()
    for row, edits in zip(expected, rows, strict=True):
        known = [t for t in edits.tokens if t < 1000]
        sampling.add_bias(row, edits.bias)
        if edits.repetition != 1.0:
            sampling.penalize_repetition(row, known, edits.repetition)
        sampling.penalize_counts(
            row, edits.output, frequency=edits.frequency, presence=edits.presence
        )
        sampling.ban(row, edits.banned)

    edit_logits(logits, pack_edits(rows, torch.device("cpu")), backend=backend)

    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
