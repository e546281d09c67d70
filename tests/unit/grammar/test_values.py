"""The algebra of sets of JSON values against what sets are: membership decided by `jsonschema`,
value by value.
"""

import random
from fractions import Fraction
from typing import Any

import jsonschema
import pytest
from unit.grammar.schema_strategies import UNIVERSE, random_schema

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.regex import languages
from umbel.grammar.schema.assertions import read_parts
from umbel.grammar.schema.document import Document
from umbel.grammar.schema.reader import Place, SchemaReader
from umbel.grammar.values.membership import Membership
from umbel.grammar.values.numbers import Interval, number_set
from umbel.grammar.values.strings import StringSet, Texts

LIMITS = Limits()


def _reader(schema: Any) -> SchemaReader:
    return SchemaReader(Document(schema), read_parts, LIMITS)


def _valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize("seed", range(150))
def test_a_schema_and_its_complement_divide_all_values(seed: int) -> None:
    rng = random.Random(seed)
    schema = {"$defs": {"shared": random_schema(rng, 1)}, **random_schema(rng, 3, references=True)}
    reader = _reader(schema)
    term = reader.root()
    negation = reader.algebra.terms.complement(term)
    member = Membership(reader.algebra)
    try:
        is_empty = not reader.emptiness.has_member(term)
        is_full = not reader.emptiness.has_member(negation)
    except UnsupportedGrammar:
        return

    for value in UNIVERSE:
        inside = _valid(schema, value)
        assert member.contains(term, value) == inside, (schema, value)
        assert member.contains(negation, value) != inside, (schema, value)
        assert not (inside and is_empty), (schema, value)
        assert inside or not is_full, (schema, value)


@pytest.mark.parametrize("seed", range(60))
def test_union_and_intersection_are_those_of_sets(seed: int) -> None:
    rng = random.Random(1000 + seed)
    left, right = random_schema(rng, 2), random_schema(rng, 2)
    reader = _reader({"$defs": {"left": left, "right": right}})
    terms = reader.algebra.terms
    first = reader.term(Place(left, "/$defs/left", reader.document.main))
    second = reader.term(Place(right, "/$defs/right", reader.document.main))
    member = Membership(reader.algebra)
    try:
        for term in (terms.both(first, second), terms.either(first, second)):
            reader.algebra.shape(term)
    except UnsupportedGrammar:
        return

    for value in UNIVERSE:
        sides = _valid(left, value), _valid(right, value)
        assert member.contains(terms.both(first, second), value) == all(sides)
        assert member.contains(terms.either(first, second), value) == any(sides)


@pytest.mark.parametrize(
    ("schema", "is_empty"),
    [
        ({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}, True),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, True),
        ({"type": "array", "items": {"$ref": "#"}}, False),
        (
            {
                "$ref": "#/$defs/even",
                "$defs": {
                    "even": {"type": "array", "items": {"$ref": "#/$defs/odd"}, "minItems": 1},
                    "odd": {"anyOf": [{"$ref": "#/$defs/even"}, {"type": "null"}]},
                },
            },
            False,
        ),
        (
            {
                "type": "integer",
                "multipleOf": 2,
                "not": {"multipleOf": 4},
                "minimum": 3,
                "maximum": 5,
            },
            True,
        ),
        (
            {
                "type": "integer",
                "multipleOf": 2,
                "not": {"multipleOf": 4},
                "minimum": 3,
                "maximum": 6,
            },
            False,
        ),
        ({"type": "string", "pattern": "^(ab)*$", "minLength": 3, "maxLength": 3}, True),
        ({"type": "string", "allOf": [{"pattern": "a"}, {"not": {"pattern": "[a-z]"}}]}, True),
        ({"type": "string", "pattern": "^[ab]$", "not": {"enum": ["a", "b"]}}, True),
        ({"type": "object", "minProperties": 3, "propertyNames": {"enum": ["a", "b"]}}, True),
        ({"type": "object", "minProperties": 2, "propertyNames": {"pattern": "^[ab]$"}}, False),
        ({"type": "object", "minProperties": 3, "propertyNames": {"pattern": "^[ab]$"}}, True),
        (
            {
                "type": "object",
                "maxProperties": 1,
                "required": ["a"],
                "dependentRequired": {"a": ["b"]},
            },
            True,
        ),
        (
            {"type": "array", "items": {"enum": [1, 2, 1.0]}, "uniqueItems": True, "minItems": 3},
            True,
        ),
        ({"type": "array", "contains": {"type": "string"}, "items": {"type": "null"}}, True),
        ({"type": "array", "contains": {"const": 1}, "minContains": 2, "maxItems": 1}, True),
        (
            {
                "type": "array",
                "maxItems": 1,
                "allOf": [{"contains": {"minimum": 1}}, {"contains": {"maximum": 2}}],
                "items": {"type": "integer"},
            },
            False,
        ),
    ],
)
def test_emptiness_is_decided(schema: Any, is_empty: bool) -> None:
    reader = _reader(schema)

    assert (not reader.emptiness.has_member(reader.root())) == is_empty


def test_a_set_of_numbers_and_its_complement_share_nothing() -> None:
    half, two = Fraction(1, 2), Fraction(2)
    numbers = number_set(frozenset({Fraction(7)}), [Interval(two, None, True, False, half)])
    rest = numbers.complement()

    assert numbers.intersect(rest).is_empty
    for value in (Fraction(2), Fraction(5, 2), Fraction(7), Fraction(11, 4), Fraction(-3)):
        assert numbers.contains(value) != rest.contains(value)


def test_a_language_keeps_its_length_bounds_apart() -> None:
    pattern = languages.from_pattern("^[ab]+$", LIMITS)
    texts = StringSet(atoms=(Texts(pattern, 2, 100_000),))

    assert texts.contains("ab" * 50_000)
    assert not texts.contains("a" * 100_001)
    assert texts.complement().contains("a")
    assert texts.intersect(texts.complement()).is_empty


@pytest.mark.parametrize(
    ("pattern", "low", "high", "count"),
    [
        ("^[ab]$", 0, None, 2),
        ("^(ab)*$", 4, 8, 3),
        ("^[ab]{2}$", 3, None, 0),
        ("^a*$", 99_998, 100_000, 3),
    ],
)
def test_texts_of_a_language_are_counted(
    pattern: str, low: int, high: int | None, count: int
) -> None:
    language = languages.from_pattern(pattern, LIMITS)

    assert languages.count_texts(language, low, high, 1000) == count


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("^(?!foo).*$", ["", "fo", "xfoo"], ["foo", "foobar"]),
        ("^(?=.*\\d)(?=.*[a-z]).{3,}$", ["a1b", "12c"], ["abc", "a1", "123"]),
        ("a(?!b)", ["a", "ac", "abac"], ["ab", "b"]),
        ("^(?:a|(?:b))$(?!c)", ["a", "b"], ["c", "ac"]),
    ],
)
def test_lookahead_at_the_top_of_a_pattern(
    pattern: str, inside: list[str], outside: list[str]
) -> None:
    language = languages.from_pattern(pattern, LIMITS)

    assert [text for text in inside if not language.accepts(text)] == []
    assert [text for text in outside if language.accepts(text)] == []
