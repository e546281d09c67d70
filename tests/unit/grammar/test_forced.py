"""Forced tokens are the ones the tokenizer would have produced for the finished text, and are
accepted.
"""

import random

import pytest
from unit.grammar.oracles import Automaton, byte_vocabulary, text_of, trained_vocabulary

from umbel.grammar import (
    Constraint,
    Vocabulary,
    compile_choices,
    compile_json_schema,
    compile_regex,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada Lovelace", "Ada", "naïve café"]},
        "age": {"type": "integer", "minimum": 10, "maximum": 99},
        "kind": {"const": "circle"},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "schema": lambda v: compile_json_schema(SCHEMA, v),
    "choices": lambda v: compile_choices(["The answer is yes.", "The answer is no.", "The end"], v),
    "regex": lambda v: compile_regex(r"\n\n(  - item( yes)?\n)+über 20(24|25)-0[12]!", v),
    "contraction": lambda v: compile_regex(r"don'(t know|x)|it's +12345?", v),
}


def _canonical_texts(constraint: Constraint, rng: random.Random, count: int) -> list[str]:
    """Texts of the language, by random bytes."""
    automaton = Automaton(constraint)
    texts = []
    for _ in range(count):
        state: int = 0
        data = bytearray()
        while not (automaton.accepting[state] and (rng.random() < 0.3 or len(data) > 80)):
            live = automaton.rows[state]
            if not live:
                break
            data.append(rng.choice(list(live)))
            state = live[data[-1]]
        texts.append(data.decode())
    return texts


@pytest.mark.parametrize("name", sorted(CONSTRAINTS))
def test_forced_tokens_equal_the_tokenizers_own(name: str) -> None:
    vocabulary = trained_vocabulary()
    constraint = CONSTRAINTS[name](vocabulary)
    assert vocabulary.encode is not None
    num_forced = 0
    for text in _canonical_texts(constraint, random.Random(1), 40):
        canonical = vocabulary.encode(text)
        matcher = constraint.start()
        at = 0
        while at < len(canonical):
            forced = matcher.forced()

            assert forced == canonical[at : at + len(forced)], (text, at)

            for token_id in forced or canonical[at : at + 1]:
                assert matcher.advance(token_id)
            num_forced += len(forced)
            at += max(len(forced), 1)
        assert matcher.accepting

    assert num_forced > 40


def test_all_of_a_single_text_is_forced() -> None:
    vocabulary = trained_vocabulary()
    matcher = compile_choices(["The answer is 12345."], vocabulary).start()
    assert vocabulary.encode is not None

    assert matcher.forced() == vocabulary.encode("The answer is 12345.")


def test_what_may_merge_with_the_next_text_is_held_back() -> None:
    texts = [b"a", b"b", b"c", b"d", b"ab", b"bc", b"bd"]
    vocabulary = Vocabulary(
        texts, [], size=7, encode=lambda text: [texts.index(t.encode()) for t in text]
    )

    # After "ab" comes c or d, and the tokens bc and bd would start inside the forced "ab".
    assert compile_regex("ab(c|d)", vocabulary).start().forced() == [0]
    assert compile_regex("ab", vocabulary).start().forced() == [0, 1]


def test_nothing_is_forced_after_tokens_that_the_tokenizer_would_not_have_chosen() -> None:
    vocabulary = trained_vocabulary()
    matcher = compile_choices(["The answer is yes.", "That"], vocabulary).start()
    for char in b"The ":  # the space belongs to the token " answer"
        assert matcher.advance(vocabulary.ids_by_bytes[bytes([char])][0])

    assert matcher.forced() == []


def test_forced_tokens_keep_the_budget() -> None:
    texts = [b"a", b"b", b"ab"]
    vocabulary = Vocabulary(
        texts, [], size=3, encode=lambda text: [texts.index(t.encode()) for t in text]
    )
    matcher = compile_regex("abab", vocabulary).start()

    assert matcher.closing_cost == 2
    assert matcher.forced() == [0, 1, 0, 1]
    assert matcher.forced(budget=4) == [0, 1, 0, 1]
    assert matcher.forced(budget=3) == [0, 1]
    assert matcher.forced(budget=2) == []  # canonical tokens would overrun: the mask offers "ab"


@pytest.mark.parametrize("pattern", ["[ab]", "a?", "(abc)*", "é|è"])
def test_nothing_is_forced_where_there_is_a_choice(pattern: str) -> None:
    matcher = compile_regex(pattern, trained_vocabulary()).start()

    assert matcher.forced() == []


def test_nothing_is_forced_without_the_tokenizer() -> None:
    assert compile_regex("abc", byte_vocabulary()).start().forced() == []


def test_nothing_is_forced_when_the_tokenizer_changes_the_text() -> None:
    vocabulary = Vocabulary([b"a", b"A"], [], size=2, encode=lambda text: [0] * len(text))

    assert compile_regex("AA", vocabulary).start().forced() == []


def test_forced_characters_that_span_tokens_are_forced_whole() -> None:
    vocabulary = Vocabulary(
        [b"\xe2", b"\x82", b"\xac", b"\xa0", b"x"],
        [],
        size=5,
        encode=lambda text: {"€": [0, 1, 2]}[text],
    )
    euro = compile_regex("€", vocabulary).start()
    either = compile_regex("[€₠]", vocabulary).start()

    assert euro.forced() == [0, 1, 2]
    assert either.forced() == []  # two bytes are forced, but they are no character yet
    assert either.advance(0)
    assert text_of(either.forced(), vocabulary) == b""


def test_nothing_is_forced_after_the_end() -> None:
    vocabulary = trained_vocabulary()
    matcher = compile_choices(["yes"], vocabulary).start()
    for token_id in matcher.forced():
        matcher.advance(token_id)
    matcher.advance(0)

    assert matcher.finished
    assert matcher.forced() == []
