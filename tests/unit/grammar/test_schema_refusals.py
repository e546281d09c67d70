"""A schema that is not enforced exactly is refused, with keyword and JSON Pointer."""

import json
from typing import Any

import pytest
from unit.grammar.oracles import byte_vocabulary

from umbel.grammar import GrammarError, Limits, UnsupportedGrammar, compile_json_schema


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("not", {"type": "string"}),
        ("if", {"type": "string"}),
        ("dependentRequired", {"a": ["b"]}),
        ("dependentSchemas", {"a": {}}),
        ("dependencies", {"a": ["b"]}),
        ("patternProperties", {"^a": True}),
        ("propertyNames", {"maxLength": 3}),
        ("unevaluatedProperties", False),
        ("unevaluatedItems", False),
        ("contains", {"type": "string"}),
        ("$dynamicRef", "#node"),
        ("$recursiveRef", "#"),
        ("format", "hostname"),
        ("pattern", "^(?=a)b"),
        ("pattern", "(a)\\1"),
        ("multipleOf", 0.01),
        ("multipleOf", 100_000),
        ("uniqueItems", True),
        ("minProperties", 1),
        ("maxProperties", 0),
        ("maxLength", 1_000_000),
        ("minLength", 1_000_000),
        ("minimum", 10**450),
        ("oneOf", [{"type": "integer"}, {"type": "number"}]),
        ("oneOf", [{"maxLength": 3}, {"minLength": 5}]),
        ("$ref", "other.json#/a"),
        ("$ref", "#anchor"),
        ("$ref", "#"),
    ],
)
def test_unsupported_keywords_are_refused_with_their_pointer(keyword: str, value: Any) -> None:
    inner = {keyword: value}
    if keyword.endswith("Properties") and keyword.startswith("m"):
        inner |= {"properties": {"a": {}, "b": {}}}
    schema = {"type": "object", "properties": {"a/b": {"items": inner}}}

    with pytest.raises(UnsupportedGrammar) as caught:
        compile_json_schema(schema, byte_vocabulary())

    assert caught.value.keyword == keyword
    assert caught.value.where == f"/properties/a~1b/items/{keyword}"
    assert caught.value.where in str(caught.value)


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
        ({"items": "x", "type": "array"}, "items", "/items"),
        ({"type": "object", "properties": []}, "properties", "/properties"),
        ({"type": "object", "required": "a"}, "required", "/required"),
        ({"const": "\ud800"}, None, "/const"),
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


def test_recursion_through_references_is_refused_for_now() -> None:
    schema = {
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "$ref": "#/$defs/tree",
    }

    with pytest.raises(UnsupportedGrammar, match="recursive") as caught:
        compile_json_schema(schema, byte_vocabulary())

    assert caught.value.where == "/$defs/tree/items/$ref"


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"type": "string"}, {"$ref": "#/anyOf/1"}]},
    ],
)
def test_references_that_go_in_circles_are_refused(schema: Any) -> None:
    with pytest.raises(UnsupportedGrammar, match="recursive"):
        compile_json_schema(schema, byte_vocabulary())


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        (
            {
                "properties": {"a": {}},
                "additionalProperties": False,
                "allOf": [{"properties": {"b": {}}}],
            },
            "additionalProperties",
        ),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}, "pattern"),
        ({"allOf": [{"items": {}}, {"prefixItems": [{}]}], "type": "array"}, "items"),
        (
            {"allOf": [{"properties": {"a": {"minimum": 1}}}, {"properties": {"a": {}}}]},
            "properties",
        ),
        ({"anyOf": [{"const": 1}], "allOf": [{"anyOf": [{"const": 2}]}]}, "anyOf"),
    ],
)
def test_keywords_that_interact_across_parts_are_refused(schema: Any, keyword: str) -> None:
    with pytest.raises(UnsupportedGrammar) as caught:
        compile_json_schema(schema, byte_vocabulary())

    assert caught.value.keyword == keyword


@pytest.mark.parametrize(
    "schema",
    [
        {"then": {"type": "string"}, "const": 1},
        {"minContains": 2, "const": 1},
        {"patternProperties": {}, "const": 1},
        {"unevaluatedProperties": True, "const": 1},
        {"propertyNames": {}, "const": 1},
    ],
)
def test_unsupported_keywords_that_assert_nothing_are_fine(schema: Any) -> None:
    compile_json_schema(schema, byte_vocabulary())


def test_a_refused_keyword_nobody_reaches_costs_nothing() -> None:
    schema = {"$defs": {"unused": {"not": {}}}, "type": "null"}

    compile_json_schema(schema, byte_vocabulary())


def test_large_counts_are_refused_where_they_stand() -> None:
    inner: dict[str, Any] = {
        "type": "array",
        "items": {"type": "string", "maxLength": 200},
        "maxItems": 50,
    }
    schema = {"type": "object", "properties": {"a": inner}}

    with pytest.raises(UnsupportedGrammar, match="character positions") as caught:
        compile_json_schema(schema, byte_vocabulary())

    assert caught.value.where == "/properties/a"


def test_deep_schemas_are_refused() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}

    with pytest.raises(UnsupportedGrammar, match="nested deeper"):
        compile_json_schema(schema, byte_vocabulary())
    with pytest.raises(GrammarError):
        compile_json_schema('{"items":' * 100_000, byte_vocabulary())


def test_a_long_schema_text_is_refused() -> None:
    with pytest.raises(GrammarError, match="longer than the 50 allowed"):
        compile_json_schema(
            json.dumps({"const": "a" * 60}), byte_vocabulary(), limits=Limits(max_source_chars=50)
        )
