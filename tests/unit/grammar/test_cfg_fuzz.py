"""Whatever grammar text comes in, the answer is a constraint or a `GrammarError`, soon."""

import time
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.grammar.oracles import byte_vocabulary, mask_ids

from umbel.grammar import (
    Constraint,
    GrammarError,
    Limits,
    compile_gbnf,
    compile_lark,
    compile_structural_tag,
)

SMALL = Limits(max_nodes=2000, max_states=4000, max_work=100_000, max_value_depth=1)
SECONDS = 10.0  # of the processor: far more than any of these needs, and no matter who else works
LARK_PIECES = [
    *' \n|()[]{}*+?~:.,&@!<>"/\\%#-=',
    *("start: ", "a", "B", "a: ", "B.2: ", "\nstart: ", "\na: ", "\nB: "),
    *('"x"', '"y"i', "/z+/", "/[a-c]*?/", '"a".."c"', "~2..5", "{3,}", "{2,900}", "~0..99999"),
    *("%ignore ", "%import common.WS\n", "%json {}", '%json {"type": "null"}', "%lark {", "}"),
    *('%regex {"substring_chars": "ab"}', "<[1]>", "<|x|>", "[lazy]", "a{a}", "a{x}: x x", "->"),
]
GBNF_PIECES = [
    *' \n|()[]{}*+?."\\#-=^<>/',
    *("root ::= ", "a ::= ", "\na ::= ", "a", "root", "[a-z]", "[^x]", '"x"', "{3}", "{2,90000}"),
]
LARK = """
start: stmt+
stmt: "if" expr stmt ("else" stmt)? | NAME "=" expr ";" | %json {"type": "boolean"}
expr: expr "+" term | term
term: NAME | NUMBER | "(" expr ")" | list{expr, ","}
list{x, sep}: "[" x (sep x)~0..20 "]"
NAME: /[a-z]+/
%import common.NUMBER
%ignore /[ \\n]+/
"""


def use(constraint: Constraint) -> None:
    """A few steps, so that what is made lazily is made."""
    matcher = constraint.start()
    for _ in range(4):
        allowed = sorted(mask_ids(matcher, byte_vocabulary()) - {256})
        if not allowed:
            assert matcher.accepting
            return
        assert matcher.advance(allowed[len(allowed) // 2])


def check_lark(text: str) -> None:
    before = time.process_time()
    with suppress(GrammarError):
        use(compile_lark(text, byte_vocabulary(), limits=SMALL))
    assert time.process_time() - before < SECONDS


quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@quick
@given(st.lists(st.sampled_from(LARK_PIECES), max_size=16).map("".join) | st.text(max_size=30))
def test_any_lark_text_compiles_or_raises(text: str) -> None:
    check_lark(text)
    check_lark("start: " + text)


@quick
@given(st.integers(0, len(LARK)), st.integers(0, 12), st.sampled_from([*LARK_PIECES, ""]))
def test_a_damaged_lark_grammar_compiles_or_raises(at: int, length: int, piece: str) -> None:
    check_lark(LARK[:at] + piece + LARK[at + length :])


@quick
@given(st.lists(st.sampled_from(GBNF_PIECES), max_size=16).map("".join) | st.text(max_size=30))
def test_any_gbnf_text_compiles_or_raises(text: str) -> None:
    before = time.process_time()
    for candidate in (text, "root ::= " + text):
        with suppress(GrammarError):
            use(compile_gbnf(candidate, byte_vocabulary(), limits=SMALL))
    assert time.process_time() - before < SECONDS


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 3)
    | st.sampled_from(["", "a", "<", "tag", "any_text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "format",
                    "begin",
                    "end",
                    "content",
                    "tags",
                    "triggers",
                    "structures",
                    "schema",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@quick
@given(values)
def test_any_structural_tag_compiles_or_raises(value: Any) -> None:
    for candidate in (value, {"type": "structural_tag", "format": value}):
        with suppress(GrammarError):
            use(compile_structural_tag(candidate, byte_vocabulary(), limits=SMALL))
