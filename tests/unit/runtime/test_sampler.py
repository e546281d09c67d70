"""The sampler: what is applied to which row, in what order; that rows do not touch each other."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from umbel.runtime.errors import EngineError
from umbel.runtime.params import SamplingParams
from umbel.runtime.sampler import Sampler, SamplingRow

V = 45


def make_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, V, generator=torch.Generator().manual_seed(seed)) * 2


def make_row(seed: int = 0, num_output: int = 0, **options: Any) -> SamplingRow:
    names = ("tokens", "num_prompt", "banned_ids", "mask_row")
    fields = {name: options.pop(name) for name in names if name in options}
    return SamplingRow(SamplingParams(**options), seed, num_output, **fields)


def pack(*allowed: set[int]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    masks = np.zeros((len(allowed), -(-V // 32)), dtype=np.uint32)
    for row, token_ids in enumerate(allowed):
        for token_id in token_ids:
            masks[row, token_id // 32] |= np.uint32(1 << (token_id % 32))
    return masks


def mixed_rows() -> list[SamplingRow]:
    options: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"temperature": 0.7, "top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1, "logit_bias": {3: 5.0}},
        {"temperature": 0.0, "repetition_penalty": 1.8, "tokens": [1, 2, 3, 4], "num_prompt": 2},
        {"frequency_penalty": 1.0, "tokens": [5, 6, 6], "num_prompt": 1},
        {"temperature": 0.0, "mask_row": 1},
        {"mask_row": 0, "top_k": 3},
        {"banned_ids": [0, 1, 2]},
    ]
    return [make_row(seed=i, num_output=i % 3, **o) for i, o in enumerate(options)]


def test_no_rows_give_no_tokens() -> None:
    assert Sampler(V).sample(torch.empty(0, V), [], []) == []


def test_greedy_rows_take_the_most_likely_token_of_the_row_they_name() -> None:
    logits = make_logits(3)
    rows = [make_row(temperature=0.0) for _ in range(4)]

    sampled = Sampler(V).sample(logits, [2, 0, 0, 1], rows)

    assert [s.token_id for s in sampled] == logits.argmax(1)[[2, 0, 0, 1]].tolist()
    assert all(s.logprob is None and s.error is None for s in sampled)


def test_a_row_gives_the_same_token_alone_and_in_any_batch() -> None:
    logits, rows, masks = make_logits(4), mixed_rows(), pack({7, 8, 9, 44}, {40, 41})
    before = logits.clone()
    logits_rows = [i % 4 for i in range(len(rows))]

    together = Sampler(V).sample(logits, logits_rows, rows, masks)

    assert torch.equal(logits, before)
    for row, logits_row, sampled in zip(rows, logits_rows, together, strict=True):
        alone = Sampler(V).sample(logits[logits_row][None], [0], [row], masks)
        assert alone[0] == sampled
    backwards = Sampler(V).sample(logits, logits_rows[::-1], rows[::-1], masks)
    assert backwards[::-1] == together


def test_seed_and_number_of_output_tokens_choose_the_token() -> None:
    logits = torch.zeros(1, V)

    def tokens(seed: int) -> list[int]:
        rows = [make_row(seed, i) for i in range(30)]
        return [s.token_id for s in Sampler(V).sample(logits, [0] * 30, rows)]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    assert len(set(tokens(1))) > 10


def test_sampled_tokens_follow_the_softmax_of_the_edited_logits() -> None:
    logits, n = make_logits(1), 3000
    allowed = set(range(5, 30))
    rows = [
        make_row(i, temperature=1.5, mask_row=0, banned_ids=[6], logit_bias={7: 1.0})
        for i in range(n)
    ]
    wanted = logits[0].double()
    wanted[7] += 1.0
    wanted[[t for t in range(V) if t not in allowed or t == 6]] = -torch.inf
    probs = (wanted / 1.5).softmax(0).numpy()

    sampled = Sampler(V).sample(logits, [0] * n, rows, pack(allowed))

    counts = np.bincount([s.token_id for s in sampled], minlength=V)
    assert counts[probs == 0].sum() == 0
    expected = probs[probs > 0] * n
    assert ((counts[probs > 0] - expected) ** 2 / expected).sum() < 55  # 23 degrees: p = 0.0002


def test_edits_are_applied_in_the_documented_order() -> None:
    logits = torch.full((1, V), -50.0)
    logits[0, 2], logits[0, 3] = 1.0, 2.0

    def choice(**options: Any) -> int:
        row = make_row(temperature=0.0, tokens=[3, 3, 2], num_prompt=1, **options)
        return Sampler(V).sample(logits, [0], [row], pack({2, 9}))[0].token_id

    assert choice() == 3
    assert choice(repetition_penalty=3.0) == 3  # 2 / 3 against 1 / 3: the prompt counts as well
    assert choice(logit_bias={3: -1.5}, repetition_penalty=3.0) == 2  # 0.5 / 3 after the bias
    assert choice(presence_penalty=0.5) == 3  # both occur in the output, once each
    assert choice(frequency_penalty=2.0, banned_ids=[3]) == 2
    assert choice(banned_ids=[2], mask_row=0) == 9


def test_output_penalties_do_not_count_the_prompt() -> None:
    logits = torch.zeros(1, V)
    logits[0, 3] = 1.0

    row = make_row(temperature=0.0, tokens=[3, 3, 3], num_prompt=3, frequency_penalty=2.0)

    assert Sampler(V).sample(logits, [0], [row])[0].token_id == 3


def test_logprobs_are_the_models_own_whatever_is_edited() -> None:
    logits = make_logits(2)
    row = make_row(logprobs=3, temperature=0.1, mask_row=0, logit_bias={5: 9.0})

    sampled = Sampler(V).sample(logits, [1, 0], [row, make_row(temperature=0.0)], pack({5}))

    wanted = logits[1].log_softmax(0)
    logprob = sampled[0].logprob
    assert logprob is not None
    assert (logprob.token_id, sampled[1].logprob) == (5, None)
    assert logprob.logprob == pytest.approx(float(wanted[5]), abs=1e-5)
    assert [t for t, _ in logprob.top] == wanted.topk(3).indices.tolist()
    assert [p for _, p in logprob.top] == pytest.approx(wanted.topk(3).values.tolist(), abs=1e-5)


def test_logprobs_zero_gives_the_chosen_token_only() -> None:
    sampled = Sampler(V).sample(make_logits(1), [0], [make_row(logprobs=0)])

    logprob = sampled[0].logprob
    assert logprob is not None
    assert logprob.top == ()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_nan_or_nothing_to_choose_fails_alone(temperature: float) -> None:
    logits = make_logits(4)
    wanted = Sampler(V).sample(logits, [1], [make_row(temperature=temperature, logprobs=1)])
    logits[0, 7] = math.nan
    logits[3] = math.inf
    rows = [
        make_row(temperature=temperature, logprobs=1, mask_row=mask_row)
        for mask_row in (None, None, 0, None)
    ]

    sampled = Sampler(V).sample(logits, [0, 1, 2, 3], rows, pack(set()))

    assert sampled[1] == wanted[0]
    messages = [str(sampled[i].error) for i in (0, 2, 3)]
    assert all(isinstance(sampled[i].error, EngineError) for i in (0, 2, 3))
    assert all(sampled[i].token_id == -1 and sampled[i].logprob is None for i in (0, 2, 3))
    assert "nan" in messages[0]
    assert "constraint" in messages[1]
    assert "inf" in messages[2]


def test_greedy_rows_that_are_only_masked_choose_as_edited_ones() -> None:
    logits, rng = make_logits(40), np.random.default_rng(0)
    logits[:, 9] = 9.0  # equal to others in some rows
    logits[::3, 30] = 9.0
    allowed = [set(np.flatnonzero(rng.random(V) < share).tolist()) for share in (0.9, 0.2, 0.03)]
    masks = pack(*allowed)
    plain = [make_row(temperature=0.0, mask_row=i % 3) for i in range(40)]
    edited = [make_row(temperature=0.0, mask_row=i % 3, logit_bias={0: 0.0}) for i in range(40)]

    sampled = Sampler(V).sample(logits, range(40), plain, masks)

    assert sampled == Sampler(V).sample(logits, range(40), edited, masks)
    assert all(choice.token_id in allowed[i % 3] for i, choice in enumerate(sampled))


def test_a_nan_that_the_mask_forbids_does_no_harm() -> None:
    logits = make_logits(1)
    logits[0, 7] = math.nan

    sampled = Sampler(V).sample(logits, [0], [make_row(mask_row=0)], pack({8}))

    assert sampled[0].token_id == 8
    assert sampled[0].error is None


def test_scores_are_log_softmax_values_of_the_rows_they_name() -> None:
    logits = make_logits(3)
    logits_rows = [i % 3 for i in range(150)]
    token_ids = [i % V for i in range(150)]
    num_top = [i % 4 for i in range(150)]

    scores = Sampler(V).score(logits, logits_rows, token_ids, num_top)

    wanted = logits.log_softmax(1)[logits_rows, token_ids]
    assert [s.token_id for s in scores] == token_ids
    assert [s.logprob for s in scores] == pytest.approx(wanted.tolist(), abs=1e-5)
    assert [len(s.top) for s in scores] == num_top
    assert scores[3].top[0][0] == int(logits[0].argmax())
