"""The methods of `select` on log-probabilities whose answer can be worked out by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.frontend_dsl.scoring import METHODS, Candidate, decide, has_longer_sibling


def _candidate(logprobs: dict[int, float] | list[tuple[int, float]], **more: object) -> Candidate:
    pairs = list(logprobs.items()) if isinstance(logprobs, dict) else logprobs
    return Candidate(tuple(t for t, _ in pairs), tuple(p for _, p in pairs), **more)  # type: ignore[arg-type]  # keywords of the record


def test_token_length_normalized_takes_the_best_mean_not_the_best_sum() -> None:
    short = _candidate([(1, -1.2)])
    long = _candidate([(2, -1.0), (3, -1.0), (4, -1.0)])

    decision = decide("token_length_normalized", [short, long])

    assert decision.index == 1
    assert decision.scores == pytest.approx((-1.2, -1.0))
    odds = math.exp(-0.2)
    assert decision.distribution == pytest.approx((odds / (1 + odds), 1 / (1 + odds)))


def test_unconditional_normalized_takes_what_the_prompt_made_likelier() -> None:
    common = _candidate([(1, -1.0)], prior_logprobs=(-0.5,))
    rare = _candidate([(2, -3.0)], prior_logprobs=(-9.0,))

    decision = decide("unconditional_normalized", [common, rare])

    assert decision.index == 1
    assert decision.scores == pytest.approx((-0.5, 6.0))


def test_greedy_token_decides_at_the_first_token_that_differs() -> None:
    first = _candidate([(1, -0.1), (2, -9.0)])
    second = _candidate([(3, -0.2), (4, -0.01)])

    assert decide("greedy_token", [first, second]).index == 0


def test_greedy_token_goes_on_where_tokens_are_shared() -> None:
    first = _candidate([(1, -0.1), (2, -3.0)])
    second = _candidate([(1, -0.1), (3, -1.0)])
    third = _candidate([(4, -0.5)])

    decision = decide("greedy_token", [first, second, third])

    assert decision.index == 1
    assert sum(decision.distribution[:2]) == pytest.approx(
        math.exp(-0.1) / (math.exp(-0.1) + math.exp(-0.5))
    )


def test_greedy_token_is_not_misled_by_rounding_of_a_shared_token() -> None:
    first = _candidate([(1, -0.1), (2, -3.0)])
    second = _candidate([(1, -0.1000001), (3, -1.0)])

    assert decide("greedy_token", [first, second]).index == 1


def test_greedy_token_compares_a_choice_that_is_used_up_by_its_mean() -> None:
    prefix = _candidate([(1, -1.0)])
    longer_worse = _candidate([(1, -1.0), (2, -1.5)])
    longer_better = _candidate([(1, -1.0), (2, -0.5)])

    assert decide("greedy_token", [prefix, longer_worse]).index == 0
    assert decide("greedy_token", [prefix, longer_better]).index == 1


def test_constrained_renormalizes_each_step_over_what_is_allowed() -> None:
    log = math.log
    a = _candidate([(1, log(0.2)), (2, log(0.01))])
    b = _candidate([(1, log(0.2)), (3, log(0.03))])
    c = _candidate([(4, log(0.6)), (5, log(0.001))])

    decision = decide("constrained", [a, b, c])

    assert decision.distribution == pytest.approx((0.25 * 0.25, 0.25 * 0.75, 0.75))


def test_constrained_weighs_the_end_of_a_choice_that_another_goes_on_from() -> None:
    log = math.log
    short = _candidate([(1, log(0.5))], end_logprobs=(log(0.1), log(0.2)))
    long = _candidate([(1, log(0.5)), (2, log(0.1))])

    decision = decide("constrained", [short, long])

    assert decision.distribution == pytest.approx((0.75, 0.25))


def test_constrained_follows_the_temperature() -> None:
    log = math.log
    a, b = _candidate([(1, log(0.2))]), _candidate([(2, log(0.1))])

    decisions = [decide("constrained", [a, b], temperature=0.5, draw=d) for d in (0.79, 0.81)]

    assert decisions[0].distribution == pytest.approx((0.8, 0.2))
    assert [decision.index for decision in decisions] == [0, 1]


def test_constrained_at_temperature_zero_takes_the_likeliest_token_at_each_step() -> None:
    log = math.log
    a = _candidate([(1, log(0.4)), (2, log(0.5))])
    b = _candidate([(1, log(0.4)), (3, log(0.49))])
    c = _candidate([(4, log(0.3))])

    decision = decide("constrained", [a, b, c])

    assert decision.index == 0
    assert max(decision.distribution) == decision.distribution[2]


def test_impossible_choices_are_equally_likely_and_no_nan_appears() -> None:
    candidates = [_candidate([(1, -math.inf)]), _candidate([(2, -math.inf)])]

    for method in ("token_length_normalized", "greedy_token", "constrained"):
        assert decide(method, candidates).distribution == pytest.approx((0.5, 0.5))


def test_a_longer_sibling_is_one_that_goes_on_from_the_same_tokens() -> None:
    assert has_longer_sibling([1], [[1], [1, 2]])
    assert not has_longer_sibling([1, 2], [[1], [1, 2]])
    assert not has_longer_sibling([1], [[1], [2, 1]])


@given(
    choices=st.lists(
        st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=6, unique_by=tuple
    ),
    method=st.sampled_from(METHODS),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_every_distribution_sums_to_one(
    choices: list[list[int]], method: str, data: st.DataObject
) -> None:
    table: dict[tuple[int, ...], float] = {}

    def logprob(path: tuple[int, ...]) -> float:
        return table.setdefault(path, data.draw(st.floats(-50, -1e-6)))

    candidates = [
        Candidate(
            token_ids=tuple(tokens),
            logprobs=tuple(logprob(tuple(tokens[: i + 1])) for i in range(len(tokens))),
            prior_logprobs=tuple(logprob((9, *tokens[: i + 1])) for i in range(len(tokens))),
            end_logprobs=(logprob((*tokens, -1)),),
        )
        for tokens in choices
    ]

    decision = decide(method, candidates)

    assert math.fsum(decision.distribution) == pytest.approx(1.0)
    assert all(p >= 0 for p in decision.distribution)
    if method not in ("greedy_token", "constrained"):
        assert decision.distribution[decision.index] == pytest.approx(max(decision.distribution))
