"""`rule[capture]`: the named parts of a finished output."""

import itertools
import random
from collections.abc import Iterator

import pytest
from unit.grammar.oracles import byte_vocabulary, matches, spiky_vocabulary
from unit.grammar.test_cfg_oracle import (
    RULES,
    Expression,
    Recognizer,
    random_grammar,
    written,
)

from umbel.grammar import (
    Capture,
    UnsatisfiableGrammar,
    UnsupportedGrammar,
    Vocabulary,
    compile_lark,
)


def captured(grammar: str, text: str) -> list[tuple[str, str]]:
    constraint = compile_lark(grammar, byte_vocabulary())
    assert matches(constraint, text)
    found = constraint.captures([*text.encode(), *byte_vocabulary().eos_ids])
    assert all(text[part.start : part.end] == part.text for part in found)
    return [(part.name, part.text) for part in found]


CASES = [
    # Names: the rule's own, or another one.
    (
        'start: name " is " age\nname[capture]: /[a-z]+/\nage[capture="years"]: /[0-9]+/',
        "bob is 12",
        [("name", "bob"), ("years", "12")],
    ),
    # A name may come more than once; ignored text around a rule is no part of it.
    (
        'start: item ("," item)*\nitem[capture]: W W?\nW: /[a-z]+/\n%ignore " "',
        " a , bc  d ,e  ",
        [("item", "a"), ("item", "bc  d"), ("item", "e")],
    ),
    # Left recursion, nesting: outer ones first.
    (
        'start: e\ne[capture]: e "+" t | t\nt: /[0-9]/ | "(" e ")"',
        "1+(2+3)",
        [("e", "1+(2+3)"), ("e", "1"), ("e", "2+3"), ("e", "2")],
    ),
    # What ends a rule is not in its capture, but in that of the rules around it.
    ('start: s\ns[capture, suffix="<end>"]: /.*/', "foo<end>", [("s", "foo")]),
    ('start: s\ns[capture, stop="<end>"]: /.*/', "foo<end>", [("s", "foo")]),
    (
        'start: o\no[capture]: s\ns[capture, suffix="<end>"]: /.*/',
        "foo<end>",
        [("o", "foo<end>"), ("s", "foo")],
    ),
    ("start: s\ns[capture, lazy]: /.*<end>/", "foo<end>", [("s", "foo<end>")]),
    (
        'start: s END\ns[capture, stop=END, stop_capture="e"]: /[a-z ]*/\nEND: / *\\n/',
        "ab c  \n\n",
        [("s", "ab c"), ("e", "  \n")],
    ),
    ('start: s "."\ns[stop=";", stop_capture="e"]: /[a-z]*/', ";.", [("e", ";")]),
    # Empty rules; a rule that is not there has no capture.
    ('start: x ";"\nx[capture]: /a*/', ";", [("x", "")]),
    ('start: x? ";"\nx[capture]: /a+/', ";", []),
    # Longest first: terminals, then parts of rules.
    ("start: x y\nx[capture]: /[a-z]+/\ny[capture]: /[a-z]+/", "abc", [("x", "ab"), ("y", "c")]),
    ('start: x "ab"*\nx[capture]: "ab"*', "abab", [("x", "abab")]),
    # The first alternative that fits.
    ('start: x | y\nx[capture]: "a"\ny[capture]: "a"', "a", [("x", "a")]),
    ('start: ("k" x | y) "!"\nx[capture]: /[0-9]+/\ny[capture]: /[a-z]+/', "kk!", [("y", "kk")]),
    # As the lexer has it: a keyword is no name where it is possible.
    (
        'start: "if" x | y\nx[capture]: N\ny[capture]: N\nN: /[a-z]+/\n%ignore " "',
        "ifx",
        [("y", "ifx")],
    ),
    # Token limits hold for what is captured.
    (
        "start: x y\nx[capture, max_tokens=2]: /[a-z]+/\ny[capture, max_tokens=3]: /[a-z]+/",
        "abcd",
        [("x", "ab"), ("y", "cd")],
    ),
    # Embedded grammars are a part like any other.
    (
        """start: "[" j "]" w
        j[capture]: %json {"type": "array"}
        w[capture]: %lark { start: "x"+
        %ignore " " }""",
        '[["]"]]x x',
        [("j", '["]"]'), ("w", "x x")],
    ),
    ('start: t{"a"} t{"b"}\nt{x}[capture]: x+', "aab", [("t", "aa"), ("t", "b")]),
    ('start: n\nn[capture]: "é" /./ "€"', "éü€", [("n", "éü€")]),
]


@pytest.mark.parametrize(("grammar", "text", "expected"), CASES)
def test_parts_by_name(grammar: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert captured(grammar, text) == expected


def test_spans_are_in_characters() -> None:
    constraint = compile_lark('start: "é" x "é"\nx[capture]: /[a-z]+/', byte_vocabulary())

    assert constraint.captures(list("éabé".encode())) == (Capture("x", "ab", 1, 3),)


def test_special_tokens_have_no_text() -> None:
    vocabulary = Vocabulary([b"a", b"b", None, None], [3], size=4, special_ids={"<go>": 2})
    constraint = compile_lark("start: x\nx[capture]: /a*/ <go> y\ny[capture]: /b*/", vocabulary)

    assert constraint.captures([0, 2, 1, 1, 3]) == (
        Capture("x", "abb", 0, 3),
        Capture("y", "bb", 1, 3),
    )


def test_tokens_may_hold_parts_of_several_rules() -> None:
    vocabulary = spiky_vocabulary()
    constraint = compile_lark('start: x y\nx[capture]: "a"+\ny[capture]: "b"', vocabulary)
    ids = [vocabulary.ids_by_bytes[text][0] for text in (b"a", b"ab")]

    assert [part.text for part in constraint.captures(ids)] == ["aa", "b"]


def test_an_incomplete_output_has_no_captures() -> None:
    constraint = compile_lark('start: x "."\nx[capture]: /[a-z]+/', byte_vocabulary())

    assert constraint.captures(list(b"ab")) == ()


def test_a_grammar_without_captures_has_none_and_keeps_nothing() -> None:
    constraint = compile_lark('start: "a"', byte_vocabulary())

    assert constraint.capture_reader is None
    assert constraint.captures(list(b"a")) == ()


def test_long_outputs_are_read_in_time() -> None:
    text = " ".join(["word"] * 1_000)
    listed = captured('start: item (" " item)*\nitem[capture]: /[a-z]+/', text)
    nested = captured('start: item " " start | item\nitem[capture]: /[a-z]+/', text)
    free = captured('start: t\nt[capture, suffix="</t>"]: /(.|\\n)*/', text + "</t>")

    assert (len(listed), len(nested), len(free)) == (1_000, 1_000, 1)


def test_hopeless_ambiguity_is_an_error_and_not_a_stall() -> None:
    constraint = compile_lark("start: t\nt[capture]: A*\nA: /[a-z]+b/", byte_vocabulary())

    with pytest.raises(UnsupportedGrammar):
        constraint.captures(list(b"ab" * 3_000 + b"a"))


# What is derived, in the order of preference, as an exhaustive search.
Spans = tuple[tuple[str, int, int], ...]


class Search:
    def __init__(self, grammar: dict[str, Expression], text: str) -> None:
        self.grammar = grammar
        self.text = text
        self.spans = Recognizer(grammar, text).spans
        self.open: list[tuple[str, int, int]] = []

    def rule(self, name: str, start: int, end: int) -> Spans | None:
        node = (name, start, end)
        if node in self.open:
            return None
        self.open.append(node)
        for at, found in self.ways(self.grammar[name], start, end):
            if at == end:
                self.open.pop()
                return (node, *found)
        self.open.pop()
        return None

    def ways(self, expression: Expression, start: int, limit: int) -> Iterator[tuple[int, Spans]]:
        if isinstance(expression, str):
            if expression not in RULES:
                if start < limit and self.text[start] == expression:
                    yield start + 1, ()
                return
            for end in sorted(self.spans[expression, start], reverse=True):
                if start < end <= limit:
                    found = self.rule(expression, start, end)
                    if found is not None:
                        yield end, found
            if start in self.spans[expression, start]:
                yield start, ()
            return
        operator, *parts = expression
        if operator == "alt":
            for part in parts:
                yield from self.ways(part, start, limit)
        elif operator == "cat":
            yield from self.sequence(parts, start, limit)
        else:
            low, high = {"?": (0, 1), "*": (0, 99), "+": (1, 99)}.get(operator, parts[1:])
            yield from self.repeated(parts[0], low, high, start, limit)

    def sequence(self, parts: list[object], start: int, limit: int) -> Iterator[tuple[int, Spans]]:
        if not parts:
            yield start, ()
            return
        for middle, first in self.ways(parts[0], start, limit):
            for end, rest in self.sequence(parts[1:], middle, limit):
                yield end, first + rest

    def repeated(
        self, item: object, low: int, high: int, start: int, limit: int
    ) -> Iterator[tuple[int, Spans]]:
        if high > 0:
            for middle, first in self.ways(item, start, limit):
                if middle > start or low > 0:
                    for end, rest in self.repeated(item, low - 1, high - 1, middle, limit):
                        yield end, first + rest
        if low <= 0:
            yield start, ()


@pytest.mark.parametrize("seed", range(40))
def test_captures_equal_an_exhaustive_search(seed: int) -> None:
    grammar = random_grammar(random.Random(seed))
    lines = [f"{name}[capture]: {written(body)}" for name, body in grammar.items()]
    try:
        constraint = compile_lark("\n".join(lines), byte_vocabulary(), start="r0")
    except UnsatisfiableGrammar:
        return

    for length in range(5):
        for letters in itertools.product("abc", repeat=length):
            text = "".join(letters)
            if not matches(constraint, text):
                continue
            found = constraint.captures(list(text.encode()))
            expected = Search(grammar, text).rule("r0", 0, length)
            assert expected is not None
            spans = sorted((p.start, -p.end, p.name) for p in found if p.start < p.end)
            wanted = sorted((start, -end, name) for name, start, end in expected if start < end)
            assert spans == wanted, (grammar, text)
