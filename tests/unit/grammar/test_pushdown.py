"""The token machine against rules interpreted byte by byte."""

import random

import pytest
from unit.grammar.naive_machine import NaiveMachine
from unit.grammar.naive_rules import counted, random_rules, rule_vocabulary
from unit.grammar.oracles import mask_ids

from umbel.grammar import Constraint, Limits, Matcher
from umbel.grammar.compile import constraint_of
from umbel.grammar.pushdown import build
from umbel.grammar.pushdown.rules import RuleState


def _constraint(root: RuleState) -> Constraint:
    return constraint_of("rules", "test", root, rule_vocabulary(), Limits())


@pytest.mark.parametrize("seed", range(80))
def test_masks_and_moves_equal_the_naive_reading(seed: int) -> None:
    rng = random.Random(seed)
    root = random_rules(rng)
    vocabulary = rule_vocabulary()
    matcher, naive = _constraint(root).start(), NaiveMachine.start(root)
    for _ in range(12):
        allowed = naive.allowed(vocabulary)

        assert mask_ids(matcher, vocabulary) == allowed
        assert matcher.accepting == naive.can_end
        for token_id in range(vocabulary.size):
            assert matcher.clone().advance(token_id) == (token_id in allowed), token_id

        texts = sorted(allowed - set(vocabulary.eos_ids))
        if not texts:
            break
        token_id = rng.choice(texts)
        assert matcher.advance(token_id)
        naive = naive.take(token_id, vocabulary)


@pytest.mark.parametrize("seed", range(40))
def test_a_limit_of_the_closing_cost_completes_every_walk(seed: int) -> None:
    rng = random.Random(seed)
    root = random_rules(rng)
    constraint = _constraint(root)
    for extra in (0, 1, 3, 8):
        matcher = constraint.start()
        left = matcher.closing_cost + extra
        while left > 0 and not matcher.finished:
            allowed = mask_ids(matcher, rule_vocabulary(), left)
            assert allowed, "an empty mask within the budget"
            assert allowed <= mask_ids(matcher, rule_vocabulary())
            assert matcher.advance(rng.choice(sorted(allowed)))
            left -= 1

        assert matcher.accepting


@pytest.mark.parametrize("seed", range(20))
def test_a_budget_allows_exactly_the_tokens_that_leave_enough(seed: int) -> None:
    rng = random.Random(seed)
    matcher = _constraint(random_rules(rng)).start()
    vocabulary = rule_vocabulary()
    for _ in range(6):
        plain = mask_ids(matcher, vocabulary) - set(vocabulary.eos_ids)
        costs = {token_id: _cost_after(matcher, token_id) for token_id in plain}
        for budget in range(max(matcher.closing_cost, 1), matcher.closing_cost + 4):
            allowed = mask_ids(matcher, vocabulary, budget) - set(vocabulary.eos_ids)
            # The cost of a place may be lower than that of the way a token took to it.
            assert allowed <= {i for i, cost in costs.items() if cost <= budget - 1}
        if not plain:
            break
        matcher.advance(rng.choice(sorted(plain)))


def _cost_after(matcher: Matcher, token_id: int) -> int:
    after = matcher.clone()
    assert after.advance(token_id)
    return after.closing_cost


@pytest.mark.parametrize("seed", range(12))
def test_rolling_back_equals_replaying(seed: int) -> None:
    rng = random.Random(seed)
    constraint = _constraint(random_rules(rng))
    vocabulary = rule_vocabulary()
    matcher = constraint.start()
    masks = [mask_ids(matcher, vocabulary)]
    while masks[-1] and len(masks) < 10:
        matcher.advance(rng.choice(sorted(masks[-1])))
        masks.append(mask_ids(matcher, vocabulary))
    while len(masks) > 1:
        count = rng.randint(1, len(masks) - 1)
        del masks[-count:]
        clone = matcher.clone()
        matcher.rollback(count)
        clone.rollback(count)

        assert mask_ids(matcher, vocabulary) == mask_ids(clone, vocabulary) == masks[-1]


def test_left_recursion_is_refused_and_does_not_hang() -> None:
    rule = build.Reference("e")
    rule.define(build.alt(build.seq(rule, build.literal("-"), rule), build.literal("a")))

    with pytest.raises(ValueError, match="left recursive"):
        mask_ids(_constraint(rule).start(), rule_vocabulary())


@pytest.mark.parametrize(("low", "high"), [(100_000, 100_000), (0, 100_000), (3, None)])
def test_large_counts_are_kept_exactly(low: int, high: int | None) -> None:
    matcher = _constraint(build.leaf(counted(low, high))).start()
    vocabulary = rule_vocabulary()
    quote, a = vocabulary.ids_by_bytes[b'"'][0], vocabulary.ids_by_bytes[b"a"][0]

    matcher.advance(quote)
    taken = 0
    while taken < low:
        assert quote not in mask_ids(matcher, vocabulary) if taken % 9_999 == 0 else True
        assert matcher.advance(a)
        taken += 1
    assert quote in mask_ids(matcher, vocabulary)
    while high is not None and taken < high:
        assert matcher.advance(a)
        taken += 1

    assert matcher.clone().advance(a) == (high is None)
    assert matcher.advance(quote)
    assert matcher.finished
