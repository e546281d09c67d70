"""Compilations that could take for ever: each ends within its budgets, and whenever it is told to.

What takes long asks `check_interrupt` all along: so the number of questions, and not a clock,
tells that a stage can be stopped from inside.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from unit.grammar.oracles import byte_vocabulary, mask_ids

from umbel.grammar import (
    Constraint,
    UnsupportedGrammar,
    compile_gbnf,
    compile_json_schema,
    compile_lark,
    compile_regex,
)
from umbel.grammar.errors import CompileCancelled
from umbel.grammar.interrupt import check_interrupt, interruptible

WORDS = [f"word{number * 7919 % 100_003}" for number in range(5_000)]
LEFT_RECURSION = "start: a0\n" + "\n".join(
    f'a{i}: a{(i + 1) % 40} "x{i}" | a{(i + 7) % 40} "y" | "z"' for i in range(40)
)
AMBIGUOUS_TERMINALS = (
    r"start: (A|B|C)+"
    "\nA: /(a|b)*a(a|b){8}/\nB: /(a|b)*b(a|b){8}/\nC: /[a-c]{1,60}/"
)


def regex(pattern: str) -> Callable[[], Constraint]:
    return lambda: compile_regex(pattern, byte_vocabulary())


def schema(value: Any, **options: Any) -> Callable[[], Constraint]:
    return lambda: compile_json_schema(value, byte_vocabulary(), **options)


def lark(text: str) -> Callable[[], Constraint]:
    return lambda: compile_lark(text, byte_vocabulary())


def _object_with(num_properties: int) -> dict[str, Any]:
    names = [f"p{number}" for number in range(num_properties)]
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names[::2],
    }


def _references(depth: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(depth)
    }
    return {"$defs": {**definitions, f"d{depth}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


NASTY = {
    "alternation of 5,000 words": regex("|".join(WORDS)),
    "nested counts": regex("((a{1,50}b){1,50}c){1,50}"),
    "exponential": regex("(a|b)*a(a|b){30}"),
    "wide classes counted": regex(r"(\w{1,100}\s?){1,100}"),
    "overlapping stars": regex("(.*a.*b.*c|.*b.*c.*a){1,8}"),
    "5,000 literals": schema({"enum": WORDS}),
    "500 properties": schema(_object_with(500), any_order=True),
    "100,000 characters": schema({"type": "string", "minLength": 99_999, "maxLength": 100_000}),
    "100,000 characters of a pattern": schema({"pattern": "^(ab|c)*x[a-z]+$", "maxLength": 10**5}),
    "100,000 items": schema({"items": {"type": "integer"}, "minItems": 9, "maxItems": 10**5}),
    "oneOf of 60 constants": schema(
        {"oneOf": [{"properties": {"k": {"const": i}}, "required": ["k"]} for i in range(60)]}
    ),
    "oneOf of overlapping objects": schema(
        {"oneOf": [{"properties": {f"a{i}": {"minimum": i}}} for i in range(40)]}
    ),
    "patterns joined": schema({"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(12)]}),
    "deep references": schema(_references(2_000)),
    "thousands of different items": schema({"uniqueItems": True, "minItems": 1_500}),
    "many undeclared names": schema({"type": "object", "minProperties": 10**30}),
    "small steps": schema({"multipleOf": 0.00012345, "minimum": 0, "maximum": 10**12}),
    "3,000 keywords": lark("start: " + "|".join(f'"{word}"' for word in WORDS[:3_000])),
    "left recursion": lark(LEFT_RECURSION),
    "terminals that overlap": lark(AMBIGUOUS_TERMINALS),
    "counts of counts": lark('start: (("a"~1..300 "b")~1..300 "c")~1..300'),
    "GBNF counts": lambda: compile_gbnf(
        "root ::= " + "(" * 12 + '"a"' + "){1,9}" * 12, byte_vocabulary()
    ),
}
# Those with a stage that works for a while, wherever that is.
LONG = [
    "exponential",
    "wide classes counted",
    "overlapping stars",
    "oneOf of 60 constants",
    "patterns joined",
    "left recursion",
    "terminals that overlap",
]


@pytest.mark.parametrize("name", NASTY)
def test_it_compiles_or_is_refused_by_name(name: str) -> None:
    refused = ""
    try:
        constraint = NASTY[name]()
    except UnsupportedGrammar as refusal:
        refused = refusal.keyword or "nothing"

    assert refused != "nothing"
    assert refused or mask_ids(constraint.start(), byte_vocabulary())


@pytest.mark.parametrize("num_asked", [1, 30])
@pytest.mark.parametrize("name", LONG)
def test_it_stops_when_told_to(name: str, num_asked: int) -> None:
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked >= num_asked

    with pytest.raises(CompileCancelled), interruptible(cancelled):
        NASTY[name]()

    assert asked == num_asked


def test_the_schema_door_takes_the_wish_as_an_argument() -> None:
    with pytest.raises(CompileCancelled):
        compile_json_schema({"pattern": "a+b"}, byte_vocabulary(), cancelled=lambda: True)


def test_nobody_is_asked_outside() -> None:
    asked = []

    with interruptible(lambda: bool(asked.append(1))), interruptible(None):
        check_interrupt()
    with suppress(CompileCancelled):
        check_interrupt()

    assert asked == [1]


def test_a_stopped_compilation_leaves_nothing_behind() -> None:
    pattern = "(x|y)*x(x|y){9}"
    with pytest.raises(CompileCancelled), interruptible(lambda: True):
        compile_regex(pattern, byte_vocabulary())

    assert mask_ids(compile_regex(pattern, byte_vocabulary()).start(), byte_vocabulary())
