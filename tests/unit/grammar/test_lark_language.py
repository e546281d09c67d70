"""Which texts a Lark grammar allows: notation, lexing, recursion, what is embedded."""

import pytest
from unit.grammar.oracles import byte_vocabulary, mask_ids, matches

from umbel.grammar import Vocabulary, compile_lark

CASES = [
    ('start: "a" "b"? "c"* "d"+', ["ad", "abccdd"], ["a", "abb", "abcd "]),
    ('start: "a"i "b"', ["ab", "Ab"], ["aB"]),
    ('start: ("a" | "b")~2 "c"~0..2', ["ab", "bbcc"], ["a", "abccc"]),
    ('start: "a"{2,3} "b"{,1} "c"{2}', ["aacc", "aaabcc"], ["acc", "aac", "aaaacc"]),
    ('start: "a"{2,} ["b"]', ["aa", "aaaaab"], ["a", "aabb"]),
    ('start: "x"~3..40', ["x" * 3, "x" * 40], ["xx", "x" * 41]),
    ('start: ("x" "y")~20 "z"', ["xy" * 20 + "z"], ["xy" * 19 + "z", "xy" * 21 + "z"]),
    ('start: "a".."c"', ["a", "b", "c"], ["d", "ab"]),
    ('start: | "a" start', ["", "a", "aaa"], ["b"]),
    ("start: /a+b?/ | /[0-9]{2,3}/", ["aab", "123"], ["b", "1"]),
    ("start: /AB/i", ["ab", "aB"], ["a"]),
    ("start: /a.c/s", ["a\nc", "abc"], ["ac"]),
    ("start: /a b # comment\n c/x", ["abc"], ["a b"]),
    ('start: _list{"a", ","}\n_list{x, sep}: x (sep x)*', ["a", "a,a"], ["", "a,", "aa"]),
    (
        'start: pair{NUM} | pair{word}\npair{x}: "(" x "," x ")"\nNUM: /[0-9]/\nword: "w"',
        ["(1,2)", "(w,w)"],
        ["(1,w)"],
    ),
    ('start: A\nA: "a" B~2\nB: "b" | C\nC: /[cd]/', ["abb", "acd"], ["ab", "a b"]),
    ('?start: x -> first\n    | "b"   -> second\n!x.3: "a"', ["a", "b"], ["ab"]),
    ('start: "a" // comment\n     | "b" # another\n', ["a", "b"], ["c"]),
    ('start: "\\n\\t\\"\\\\\\u00e9"', ['\n\t"\\é'], ["n"]),
    ("start: A & B\nA: /[a-z]+/\nB: /...?/\n".replace("A & B", "C\nC: A & B"), ["ab"], ["a"]),
    ('start: N\nN: /[a-z]{2,3}/ & ~("if" | "for")', ["ab", "iff"], ["if", "for", "a"]),
    ('start: %regex {"substring_chars": "abc"}', ["", "ab", "bc", "abc"], ["ac", "abcd"]),
    ('start: "<" %regex {"substring_words": "red, or blue"} ">"', ["<red,>", "< or >"], ["<re>"]),
    ('start: %regex {"substring_chunks": ["ab", "c", "ab"]}', ["abcab", "cab"], ["b", "abab"]),
    ('start: %lark { start: A+\n A: "a"\n %ignore " " } "b"\n%ignore "_"', ["a a_b"], ["a_a_b"]),
    ('start: %json {"type": "boolean"} ";"', ["true;", "false;"], ["true", "1;"]),
    ("start: %import\n".replace("%import", "INT\n%import common.INT"), ["12"], ["a"]),
    ("start: N WS N\n%import common (INT, WS)\nN: INT", ["1 2"], ["12"]),
    ("start: W\n%import common.WORD -> W", ["abc"], ["1"]),
]


@pytest.mark.parametrize(("text", "accepted", "rejected"), CASES)
def test_notation(text: str, accepted: list[str], rejected: list[str]) -> None:
    constraint = compile_lark(text, byte_vocabulary())

    assert [s for s in accepted if not matches(constraint, s)] == []
    assert [s for s in rejected if matches(constraint, s)] == []


RECURSION = [
    ('start: start "+" "n" | "n"', ["n", "n+n+n"], ["", "n+", "+n"]),
    ('start: a\na: b "x" | "p"\nb: a "y" | "q"', ["p", "qx", "pyx", "qxyx"], ["py", "q", "px"]),
    ('start: e a "z"\ne: "e"?\na: e a "x" | "y"', ["yz", "eyxz", "eyxxz"], ["z", "ez", "yx"]),
    ('start: start start | "a"', ["a", "aaaa"], [""]),
    ('start: start | "a" | start "b"', ["a", "abb"], ["b"]),
    ('start: "a" start "b" | ', ["", "aabb"], ["aab", "ba"]),
    ('start: "if" start ("else" start)? | "s"', ["ifs", "ififselses"], ["else", "ifselse"]),
    ('start: "(" start ")" start | ', ["(())()", ""], ["(()", ")("]),
    ('start: a*\na: "x"?', ["", "xxx"], ["y"]),
]


@pytest.mark.parametrize(("text", "accepted", "rejected"), RECURSION)
def test_recursion_of_every_kind(text: str, accepted: list[str], rejected: list[str]) -> None:
    constraint = compile_lark(text, byte_vocabulary())

    assert [s for s in accepted if not matches(constraint, s)] == []
    assert [s for s in rejected if matches(constraint, s)] == []


LEXING = [
    # The longest match wins, so neighbours that would grow together need something between them.
    ('start: "let" NAME "=" NAME\nNAME: /[a-z]+/\n%ignore " "', ["let a=b"], ["let a b"]),
    ('start: NAME NAME\nNAME: /[a-z]+/\n%ignore " "', ["a b", "ab  c "], ["ab"]),
    # A keyword is no name where the keyword is possible, and is one elsewhere, as in Lark.
    (
        'start: ("if" NAME | NAME "=") NAME\nNAME: /[a-z]+/\n%ignore " "',
        ["if a b", "iffy= b", "if if b"],
        ["if = b"],
    ),
    ('start: ("go"i NAME | NAME "=")\nNAME: /[A-Za-z]+/\n%ignore " "', ["Go x", "gone="], ["GO="]),
    # A longer match that fails gives back what it has read.
    ('start: N ".." N\nN: /[0-9]+(\\.[0-9]+)?/', ["1..2", "1.5..2", "10..2.25"], ["1.2", "1...2"]),
    ('start: N ("." "e"? N)?\nN: /[0-9]+(e[0-9]+)?/', ["1e2", "1.2", "1.e3"], ["1e", "1e."]),
    (
        'start: "else" "if"? X | "else if" Y\nX: "x"\nY: "y"\n%ignore " "',
        ["elsex", "else ify", "elseifx"],
        ["else ifx"],
    ),
    # Where the longest match would leave nothing that may follow, the text may be split.
    ("start: A A\nA: /[a-z]+/", ["ab", "abc"], ["a"]),
    ('start: TEXT "<end>"\nTEXT: /(.|\\n)*/', ["<end>", "a<b<end>"], ["a<end"]),
    # Shortest matches.
    ('start: S "x" S\nS: /".*?"/', ['"a"x"b"', '""x""'], ['"a"x', '"ax"']),
    ('start: C "a"\nC: "/*" /(.|\\n)*?/ "*/"', ["/**/a", "/* * */a"], ["/* */ */a"]),
    ("start: T /.*/\nT[lazy]: /a+/".replace("T", "t"), ["a", "aaa"], ["", "b"]),
    ('start: t "!"\nt[suffix="."]: /[a-z.]*/', ["ab.!", ".!"], ["a.b.!", "ab!"]),
    # A higher priority beats a longer match.
    ('start: (A | B)+\nA.2: "a"\nB: /[abc]+/', ["bca", "ab"], [""]),
    ('start: A | B "!"\nA.2: "a"\nB: /[abc]+/', ["a", "b!"], ["a!", "ab!"]),
]


@pytest.mark.parametrize(("text", "accepted", "rejected"), LEXING)
def test_lexing(text: str, accepted: list[str], rejected: list[str]) -> None:
    constraint = compile_lark(text, byte_vocabulary())

    assert [s for s in accepted if not matches(constraint, s)] == []
    assert [s for s in rejected if matches(constraint, s)] == []


def test_ignored_text_may_stand_anywhere_between_terminals() -> None:
    text = 'start: "ab" "c"\n%ignore /[ \\t]+/\n%ignore "#" | "//"'
    constraint = compile_lark(text, byte_vocabulary())

    assert matches(constraint, " ab# \t c //")
    assert not matches(constraint, "a bc")


def test_named_grammars_are_embedded() -> None:
    constraint = compile_lark(
        'start: "[" @word "," @flag "]"',
        byte_vocabulary(),
        grammars={"word": "start: /[a-z]+/", "flag": {"type": "boolean"}},
    )

    assert matches(constraint, "[ab,true]")
    assert not matches(constraint, "[ab,1]")


def test_special_tokens_are_tokens_and_never_text() -> None:
    texts: list[bytes | None] = [bytes([value]) for value in range(256)]
    names = {"<|call|>": 257, "<|done|>": 258}
    vocabulary = Vocabulary([*texts, None, None, None], [256], size=260, special_ids=names)
    constraint = compile_lark("start: TEXT <|call|> /[0-9]+/ <[258]>\nTEXT: /[a-z]*/", vocabulary)
    matcher = constraint.start()

    assert 257 in mask_ids(matcher, vocabulary)
    assert not any(constraint.start().advance(value) for value in b"<")
    assert all(matcher.advance(token) for token in (ord("a"), 257, ord("7"), 258))
    assert matcher.accepting


def test_ranges_of_special_tokens_can_be_named_by_number() -> None:
    texts: list[bytes | None] = [b"a", b"b", None, None, None]
    vocabulary = Vocabulary(texts, [4], size=5)
    constraint = compile_lark('start: <[2-3]> "a"', vocabulary)

    assert mask_ids(constraint.start(), vocabulary) == {2, 3}


def test_another_start_rule_can_be_named() -> None:
    constraint = compile_lark('a: "x"\nb: "y"', byte_vocabulary(), start="b")

    assert matches(constraint, "y")


def test_the_key_depends_on_text_start_and_named_grammars() -> None:
    vocabulary = byte_vocabulary()
    keys = {
        compile_lark('start: "a"\nb: "b"', vocabulary).key,
        compile_lark('start: "a"\nb: "b" ', vocabulary).key,
        compile_lark('start: "a"\nb: "b"', vocabulary, start="b").key,
        compile_lark('start: "a"\nb: "b"', vocabulary, grammars={"x": True}).key,
    }

    assert len(keys) == 4


def test_deep_right_recursion_and_long_texts_stay_quick() -> None:
    constraint = compile_lark('start: "a" start | "a"', byte_vocabulary())

    assert matches(constraint, "a" * 3000)


def test_an_ambiguous_grammar_reads_long_texts() -> None:
    constraint = compile_lark('start: start "+" start | "n"', byte_vocabulary())

    assert matches(constraint, "n" + "+n" * 600)
