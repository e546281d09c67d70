"""A compiled regex accepts exactly the texts that `re.fullmatch` accepts."""

import random
import re

import interegular
import pytest
from unit.grammar.oracles import byte_vocabulary, matches, random_pattern, random_text, random_walk

from umbel.grammar import Constraint, UnsatisfiableGrammar, compile_regex


def _compile(pattern: str) -> Constraint:
    return compile_regex(pattern, byte_vocabulary())


def _walked_text(constraint: Constraint, rng: random.Random) -> str:
    taken, complete = random_walk(constraint, byte_vocabulary(), rng, soft_limit=6)
    assert complete
    return bytes(taken).decode()


@pytest.mark.parametrize("seed", range(10))
def test_random_patterns_agree_with_fullmatch(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        pattern = random_pattern(rng, anchors=rng.random() < 0.3)
        try:
            constraint = _compile(pattern)
        except UnsatisfiableGrammar:
            texts = [random_text(rng) for _ in range(40)]
            assert not any(re.fullmatch(pattern, text) for text in texts), pattern
            continue
        for text in [random_text(rng) for _ in range(30)]:
            assert matches(constraint, text) == bool(re.fullmatch(pattern, text)), (pattern, text)


@pytest.mark.parametrize("seed", range(5))
def test_random_walks_through_masks_fully_match(seed: int) -> None:
    rng = random.Random(100 + seed)
    for _ in range(20):
        pattern = random_pattern(rng, anchors=False)
        constraint = _compile(pattern)

        text = _walked_text(constraint, rng)

        assert re.fullmatch(pattern, text), (pattern, text)


def test_random_patterns_agree_with_interegular() -> None:
    rng = random.Random(7)
    for _ in range(40):
        pattern = random_pattern(rng, depth=2).replace(r"\w", "é").replace(r"\d", "1")
        machine = interegular.parse_pattern(pattern).to_fsm()
        constraint = _compile(pattern)
        for text in [random_text(rng) for _ in range(20)]:
            assert matches(constraint, text) == machine.accepts(text), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "accepted", "rejected"),
    [
        ("a|ab", ["a", "ab"], ["", "b"]),
        ("[0-9]|[1-9][0-9]", ["7", "12"], ["00"]),
        ("x*|x*y", ["", "xy", "xx"], ["yx"]),
        ("a*?", ["", "aaa"], ["b"]),
        ("^a|b$", ["a", "b"], ["ab", ""]),
        (r"\Aa\z", ["a"], ["aa"]),
        (r"a\Z", ["a"], ["a\n"]),
        ("(^a|b)c", ["ac", "bc"], ["aac"]),
        ("(a|)^b", ["b"], ["ab"]),
        ("(?:^)*a", ["a"], [""]),
        ("$^", [""], ["a"]),
        ("a{,2}", ["", "aa"], ["aaa"]),
        ("a{2}", ["aa"], ["a", "aaa"]),
        ("a{2,}", ["aa", "aaaaa"], ["a"]),
        ("a{b}|{|}", ["a{b}", "{", "}"], ["ab"]),
        ("(?i)straße", ["STRAßE", "straße"], ["strasse"]),
        ("a(?i:b)c", ["aBc", "abc"], ["Abc", "abC"]),
        ("(?i)[^k]", ["x"], ["k", "K", "\u212a"]),
        (".", ["a", "\r", "😀"], ["\n", ""]),
        ("(?s).", ["\n"], [""]),
        ("(?x) a  b # comment\n [ ]", ["ab "], ["ab"]),
        ("a(?#comment)b", ["ab"], ["a"]),
        ("(?P<year>[0-9]{4})-(?<m>\\d\\d)", ["2024-05"], ["2024-5"]),
        (r"\d\w\s", ["4é ", "٣x\u00a0"], ["xxx"]),
        (r"(?a)\d\w", ["4x"], ["٣x", "4é"]),
        (r"\D\W\S", ["a-b"], ["1-b", "aab", "a- "]),
        (r"\p{Lu}\P{L}", ["É1"], ["é1", "ÉE"]),
        (r"\p{Greek}+", ["αβγ"], ["abc"]),
        (r"\x41\u00e9\U0001F600\t\.", ["Aé😀\t."], ["A"]),
        (r"\u{1F600}|\N{EURO SIGN}|\ud83d\ude01", ["😀", "€", "😁"], []),
        (r"[]a]|[^]]", ["]", "a", "b"], []),
        (r"[a\-z][-x][x-]", ["-x-", "a--"], ["b--"]),
        (r"[\]\\\[]", ["]", "\\", "["], ["x"]),
        ("[[:digit:][:^alpha:]]", ["1", "-"], ["a"]),
        (r"[\d.]+", ["1.5"], ["a"]),
        ("", [""], ["a"]),
        ("()", [""], ["a"]),
        ("(|a)+", ["", "aa"], ["b"]),
        ("[\ud7ff-\ue000]", ["\ud7ff", "\ue000"], ["a"]),
    ],
)
def test_pattern_accepts_and_rejects(
    pattern: str, accepted: list[str], rejected: list[str]
) -> None:
    constraint = _compile(pattern)

    assert [text for text in accepted if not matches(constraint, text)] == []
    assert [text for text in rejected if matches(constraint, text)] == []


@pytest.mark.parametrize(
    "char", ["a", "\x7f", "\x80", "߿", "ࠀ", "\ud7ff", "\ue000", "￿", "𐀀", "\U0010ffff"]
)
def test_negated_classes_hold_every_other_character_of_each_utf8_length(char: str) -> None:
    constraint = _compile("[^x]")

    assert matches(constraint, char)
    assert not matches(constraint, "x")
    assert not matches(constraint, char + char)


@pytest.mark.parametrize(
    "data", [b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff"]
)
def test_bytes_that_are_no_utf8_never_match(data: bytes) -> None:
    constraint = _compile("(?s).*")

    assert not matches(constraint, data)


@pytest.mark.parametrize("pattern", ["[^\\s\\S]", "a[^\\x00-\\U0010ffff]", "a^", "$a", "a$b"])
def test_a_pattern_that_matches_nothing_is_unsatisfiable(pattern: str) -> None:
    with pytest.raises(UnsatisfiableGrammar, match="no text"):
        _compile(pattern)
