"""Which schemas are refused or wrong, what the error says, and what `strict=False` leaves out."""

import json
from typing import Any

import pytest
from unit.grammar.oracles import byte_vocabulary, matches

from umbel.grammar import (
    GrammarError,
    Limits,
    UnsatisfiableGrammar,
    UnsupportedGrammar,
    compile_json_schema,
)
from umbel.grammar.values.effort import CompileCancelled

REFUSED: list[tuple[Any, str, str]] = [
    ({"$ref": "http://example.com/other.json"}, "$ref", "/$ref"),
    ({"type": "string", "pattern": "(a)\\1"}, "pattern", "/pattern"),
    ({"type": "string", "pattern": "(?<=a)b"}, "pattern", "/pattern"),
    ({"type": "string", "pattern": "(a|b)*a(a|b){30}"}, "pattern", "/pattern"),
    (
        {"type": "array", "uniqueItems": True, "items": {"not": {"uniqueItems": True}}},
        "uniqueItems",
        "",
    ),
    ({"type": "array", "not": {"uniqueItems": True}}, "uniqueItems", "/not/uniqueItems"),
    ({"type": "number", "multipleOf": 123456.789}, "multipleOf", "/multipleOf"),
    ({"type": "number", "minimum": 10**500}, "minimum", "/minimum"),
    ({"const": "\ud800"}, "const", "/const"),
    ({"extends": {"type": "string"}}, "extends", "/extends"),
    (
        {
            "type": "array",
            "contains": {"const": 1},
            "uniqueItems": True,
            "items": {"type": "integer"},
        },
        "uniqueItems",
        "/uniqueItems",
    ),
]


@pytest.mark.parametrize(("schema", "keyword", "where"), REFUSED)
def test_what_cannot_be_enforced_is_refused_with_keyword_and_pointer(
    schema: Any, keyword: str, where: str
) -> None:
    with pytest.raises(UnsupportedGrammar) as caught:
        compile_json_schema(schema, byte_vocabulary())

    assert caught.value.keyword == keyword
    assert (caught.value.where or "").startswith(where)


def test_the_pointer_of_a_refusal_leads_through_references() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/x~1y"}},
        "$defs": {"x/y": {"allOf": [{"type": "string"}, {"pattern": "(?<!a)b"}]}},
    }

    with pytest.raises(UnsupportedGrammar) as caught:
        compile_json_schema(schema, byte_vocabulary())

    assert caught.value.where == "/$defs/x~1y/allOf/1/pattern"


def test_without_strict_a_refused_keyword_is_left_out_and_named() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "(x)\\1", "maxLength": 2}},
        "required": ["a"],
        "additionalProperties": False,
    }

    constraint = compile_json_schema(schema, byte_vocabulary(), strict=False)

    assert matches(constraint, '{"a":"yz"}')
    assert not matches(constraint, '{"a":"xyz"}')
    assert len(constraint.warnings) == 1
    assert "/properties/a/pattern" in constraint.warnings[0]


def test_without_strict_keywords_refused_late_are_left_out_too() -> None:
    schema = {
        "allOf": [{"type": "array", "uniqueItems": True, "items": {"type": "array"}, "maxItems": 3}]
    }
    schema["allOf"][0]["contains"] = {"type": "array"}

    constraint = compile_json_schema(schema, byte_vocabulary(), strict=False)

    assert matches(constraint, "[[],[]]")
    assert ["uniqueItems" in warning for warning in constraint.warnings] == [True]


def test_a_schema_that_is_wholly_enforced_has_no_warnings() -> None:
    constraint = compile_json_schema({"type": "string", "pattern": "a"}, byte_vocabulary())

    assert constraint.warnings == ()


def test_formats_that_stay_annotations_are_named() -> None:
    constraint = compile_json_schema({"type": "string", "format": "regex"}, byte_vocabulary())

    assert matches(constraint, '"("')
    assert "regex" in constraint.warnings[0]


def test_unknown_formats_assert_nothing() -> None:
    constraint = compile_json_schema({"type": "string", "format": "color"}, byte_vocabulary())

    assert matches(constraint, '"anything"')


@pytest.mark.parametrize(
    ("schema", "keyword", "where"),
    [
        ({"type": "strin"}, "type", "/type"),
        ({"type": []}, "type", "/type"),
        ({"type": "string", "minLength": -1}, "minLength", "/minLength"),
        ({"type": "string", "maxLength": "3"}, "maxLength", "/maxLength"),
        ({"type": "string", "pattern": "("}, "pattern", "/pattern"),
        ({"type": "string", "pattern": 5}, "pattern", "/pattern"),
        ({"type": "number", "minimum": "1"}, "minimum", "/minimum"),
        ({"type": "number", "multipleOf": 0}, "multipleOf", "/multipleOf"),
        ({"enum": 5}, "enum", "/enum"),
        ({"anyOf": []}, "anyOf", "/anyOf"),
        ({"allOf": {}}, "allOf", "/allOf"),
        ({"$ref": "#/nowhere"}, "$ref", "/$ref"),
        ({"$ref": 5}, "$ref", "/$ref"),
        ({"properties": {"a": 5}}, None, "/properties/a"),
        ({"items": "x", "type": "array"}, None, "/items"),
        ({"type": "object", "properties": []}, "properties", "/properties"),
        ({"type": "object", "required": "a"}, "required", "/required"),
        ({"type": "array", "uniqueItems": 1}, "uniqueItems", "/uniqueItems"),
        ({"type": "object", "dependentRequired": []}, "dependentRequired", "/dependentRequired"),
        ({"oneOf": [{"not": {"type": 5}}]}, "type", "/oneOf/0/not/type"),
    ],
)
def test_malformed_keywords_are_errors_with_their_pointer(
    schema: Any, keyword: str | None, where: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_json_schema(schema, byte_vocabulary())

    assert not isinstance(caught.value, UnsupportedGrammar)
    assert (caught.value.keyword, caught.value.where) == (keyword, where)


@pytest.mark.parametrize(
    "schema", ["{", "[]", "5", '"x"', "null", '{"minimum": NaN}', 5, None, [], {"a": {1, 2}}, b"{}"]
)
def test_what_is_no_schema_is_an_error(schema: Any) -> None:
    with pytest.raises(GrammarError):
        compile_json_schema(schema, byte_vocabulary())


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"type": "string"}, {"$ref": "#/anyOf/1"}]},
        {"not": {"$ref": "#"}},
    ],
)
def test_references_that_go_in_circles_are_errors(schema: Any) -> None:
    with pytest.raises(GrammarError, match="back to"):
        compile_json_schema(schema, byte_vocabulary())


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "contradict"),
        (
            {
                "type": "object",
                "properties": {"a": {"allOf": [{"type": "null"}, {"const": 1}]}},
                "required": ["a"],
            },
            "'a' has no possible value",
        ),
        ({"properties": {"me": {"$ref": "#"}}, "required": ["me"], "type": "object"}, "'me'"),
        ({"type": "array", "items": {"enum": []}, "minItems": 1}, "item 0"),
        (
            {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
            "contradict",
        ),
        ({"oneOf": [{"type": "integer"}, {"type": "integer"}]}, "contradict"),
        ({"not": {}}, "contradict"),
        (False, "false"),
    ],
)
def test_contradictions_are_told(schema: Any, reason: str) -> None:
    with pytest.raises(UnsatisfiableGrammar, match=reason):
        compile_json_schema(schema, byte_vocabulary())


def test_a_refused_keyword_nobody_reaches_costs_nothing() -> None:
    schema = {"$defs": {"unused": {"pattern": "(a)\\1"}}, "type": "null"}

    compile_json_schema(schema, byte_vocabulary())


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 100_000, "minLength": 99_999},
        {"type": "array", "items": {"type": "string", "maxLength": 100_000}, "maxItems": 100_000},
        {"type": "array", "minItems": 100_000},
        {"enum": [f"value {n}" for n in range(5_000)]},
        {"not": {"enum": [f"value {n}" for n in range(5_000)]}},
        {"properties": {f"name {n}": {"type": "integer"} for n in range(500)}},
        {"type": "integer", "minimum": -(10**30), "maximum": 10**30},
        {
            "oneOf": [
                {"properties": {"kind": {"const": n}}, "required": ["kind"]}
                for n in "abcdefghijklmnopqrst"
            ]
        },
    ],
    ids=["length", "strings", "items", "enum", "not enum", "properties", "numbers", "oneOf"],
)
def test_large_schemas_compile(schema: Any) -> None:
    compile_json_schema(schema, byte_vocabulary())


def test_deep_schemas_compile_or_are_refused() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}

    compile_json_schema(schema, byte_vocabulary())
    with pytest.raises(GrammarError):
        compile_json_schema('{"items":' * 100_000, byte_vocabulary())


def test_an_endless_ladder_of_alternatives_is_refused_in_time() -> None:
    pairs = [{"anyOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(20)]

    with pytest.raises(UnsupportedGrammar, match="cases"):
        compile_json_schema({"type": "object", "allOf": pairs}, byte_vocabulary())


def test_a_cancelled_compilation_stops() -> None:
    schema = {"properties": {f"name {n}": {"type": ["integer", "string"]} for n in range(500)}}

    with pytest.raises(CompileCancelled):
        compile_json_schema(schema, byte_vocabulary(), cancelled=lambda: True)


def test_a_long_schema_text_is_refused() -> None:
    with pytest.raises(GrammarError, match="longer than the 50 allowed"):
        compile_json_schema(
            json.dumps({"const": "a" * 60}), byte_vocabulary(), limits=Limits(max_source_chars=50)
        )
