"""Wrong and unsupported Lark grammars: refused by name, with the place."""

import pytest
from unit.grammar.oracles import byte_vocabulary, gappy_vocabulary

from umbel.grammar import (
    GrammarError,
    Limits,
    UnsatisfiableGrammar,
    UnsupportedGrammar,
    compile_lark,
)

WRONG = [
    ('start: "a', "1:8", "not closed"),
    ("start: 'a'", "1:8", 'written with "'),
    ("start: /a", "1:8", "not closed"),
    ('start: ("a"', "1:12", "expected ')'"),
    ('start: "a" )', "1:12", "unexpected"),
    ("start: b\n", "1:8", "b is not defined"),
    ('start: "a"\nother: c', "2:8", "c is not defined"),
    ("start: INT", "1:8", "%import common.INT"),
    ('start: "a"\nstart: "b"', "2:1", "defined twice"),
    ('start: "b".."a"', "1:8", "smaller first"),
    ('start: "a"~3..2', "1:8", "backwards"),
    ('start: "a"{3,2}', "1:8", "backwards"),
    ("start: /[/", "1:8", "character class is not closed"),
    ('start: "\\x4"', "1:8", "hexadecimal"),
    ("start: x{A}\nx{a, b}: a b\nA: /a/", "1:8", "takes 2 arguments, got 1"),
    ("start: A\nA: B\nB: A", "2:1", "refers to itself"),
    ("start: A\nA: b\nb: /x/", "2:4", "b is a rule"),
    ("%import common.NOPE\nstart: /a/", "1:16", "common has no NOPE"),
    ("start: %json {", "1:15", "needs JSON"),
    ('start: %json {"type": "strin"}', "1:8", "strin"),
    ("start: <|nope|>", "1:8", "not a special token"),
    ("start: @other", "1:8", "@other is not among"),
    ("start: <[5-3]>", "1:8", "ascending"),
    ("%frob x\nstart: /a/", "1:1", "unknown directive"),
    ('start: a\na[stop="x", suffix="y"]: /a*/', "2:3", "give one of them"),
    ("start: a\na[lazy, lazy]: /a*/", "2:9", "given twice"),
    ('start: a\na[stop_capture="x"]: /a*/', "2:3", "has none"),
    ("start: a\na[suffix=B]: /a*/", "2:10", "B is not defined"),
    ("start: a\na[max_tokens=3]: b\nb: /x/", "2:18", "b is a rule"),
]


@pytest.mark.parametrize(("text", "where", "part"), WRONG)
def test_an_error_names_the_place(text: str, where: str, part: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_lark(text, byte_vocabulary())

    assert caught.value.where == where
    assert part in caught.value.message
    assert "^" in caught.value.message.splitlines()[2]


UNSUPPORTED = [
    ("start: A\n%declare A", "%declare"),
    ('start: "a"\n%extend start: "b"', "%extend"),
    ("%import other.X\nstart: X", "%import"),
    ("%import .local.X\nstart: /a/".replace(".local", "python"), "%import"),
    ("start: /a(?=b)/", "(?="),
    ("start: /(?<!a)b/", "(?<!"),
    ("start: /(a)\\1/", "\\1"),
    ("start: /\\bword/", "\\b"),
    ("start: /a/l", "l"),
    ("start: S\nS: /a.*?b+/", "lazy quantifier"),
    ('start[stop=""]: /a*/', "stop"),
    ('start[suffix=""]: /a*/', "suffix"),
    ("start[stop=5]: /a*/", "stop"),
    ("start[capture=5]: /a*/", "capture"),
    ('start[capture=""]: /a*/', "capture"),
    ('start: %lark {\nstart: x\nx[capture="n"]: "b"\n}', "capture"),
    ("start: a\na[temperature=5]: /a*/", "temperature"),
    ("start: a\na[max_tokens=0]: /a*/", "max_tokens"),
    ("start: a\na[max_tokens]: /a*/", "max_tokens"),
    ("start: a\na[max_tokens=3]: %json {}", "max_tokens"),
    ("start: a\na[lazy]: %json {}", "lazy"),
    ("start: a\na[max_tokens=3]: /[a-z]{1200}/", "max_tokens"),
    ("start: a\na[lazy=1]: /a*/", "lazy"),
    ('start: a\na[stop="x", stop_capture]: /a*/', "stop_capture"),
    ("start: a\na[frob]: /a*/", "frob"),
    ("start: a::0x1", "::"),
    ('%llguidance {"skip_repetition": "once"}\nstart: "a"', "%llguidance"),
    ('start: %regex {"type": "number"}', "%regex"),
    ("start: A\nA: <|x|>", "special"),
    ("start: <[^3]>", "<[^]>"),
    ("start: <[*]>", "<[^]>"),
    ("start: <[3]>", "<[]>"),
    ("start: A\nA: %json {}", "schema"),
    ("start: a\na: a{20,90000}", "left recursion"),
    ('start: "a"\n%ignore start', "%ignore"),
    ("start: t{/a/}\nt{x}: t{(x x)} | x", "template"),
    ("start: A\nA: /[a-z]{50000}/", "repetition"),
]


@pytest.mark.parametrize(("text", "keyword"), UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(text: str, keyword: str) -> None:
    with pytest.raises(UnsupportedGrammar) as caught:
        compile_lark(text, byte_vocabulary())

    assert caught.value.keyword == keyword


@pytest.mark.parametrize(
    "text",
    [
        'start: "a" start',
        "start: a b\na: /x/\nb: b /y/",
        'start: A\nA: "a" & "b"',
        'start: "a" never\nnever: "b" never',
    ],
)
def test_a_grammar_without_texts_is_unsatisfiable(text: str) -> None:
    with pytest.raises(UnsatisfiableGrammar):
        compile_lark(text, byte_vocabulary())


def test_a_missing_start_rule_is_named() -> None:
    with pytest.raises(GrammarError, match="no rule start"):
        compile_lark('begin: "a"', byte_vocabulary())


def test_a_terminal_that_no_token_can_spell_is_no_way_to_go_on() -> None:
    vocabulary = gappy_vocabulary()

    constraint = compile_lark('start: "a" ("z" | "d")', vocabulary)

    assert constraint.start().advance(0)
    with pytest.raises(UnsatisfiableGrammar):
        compile_lark('start: "az"', vocabulary)


def test_optional_items_do_not_multiply() -> None:
    text = "start: " + " ".join(f'"{letter}"?' for letter in "abcdefghijklmnopqrstuvwxyz" * 4)

    constraint = compile_lark(text, byte_vocabulary())

    assert constraint.start().accepting


def test_hopeless_ambiguity_is_refused() -> None:
    levels = [
        f'a{n}: b{n} "x" | c{n} "y"\nb{n}: a{n + 1} "p"\nc{n}: a{n + 1} "q"' for n in range(40)
    ]
    text = "\n".join(["start: a0", *levels, 'a40: "z"'])

    with pytest.raises(UnsupportedGrammar, match="ambiguous"):
        compile_lark(text, byte_vocabulary())


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(UnsupportedGrammar, match="nested"):
        compile_lark("start: " + "(" * 500 + '"a"' + ")" * 500, byte_vocabulary())


def test_a_long_text_is_refused() -> None:
    with pytest.raises(UnsupportedGrammar, match="longer than"):
        compile_lark('start: "aaaa"', byte_vocabulary(), limits=Limits(max_source_chars=10))
