"""uniqueItems: no two items are equal by value, and no text runs out of values before its end."""

import json
import random
import time
from typing import Any

import jsonschema
import pytest
from unit.grammar.naive_machine import NaiveMachine, accepts
from unit.grammar.oracles import trained_vocabulary

from umbel.grammar import compile_json_schema
from umbel.grammar.errors import UnsatisfiableGrammar, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.rules import RuleState
from umbel.grammar.schema.front import SchemaOptions, read_schema
from umbel.grammar.schema.load import load_schema

POINT = {
    "type": "object",
    "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
# Each with the number of distinct items there are.
FINITE: list[tuple[Any, int]] = [
    (POINT, 6),
    ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, 7),
    (
        {"type": "array", "prefixItems": [POINT, {"type": "null"}], "minItems": 1, "items": False},
        12,
    ),
    ({"anyOf": [POINT, {"type": "array", "maxItems": 0}, {"enum": [1, [], {"a": 1}]}]}, 8),
    (
        {
            "type": "object",
            "additionalProperties": {"type": "boolean"},
            "propertyNames": {"enum": ["x", "y"]},
        },
        9,
    ),
    ({"type": "integer", "minimum": 1, "maximum": 4}, 4),
    ({"type": "string", "pattern": "^[ab]{1,2}$"}, 6),
    ({"enum": [1, 1.0, "1", True, None]}, 4),
]


def _start(schema: Any, *, any_order: bool = False) -> RuleState:
    options = SchemaOptions(any_order=any_order)
    return read_schema(load_schema(schema, Limits()), options, Limits()).start


def _unique(items: Any, **others: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, **others}


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize(("items", "count"), FINITE)
def test_walks_use_up_all_values_without_getting_stuck(
    items: Any, count: int, any_order: bool
) -> None:
    start = _start(_unique(items, minItems=count), any_order=any_order)
    for seed in range(3):
        rng, machine, text = random.Random(seed), NaiveMachine.start(start), b""
        while not machine.can_end:
            possible = [value for value in machine.next_bytes() if value < 128]
            assert possible, text
            value = rng.choice(possible)
            machine = machine.step(value)
            text += bytes([value])

        jsonschema.validate(json.loads(text), _unique(items, minItems=count))


@pytest.mark.parametrize(("items", "count"), [FINITE[index] for index in (5, 6, 7)])
def test_more_items_than_values_are_unsatisfiable(items: Any, count: int) -> None:
    with pytest.raises(UnsatisfiableGrammar):
        _start(_unique(items, minItems=count + 1))


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        ([1, 2, "1", True, None, False], True),
        ([1, 1.0], False),
        ([0, False, "", [], {}], True),
        ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False),
        ([{"a": 1, "b": 2}, {"a": 1}], True),
        ([{"a": 1}, {"a": 1, "b": 2}, {"a": 2}], True),
        ([[1, [2]], [1, [2.0]]], False),
        ([[1, [2]], [1, [2], 3], [1]], True),
        ([{"a": {"b": [{}]}}, {"a": {"b": [{}]}}], False),
        ([{"a": {"b": [{}]}}, {"a": {"b": [{}, {}]}}], True),
        (["a", "b", "a"], False),
    ],
)
def test_items_are_compared_by_value(value: Any, is_valid: bool) -> None:
    start = _start({"type": "array", "uniqueItems": True}, any_order=True)

    assert accepts(start, json.dumps(value).encode()) == is_valid


def test_items_whose_completions_cannot_be_counted_are_refused() -> None:
    items = {"type": "object", "minProperties": 1, "propertyNames": {"enum": ["a", "b"]}}

    with pytest.raises(UnsupportedGrammar) as caught:
        _start({"properties": {"x": _unique(items)}})

    assert (caught.value.keyword, caught.value.where) == (
        "uniqueItems",
        "/properties/x/uniqueItems",
    )


def test_closing_a_long_unique_array_of_many_literals_takes_no_time() -> None:
    names = [f"word{at}" for at in range(2_000)]
    schema = {"type": "array", "items": {"enum": names}, "minItems": 100, "uniqueItems": True}
    matcher = compile_json_schema(schema, trained_vocabulary()).start()

    started = time.process_time()
    cost = matcher.closing_cost

    assert time.process_time() - started < 2
    # A text of the first hundred names is a way to the end; none is shorter than its brackets.
    assert 100 < cost <= len(json.dumps(names[:100]))
