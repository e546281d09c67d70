"""What a compiled JSON Schema accepts, rejects and generates."""

import json
import random
from typing import Any

import jsonschema
import pytest
from unit.grammar.oracles import (
    byte_vocabulary,
    mask_ids,
    matches,
    random_walk,
    text_of,
    trained_vocabulary,
)

from umbel.grammar import Constraint, UnsatisfiableGrammar, Vocabulary, compile_json_schema

POINT = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
    "required": ["x", "y"],
}
SCHEMAS: dict[str, Any] = {
    "anything": True,
    "open object": {"type": "object"},
    "open array": {"type": "array"},
    "scalars": {"type": ["string", "integer", "number", "boolean", "null"]},
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 130},
            "tags": {"type": "array", "items": {"enum": ["a", "b\n", 'c"']}, "maxItems": 3},
            "score": {"type": "number", "exclusiveMinimum": -1.5, "maximum": 2.25},
        },
        "required": ["age"],
        "additionalProperties": False,
    },
    "undeclared required": {"type": "object", "properties": {"a": True}, "required": ["z"]},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1},
    "declared and others": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "ab": {"type": "boolean"}, "é\n": False},
        "additionalProperties": {"type": "string"},
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": {"type": "boolean"},
        "minItems": 1,
        "maxItems": 4,
    },
    "old tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "integer"}, {"type": "null"}],
        "additionalItems": False,
    },
    "references": {
        "$defs": {"p/t~": POINT},
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/p~1t~0"}, "to": {"$ref": "#/$defs/p~1t~0"}},
        "required": ["from"],
    },
    "one of": {
        "oneOf": [
            {"properties": {"k": {"const": "a"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
            {"properties": {"k": {"enum": ["b", "c"]}}, "required": ["k"]},
        ],
        "type": "object",
    },
    "one of types": {"oneOf": [{"type": "integer"}, {"type": "string"}, {"const": None}]},
    "any of beside required": {
        **POINT,
        "required": [],
        "anyOf": [{"required": ["x"]}, {"required": ["y"]}],
    },
    "all of": {
        "allOf": [{"type": ["integer", "null"]}, {"minimum": 5, "maximum": 20}, {"maximum": 7}]
    },
    "nullable": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
    "enum": {"enum": [1, 2.0, -0.5, "x", None, True, [1, {"a": "é"}], {"b": []}]},
    "enum beside keywords": {"enum": ["a", "abc", 5, 50, None], "minLength": 2, "maximum": 10},
    "pattern": {"type": "string", "pattern": '^[a-z"\\\\\n]+-\\d{2,}$', "maxLength": 9},
    "contained pattern": {"type": "string", "pattern": "b|^c|d$", "minLength": 2, "maxLength": 5},
    "multiples": {"type": "integer", "minimum": -50, "maximum": 50, "multipleOf": 7},
    "dates": {"type": "array", "items": {"type": "string", "format": "date"}, "maxItems": 2},
    "times": {"type": "array", "items": {"type": "string", "format": "time"}, "maxItems": 2},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "email": {"type": "string", "format": "email", "maxLength": 12},
}


def _compile(schema: Any, vocabulary: Vocabulary | None = None) -> Constraint:
    return compile_json_schema(schema, vocabulary or byte_vocabulary())


def _validator(schema: Any) -> Any:
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("use_limit", [False, True])
def test_random_walks_validate(name: str, use_limit: bool) -> None:
    vocabulary = trained_vocabulary()
    constraint = _compile(SCHEMAS[name], vocabulary)
    validator = _validator(SCHEMAS[name])
    rng = random.Random(name)
    for _ in range(6):
        limit = constraint.start().closing_cost + rng.randint(0, 9) if use_limit else None

        taken, complete = random_walk(
            constraint, vocabulary, rng, limit=limit, use_forced=rng.random() < 0.5
        )

        text = text_of(taken, vocabulary).decode()
        assert complete, text
        validator.validate(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (True, ["1", "{}", '{"a": [[null]]}', '"x"'], ["", "tru", "{,}"]),
        ({"type": "null"}, ["null"], ["nul", "0"]),
        ({"type": "boolean"}, ["true", "false"], ["True", "null"]),
        ({"type": "integer"}, ["0", "-12", "900", "1.0"], ["01", "1.5", "1.00", "+1", "-", ""]),
        ({"type": "number"}, ["0", "-1.50", "1e9", "2E-7"], ["1.", ".5", "01.0", "1e"]),
        (
            {"type": "string"},
            ['""', '"é\\n\\"\\\\"', '"\\u001F"', '"\x7f"'],
            ['"\n"', '"\\x"', "a"],
        ),
        ({"type": "string", "maxLength": 2}, ['"é\\n"', '"😀"'], ['"abc"', '"a\\n\\n"']),
        ({"type": "string", "minLength": 2}, ['"ab"', '"\\"\\""'], ['"a"', '"\\""']),
        ({"type": "string", "pattern": "^a"}, ['"a"', '"ab\\n"'], ['"ba"', '""']),
        ({"type": "string", "pattern": "a$"}, ['"a"', '"\\n\\na"'], ['"ab"']),
        ({"type": "string", "pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"xax"']),
        ({"type": "string", "pattern": '^["\\\\]$'}, ['"\\""', '"\\\\"'], ['"a"', '"""']),
        ({"type": "string", "pattern": "^\\d\\w$"}, ['"1a"'], ['"٣a"', '"1é"']),
        ({"type": "string", "pattern": "^[^]$"}, ['"\\n"'], ['""']),
        ({"type": "string", "pattern": "^\\u00e9\\/\\-$"}, ['"é/-"'], ['"e/-"']),
        ({"type": "string", "pattern": "^a$", "maxLength": 1}, ['"a"'], ['"aa"']),
        (
            {"type": "string", "format": "date"},
            ['"2024-02-29"', '"2000-02-29"', '"2023-12-31"'],
            ['"2023-02-29"', '"1900-02-29"', '"2024-02-30"', '"2024-04-31"', '"2024-13-01"'],
        ),
        ({"type": "string", "format": "ipv4"}, ['"0.10.200.255"'], ['"256.0.0.1"', '"01.0.0.0"']),
        (
            {"type": "string", "format": "time"},
            ['"23:59:59Z"', '"00:00:00.125+05:30"'],
            ['"24:00:00Z"', '"12:00:00"'],
        ),
        ({"type": "array", "minItems": 2}, ["[1, 2]", '[{},"a",[]]'], ["[]", "[1]", "[1,,2]"]),
        ({"type": "array", "maxItems": 1}, ["[]", "[1]"], ["[1,2]"]),
        ({"type": "array", "items": False}, ["[]"], ["[1]"]),
        ({"prefixItems": [{"const": 1}], "type": "array"}, ["[]", "[1]", "[1,2]"], ["[2]"]),
        (
            {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False},
            ["[]", "[1]", "[1,2]"],
            ["[2]", "[1,2,3]", "[1,]"],
        ),
        (
            {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "minItems": 3},
            ["[1,2,2]", "[1, 2,2, 2]"],
            ["[1,2]", "[1]", "[]"],
        ),
        (
            POINT,
            [
                '{"x":1,"y":2}',
                '{"x": 1, "y": 2.5}',
                '{"x":1,"y":2,"z":3}',
                '{"w":0,"x":1,"v":0,"y":2}',
            ],
            ['{"x":1}', '{"y":2,"x":1}', '{"x":  1,"y":2}', "{}", '{"w":0,"x":1,"y":2,"w":0}'],
        ),
        (
            {"type": "object", "properties": {k: {"const": 1} for k in "abc"}, "required": ["b"]},
            ['{"b":1}', '{"a":1,"b":1}', '{"b":1,"c":1}', '{"a":1,"b":1,"c":1}'],
            ["{}", '{"a":1}', '{"b":1,}', '{,"b":1}', '{"a":1,"c":1}'],
        ),
        ({"type": "object", "properties": {}}, ["{}", '{"a":1}'], ['{"a":1,"a":2}']),
        ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a":1}']),
        (
            {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": True},
            ["{}", '{"a":1}', '{"a":1,"b":2}', '{"b":2}', '{"ab":1,"":2}', '{"b":1,"a":1}'],
            ['{"a":2}', '{"b":1,"b":1}', '{"a":1,"a":1}', '{"\\u0061":1}'],
        ),
        ({"type": "object", "required": ["a"]}, ['{"a":null}', '{"a":1,"b":2}'], ["{}"]),
        ({"enum": [2.0]}, ["2.0", "2"], ["2.5"]),
        ({"const": {"a": [1, 'x"']}}, ['{"a": [1, "x\\""]}', '{"a":[1,"x\\""]}'], ['{"a":[1]}']),
        ({"const": None}, ["null"], ["0"]),
        ({"enum": [1, "1", True], "type": "string"}, ['"1"'], ["1", "true"]),
        ({"const": 1, "enum": [1, 2]}, ["1"], ["2"]),
        ({"allOf": [{"enum": [1, 2, "a"]}, {"enum": [True, "a", 2]}]}, ["2", '"a"'], ["1", "true"]),
        ({"properties": {"a": {"type": "integer"}}}, ["5", '"x"', '{"a":1}'], ['{"a":"x"}']),
        ({"anyOf": [{"const": "a"}, {"const": "ab"}]}, ['"a"', '"ab"'], ['"b"']),
        ({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"const": 1}}}, ["1"], ["2"]),
        (
            {"$ref": "#/$defs/s", "maxLength": 1, "$defs": {"s": {"type": "string"}}},
            ['"a"'],
            ['"ab"', "1"],
        ),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, ["2"], ["1"]),
        (
            {"type": "number", "multipleOf": 2.0, "maximum": 4, "minimum": 0},
            ["0", "2", "4"],
            ["1", "6"],
        ),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[]", "[1]"], ["[1,1]"]),
        (
            {"title": "t", "description": "d", "examples": [1], "x-own": {}, "const": 1},
            ["1"],
            ["2"],
        ),
    ],
)
def test_schema_accepts_and_rejects(schema: Any, accepted: list[str], rejected: list[str]) -> None:
    constraint = _compile(schema)

    assert [text for text in accepted if not matches(constraint, text)] == []
    assert [text for text in rejected if matches(constraint, text)] == []


@pytest.mark.parametrize("seed", range(6))
def test_integer_ranges_hold_exactly_the_integers_between(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(8):
        low, high = sorted(rng.randint(-1200, 1200) for _ in range(2))
        constraint = _compile({"type": "integer", "minimum": low, "maximum": high})
        near = [low - 1, low, low + 1, high - 1, high, high + 1, 0, -1, 1]
        for value in near + [rng.randint(-1500, 1500) for _ in range(60)]:
            assert matches(constraint, str(value)) == (low <= value <= high), (low, high, value)


@pytest.mark.parametrize("seed", range(6))
def test_number_ranges_hold_exactly_the_decimals_between(seed: int) -> None:
    rng = random.Random(50 + seed)
    for _ in range(8):
        low, high = sorted(round(rng.uniform(-20, 20), rng.randint(0, 3)) for _ in range(2))
        is_open = rng.random() < 0.5
        names = ("exclusiveMinimum", "exclusiveMaximum") if is_open else ("minimum", "maximum")
        try:
            constraint = _compile({"type": "number", names[0]: low, names[1]: high})
        except UnsatisfiableGrammar:
            assert is_open
            assert low == high
            continue
        texts = [f"{rng.uniform(-25, 25):.{rng.randint(0, 4)}f}" for _ in range(60)]
        texts += [f"{value:.{digits}f}" for value in (low, high) for digits in (3, 4, 5)]
        for text in texts:
            value = float(text)
            inside = low < value < high if is_open else low <= value <= high
            is_minus_zero = text.startswith("-") and value == 0
            if not is_minus_zero:
                assert matches(constraint, text) == inside, (low, high, is_open, text)


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "string", "minLength": 2, "maxLength": 1},
        {"type": "string", "pattern": "^abc$", "maxLength": 2},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"enum": []},
        {"allOf": [{"const": 1}, {"const": True}]},
        {"enum": ["a"], "type": "integer"},
        {"anyOf": [False, {"const": 1, "type": "string"}]},
    ],
)
def test_schemas_without_instances_are_unsatisfiable(schema: Any) -> None:
    with pytest.raises(UnsatisfiableGrammar):
        _compile(schema)


def test_a_schema_in_many_optional_properties_stays_small() -> None:
    properties = {f"property_{number}": {"type": "integer"} for number in range(60)}
    constraint = _compile({"type": "object", "properties": properties})

    assert matches(constraint, '{"property_3": 1, "property_41": 2}')
    assert not matches(constraint, '{"property_41": 1, "property_3": 2}')


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize(
    "names", [("id", "ident", "i", "na me"), ('q"', "café", "a\\b", "\n"), ("", "x" * 40)]
)
def test_names_beside_declared_ones_are_masked_as_they_are_taken(
    names: tuple[str, ...], any_order: bool
) -> None:
    """Declared names that are gone, and names used before, are allowed neither way."""
    vocabulary = trained_vocabulary()
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
    constraint = compile_json_schema(schema, vocabulary, any_order=any_order)
    rng = random.Random(repr(names))
    for text in ({names[1]: None, names[0] + "s": None}, {"other": 1, names[0]: None}):
        matcher = constraint.start()
        for value in json.dumps(text, ensure_ascii=False).encode():
            if rng.random() < 0.3:
                allowed = mask_ids(matcher, vocabulary)
                assert allowed == {i for i in range(vocabulary.size) if matcher.clone().advance(i)}
            assert matcher.advance(vocabulary.ids_by_bytes[bytes([value])][0])
        assert matcher.accepting


def test_long_names_may_be_declared_among_names_of_a_pattern() -> None:
    """The only names of the pattern are a declared one and another as long as it."""
    size = 3_000
    schema = {
        "type": "object",
        "properties": {"n" * size: False},
        "patternProperties": {"^" + "n" * (size - 1) + "n?$": {"type": "null"}},
        "additionalProperties": False,
    }
    matcher = compile_json_schema(schema, byte_vocabulary()).start()

    for value in b'{"' + b"n" * (size - 1):
        assert matcher.advance(value)
    assert mask_ids(matcher, byte_vocabulary()) == {ord('"')}
    for value in b'":null}':
        assert matcher.advance(value)
    assert matcher.finished
