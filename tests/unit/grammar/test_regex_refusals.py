"""What a regex may not be: refused by name and offset, quickly, and before it costs anything."""

import time
from contextlib import suppress

import pytest
from unit.grammar.oracles import byte_vocabulary, matches

from umbel.grammar import GrammarError, Limits, UnsupportedGrammar, compile_regex


@pytest.mark.parametrize(
    ("pattern", "keyword", "where"),
    [
        ("a(?=b)", "(?=", "offset 1"),
        ("(?!b)", "(?!", "offset 0"),
        ("(?<=b)", "(?<=", "offset 0"),
        ("ab(?<!b)", "(?<!", "offset 2"),
        ("(?>a)", "(?>", "offset 0"),
        ("(a)(?(1)b)", "(?(", "offset 3"),
        (r"(a)\1", r"\1", "offset 3"),
        (r"(?P<n>a)(?P=n)", "(?P=", "offset 8"),
        (r"(?<n>a)\k<n>", r"\k", "offset 7"),
        (r"a\b", r"\b", "offset 1"),
        (r"\Ba", r"\B", "offset 0"),
        ("a++", "possessive", "offset 2"),
        ("a{2}+", "possessive", "offset 4"),
        ("(?m)^a", "(?m)", "offset 4"),
        ("(?L)a", "(?L)", "offset 0"),
        (r"[\ud800-\udfff]", "surrogate", "offset 1"),
        ("[a&&b]", "&&", "offset 2"),
    ],
)
def test_unsupported_syntax_is_refused_by_name_and_offset(
    pattern: str, keyword: str, where: str
) -> None:
    with pytest.raises(UnsupportedGrammar) as caught:
        compile_regex(pattern, byte_vocabulary())

    assert (caught.value.keyword, caught.value.where) == (keyword, where)


@pytest.mark.parametrize(
    ("pattern", "where"),
    [
        ("(a", "offset 0"),
        ("a)", "offset 1"),
        ("[a", "offset 0"),
        ("*a", "offset 0"),
        ("a**", "offset 2"),
        ("a{2}{3}", "offset 4"),
        ("a{3,2}", "offset 0"),
        ("[b-a]", "offset 1"),
        (r"[\d-z]", "offset 1"),
        ("a\\", "offset 1"),
        (r"\q", "offset 0"),
        (r"\x4", "offset 0"),
        (r"\p{Nope}", "offset 0"),
        ("(?P<1>a)", "offset 0"),
        ("(?z", "offset 0"),
        ("[[:nope:]]", "offset 1"),
    ],
)
def test_wrong_syntax_is_an_error_with_its_offset(pattern: str, where: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_regex(pattern, byte_vocabulary())

    assert caught.value.where == where


@pytest.mark.parametrize(
    "pattern",
    [
        "(a|b)*a(a|b){30}",
        "((a{0,100}){0,100}){0,100}",
        "x{0,100000000}",
        "x{0,99999999999999999999}",
        "(.{0,300}a){0,300}",
        "(a?){19000}(b?){19000}",
        "(" * 5000 + ")" * 5000,
        "(\\w+\\s?){1,5000}",
        "(a*)*" * 2000 + "b{100}",
        "|".join(f"a.{{{n}}}b" for n in range(1, 80)) + "*",
    ],
)
def test_adversarial_patterns_end_quickly(pattern: str) -> None:
    start = time.process_time()

    with suppress(UnsupportedGrammar):
        compile_regex(pattern, byte_vocabulary())

    assert time.process_time() - start < 8


def test_exponential_patterns_are_refused_by_their_states() -> None:
    with pytest.raises(UnsupportedGrammar, match="automaton states"):
        compile_regex("(a|b)*a(a|b){30}", byte_vocabulary())


def test_large_counts_of_small_classes_work() -> None:
    constraint = compile_regex("x{0,1000}", byte_vocabulary())

    assert matches(constraint, "x" * 1000)
    assert not matches(constraint, "x" * 1001)


def test_limits_are_the_callers() -> None:
    with pytest.raises(UnsupportedGrammar, match="more than the 10 allowed"):
        compile_regex("a{11}", byte_vocabulary(), limits=Limits(max_nodes=10))


def test_a_pattern_that_is_no_string_is_refused() -> None:
    with pytest.raises(GrammarError, match="must be a string"):
        compile_regex(5, byte_vocabulary())  # type: ignore[arg-type]  # the point of the test


def test_limits_refuse_what_is_no_count() -> None:
    with pytest.raises(ValueError, match="max_states"):
        Limits(max_states=-1)
