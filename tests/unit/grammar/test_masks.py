"""A mask holds exactly the tokens that a naive walk over every token finds."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from unit.grammar.oracles import (
    Automaton,
    gappy_vocabulary,
    mask_ids,
    random_pattern,
    random_walk,
    spiky_vocabulary,
    text_of,
    trained_vocabulary,
)

from umbel.grammar import (
    Constraint,
    UnsatisfiableGrammar,
    Vocabulary,
    compile_choices,
    compile_json_schema,
    compile_regex,
)


class NaiveTokens:
    """Allowed tokens by trying every one; live states by trying every token from every state."""

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary) -> None:
        self.automaton = Automaton(constraint)
        self.vocabulary = vocabulary
        self.texts = {i: vocabulary.text_of(i) for i in range(vocabulary.size)}
        self.alive = {s for s, ends in enumerate(self.automaton.accepting) if ends}
        grew = True
        while grew:
            new = {
                state
                for state in range(len(self.automaton.rows))
                if state not in self.alive and self._targets(state) & self.alive
            }
            self.alive |= new
            grew = bool(new)

    def _targets(self, state: int) -> set[int | None]:
        return {self.automaton.run(text, state) for text in self.texts.values() if text}

    def allowed(self, text: bytes) -> set[int]:
        state = self.automaton.run(text)
        assert state is not None
        run = self.automaton.run
        ids = {i for i, t in self.texts.items() if t and run(t, state) in self.alive}
        return ids | (set(self.vocabulary.eos_ids) if self.automaton.accepting[state] else set())


@pytest.mark.parametrize("make", [spiky_vocabulary, gappy_vocabulary])
@pytest.mark.parametrize("seed", range(4))
def test_masks_equal_brute_force_and_advance(make: Callable[[], Vocabulary], seed: int) -> None:
    vocabulary = make()
    rng = random.Random(seed)
    checked = 0
    while checked < 60:
        pattern = random_pattern(rng)
        try:
            constraint = compile_regex(pattern, vocabulary)
        except UnsatisfiableGrammar:
            continue
        naive = NaiveTokens(constraint, vocabulary)
        taken, _ = random_walk(constraint, vocabulary, rng, soft_limit=4)
        matcher = constraint.start()
        for count in range(len(taken) + 1):
            text = text_of(taken[:count], vocabulary)
            allowed = mask_ids(matcher, vocabulary)

            assert allowed == naive.allowed(text), (pattern, text)
            for token_id in range(vocabulary.size):
                assert matcher.clone().advance(token_id) == (token_id in allowed), (pattern, text)

            checked += 1
            if count < len(taken):
                assert matcher.advance(taken[count])


@pytest.mark.parametrize(
    "pattern", [r"(?s).*", r"[^\"]{0,20}", "[a-z ]+", r"(\w+, ){2}é", "yes|no|maybe"]
)
def test_wide_and_narrow_masks_equal_brute_force_on_a_real_vocabulary(pattern: str) -> None:
    vocabulary = trained_vocabulary()
    constraint = compile_regex(pattern, vocabulary)
    naive = NaiveTokens(constraint, vocabulary)
    taken, _ = random_walk(constraint, vocabulary, random.Random(3), soft_limit=6)
    matcher = constraint.start()

    for count, token_id in enumerate(taken):
        assert mask_ids(matcher, vocabulary) == naive.allowed(text_of(taken[:count], vocabulary))
        assert matcher.advance(token_id)


def test_a_token_is_never_allowed_when_no_tokens_can_complete_after_it() -> None:
    vocabulary = gappy_vocabulary()  # "b" alone cannot be spelled
    constraint = compile_regex("ab|a?d", vocabulary)

    matcher = constraint.start()

    assert mask_ids(matcher, vocabulary) == {0, 2, 4}  # a (then d), ab, d
    assert matcher.advance(0)
    assert mask_ids(matcher, vocabulary) == {4}


def test_a_grammar_that_no_tokens_can_spell_is_unsatisfiable() -> None:
    with pytest.raises(UnsatisfiableGrammar, match="vocabulary"):
        compile_regex("b", gappy_vocabulary())
    with pytest.raises(UnsatisfiableGrammar, match="vocabulary"):
        compile_choices(["b", "dc"], gappy_vocabulary())


def test_eos_is_allowed_exactly_when_complete() -> None:
    vocabulary = spiky_vocabulary()
    matcher = compile_regex("a?", vocabulary).start()

    assert vocabulary.eos_ids <= mask_ids(matcher, vocabulary)
    assert matcher.advance(1)
    assert mask_ids(matcher, vocabulary) == vocabulary.eos_ids
    assert matcher.finished


def test_special_empty_and_padding_ids_are_never_allowed() -> None:
    vocabulary = Vocabulary([None, b"", b"a"], [], size=40)
    matcher = compile_regex("(?s).*", vocabulary).start()

    assert mask_ids(matcher, vocabulary) == {2}
    assert not matcher.advance(0)
    assert not matcher.advance(1)
    assert not matcher.advance(39)
    assert not matcher.advance(-1)


def test_the_text_of_an_eos_token_is_no_text() -> None:
    vocabulary = Vocabulary([b"a", b"<eos>"], [1], size=2)

    matcher = compile_regex("a|<eos>", vocabulary).start()

    assert mask_ids(matcher, vocabulary) == {0}


def test_masks_are_packed_little_endian_words() -> None:
    vocabulary = Vocabulary([b"x"] * 33 + [b"a"], [], size=34)
    row = np.zeros(2, np.uint32)

    compile_regex("a", vocabulary).start().fill_mask(row)

    assert row.tolist() == [0, 2]


@pytest.mark.parametrize("row", [np.zeros(4, np.uint32), np.zeros(3, np.int32)])
def test_a_row_of_the_wrong_shape_or_dtype_is_refused(row: np.ndarray) -> None:
    matcher = compile_regex("a", spiky_vocabulary()).start()

    with pytest.raises(ValueError, match="expected uint32 \\[3\\]"):
        matcher.fill_mask(row)


def test_a_kept_mask_is_not_changed_by_its_users() -> None:
    vocabulary = spiky_vocabulary()
    constraint = compile_regex("a+", vocabulary)
    before = mask_ids(constraint.start(), vocabulary)
    row = np.zeros(vocabulary.num_words, np.uint32)

    constraint.start().fill_mask(row)
    row[:] = 0

    assert mask_ids(constraint.start(), vocabulary) == before


def test_json_masks_equal_brute_force() -> None:
    vocabulary = spiky_vocabulary()
    constraint = compile_json_schema({"type": ["string", "integer"], "maxLength": 3}, vocabulary)
    naive = NaiveTokens(constraint, vocabulary)
    rng = random.Random(5)

    for _ in range(10):
        taken, _ = random_walk(constraint, vocabulary, rng, soft_limit=6)
        matcher = constraint.start()
        for count, token_id in enumerate(taken):
            text = text_of(taken[:count], vocabulary)
            assert mask_ids(matcher, vocabulary) == naive.allowed(text)
            assert matcher.advance(token_id)
