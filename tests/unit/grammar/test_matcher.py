"""A matcher is a value: clones are independent, a rollback equals a replay."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from unit.grammar.oracles import mask_ids, spiky_vocabulary

from umbel.grammar import Matcher, compile_regex

VOCABULARY = spiky_vocabulary()
CONSTRAINT = compile_regex("(ab|a|é|-1?)*c?", VOCABULARY)


def _replayed(token_ids: list[int]) -> Matcher:
    matcher = CONSTRAINT.start()
    assert all(matcher.advance(token_id) for token_id in token_ids)
    return matcher


class MatcherMachine(RuleBasedStateMachine):
    """Several matchers with a common origin, each beside the list of tokens it took."""

    def __init__(self) -> None:
        super().__init__()
        self.matchers: list[tuple[Matcher, list[int]]] = [(CONSTRAINT.start(), [])]

    @rule(data=st.data(), token_id=st.integers(0, VOCABULARY.size))
    def advance_anything(self, data: st.DataObject, token_id: int) -> None:
        matcher, taken = data.draw(st.sampled_from(self.matchers))
        allowed = token_id in mask_ids(matcher, VOCABULARY)
        assert matcher.advance(token_id) == allowed
        if allowed:
            taken.append(token_id)

    @rule(data=st.data())
    def advance_allowed(self, data: st.DataObject) -> None:
        matcher, taken = data.draw(st.sampled_from(self.matchers))
        allowed = sorted(mask_ids(matcher, VOCABULARY))
        if allowed:
            token_id = data.draw(st.sampled_from(allowed))
            assert matcher.advance(token_id)
            taken.append(token_id)

    @precondition(lambda self: len(self.matchers) < 6)
    @rule(data=st.data())
    def clone(self, data: st.DataObject) -> None:
        matcher, taken = data.draw(st.sampled_from(self.matchers))
        self.matchers.append((matcher.clone(), list(taken)))

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        matcher, taken = data.draw(st.sampled_from(self.matchers))
        count = data.draw(st.integers(0, len(taken)))
        matcher.rollback(count)
        del taken[len(taken) - count :]

    @invariant()
    def equals_a_replay(self) -> None:
        for matcher, taken in self.matchers:
            replayed = _replayed(taken)
            assert matcher.num_tokens == len(taken)
            assert mask_ids(matcher, VOCABULARY) == mask_ids(replayed, VOCABULARY)
            assert matcher.accepting == replayed.accepting
            assert matcher.finished == replayed.finished
            assert matcher.closing_cost == replayed.closing_cost


MatcherMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestMatcherMachine = MatcherMachine.TestCase


def test_eos_ends_a_text_once() -> None:
    matcher = CONSTRAINT.start()

    assert not matcher.finished
    assert matcher.advance(0)
    assert matcher.finished
    assert matcher.accepting
    assert not matcher.advance(0)
    assert not matcher.advance(1)
    assert mask_ids(matcher, VOCABULARY) == set()


def test_eos_can_be_taken_back() -> None:
    matcher = CONSTRAINT.start()
    matcher.advance(0)

    matcher.rollback(1)

    assert not matcher.finished
    assert matcher.advance(1)


def test_eos_before_the_end_is_refused() -> None:
    matcher = compile_regex("ab", VOCABULARY).start()

    assert not matcher.advance(0)
    assert matcher.advance(1)
    assert not matcher.advance(0)


def test_a_matcher_is_finished_when_only_eos_can_follow() -> None:
    matcher = compile_regex("ab|abx", VOCABULARY).start()  # no token spells x

    assert matcher.advance(3)
    assert matcher.finished


def test_rolling_back_more_than_was_taken_raises() -> None:
    matcher = CONSTRAINT.start()
    matcher.advance(1)

    with pytest.raises(ValueError, match=r"rollback\(2\) of a matcher that took 1"):
        matcher.rollback(2)


def test_equal_sources_have_equal_keys_and_others_do_not() -> None:
    same = compile_regex("(ab|a|é|-1?)*c?", VOCABULARY)

    assert same.key == CONSTRAINT.key
    assert same.kind == "regex"
    assert compile_regex("ab", VOCABULARY).key != CONSTRAINT.key
