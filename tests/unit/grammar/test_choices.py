"""Choices: literal texts, however many and however they overlap."""

import time

import pytest
from unit.grammar.oracles import byte_vocabulary, mask_ids, matches

from umbel.grammar import GrammarError, Limits, UnsupportedGrammar, compile_choices


def test_only_the_choices_match() -> None:
    constraint = compile_choices(["yes", "yes!", "no", "é€😀", 'a"b\\c', "a.*"], byte_vocabulary())

    for text in ["yes", "yes!", "no", "é€😀", 'a"b\\c', "a.*"]:
        assert matches(constraint, text)
    for text in ["", "y", "yes!!", "n", "é", "abc", "yesno"]:
        assert not matches(constraint, text)


def test_a_choice_that_begins_another_may_end_or_go_on() -> None:
    matcher = compile_choices(["no", "not"], byte_vocabulary()).start()
    matcher.advance(ord("n"))
    matcher.advance(ord("o"))

    assert matcher.accepting
    assert not matcher.finished
    assert mask_ids(matcher, byte_vocabulary()) == {ord("t"), 256}


def test_the_empty_text_is_a_choice() -> None:
    constraint = compile_choices(["", "a"], byte_vocabulary())

    assert constraint.start().accepting


def test_equal_choices_and_their_order_do_not_matter() -> None:
    first = compile_choices(["b", "a", "b"], byte_vocabulary())
    second = compile_choices(("a", "b"), byte_vocabulary())

    assert first.key == second.key


def test_thousands_of_choices_compile_quickly() -> None:
    choices = [f"choice number {number * 7919 % 100_003}" for number in range(5000)]
    start = time.process_time()

    constraint = compile_choices(choices, byte_vocabulary())

    assert time.process_time() - start < 3
    assert all(matches(constraint, text) for text in choices[::100])
    assert not matches(constraint, "choice number x")


def test_all_256_bytes_may_occur() -> None:
    choices = [chr(code) for code in range(1, 0x900)]

    constraint = compile_choices(choices, byte_vocabulary())

    assert matches(constraint, "ÿ")
    assert not matches(constraint, "\x00")


@pytest.mark.parametrize("choices", [[], "yes", ["a", 5], ["\ud800"]])
def test_what_is_no_list_of_texts_is_refused(choices: list[str]) -> None:
    with pytest.raises(GrammarError):
        compile_choices(choices, byte_vocabulary())


def test_too_many_choices_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedGrammar, match="more than the 20 allowed") as caught:
        compile_choices(["a" * 30], byte_vocabulary(), limits=Limits(max_source_chars=20))

    assert caught.value.keyword == "choices"
