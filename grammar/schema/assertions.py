"""The keywords of one subschema to shapes and terms. Values of the wrong kind raise
`GrammarError`.
"""

from fractions import Fraction

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.schema.alternatives import at_least_one, exactly_one
from umbel.grammar.schema.assertion_table import DRAFT_3
from umbel.grammar.schema.contents import array_atom, object_atom
from umbel.grammar.schema.listed import listed_values, number_of
from umbel.grammar.schema.reader import Parts, Place, SchemaReader
from umbel.grammar.schema.references import dynamic_target
from umbel.grammar.schema.texts import string_assertions
from umbel.grammar.schema.unevaluated import unevaluated_shape
from umbel.grammar.values.algebra import BOTH_BOOLEANS
from umbel.grammar.values.numbers import (
    ALL_NUMBERS,
    INTEGERS,
    NO_NUMBERS,
    Interval,
    NumberSet,
    number_set,
)
from umbel.grammar.values.shapes import ArrayAtom, ObjectAtom, Shape
from umbel.grammar.values.strings import NO_STRINGS
from umbel.grammar.values.terms import Term

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_NUMBER_KEYWORDS = (*("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),)


def read_parts(reader: SchemaReader, place: Place) -> Parts:
    """Everything that a subschema asserts."""
    schema = place.schema
    if not place.resource.is_declared:
        for name in DRAFT_3 & schema.keys():
            raise UnsupportedGrammar(
                f"keyword {name} of draft 3 is not supported", place.where(name), keyword=name
            )
    parts = Parts()
    parts.shapes.append(_own_shape(reader, place))
    for name in ("enum", "const"):
        if name in schema and place.has(name):
            parts.shapes.append(listed_values(reader, place, name))
    parts.terms += _applied(reader, place)
    if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
        shape = unevaluated_shape(reader, place)
        if shape is not None:
            parts.shapes.append(shape)
    return parts


def _own_shape(reader: SchemaReader, place: Place) -> Shape:
    """The assertions about single types: they do not touch each other."""
    _algebra, schema = reader.algebra, place.schema
    types = _types(place) if "type" in schema else None
    everything = types is None
    kinds = frozenset(TYPES) if types is None else types
    numbers, strings = NO_NUMBERS, NO_STRINGS
    if "number" in kinds or "integer" in kinds:
        numbers = _numbers(place) if not schema.keys().isdisjoint(_NUMBER_KEYWORDS) else ALL_NUMBERS
        if "number" not in kinds:
            numbers = INTEGERS if numbers is ALL_NUMBERS else numbers.intersect(INTEGERS)
    if "string" in kinds:
        strings = string_assertions(reader, place)
    arrays: tuple[ArrayAtom, ...] = ()
    objects: tuple[ObjectAtom, ...] = ()
    if "array" in kinds:
        arrays = array_atom(reader, place)
    if "object" in kinds:
        objects = object_atom(reader, place)
    return Shape(
        everything or "null" in kinds,
        BOTH_BOOLEANS if "boolean" in kinds else frozenset(),
        numbers,
        strings,
        arrays,
        objects,
    )


def _types(place: Place) -> frozenset[str]:
    declared = place.schema["type"]
    names = [declared] if isinstance(declared, str) else declared
    if (
        not isinstance(names, list)
        or not names
        or any(name not in TYPES for name in names if isinstance(name, str))
        or not all(isinstance(name, str) for name in names)
    ):
        raise GrammarError(
            f"type must be one or several of {', '.join(TYPES)}; got {declared!r:.100}",
            place.where("type"),
            keyword="type",
        )
    return frozenset(names)


def _numbers(place: Place) -> NumberSet:
    """minimum, maximum, exclusiveMinimum, exclusiveMaximum and multipleOf together."""
    bounds = Interval()
    for plain, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        is_low = plain == "minimum"
        strict = place.schema.get(exclusive)
        if plain in place.schema:
            value = number_of(place, plain)
            # Draft 4: the exclusive keyword is a flag beside the plain one.
            bounds = bounds.intersect(_side(value, strict is True, is_low))
        if exclusive in place.schema and not isinstance(strict, bool):
            bounds = bounds.intersect(_side(number_of(place, exclusive), True, is_low))
    if "multipleOf" in place.schema:
        step = number_of(place, "multipleOf")
        if step <= 0:
            raise GrammarError(
                "multipleOf must be greater than 0", place.where("multipleOf"), keyword="multipleOf"
            )
        bounds = bounds.intersect(Interval(step=step))
    return number_set(frozenset(), [bounds])


def _side(value: Fraction, is_open: bool, is_low: bool) -> Interval:
    return (
        Interval(low=value, low_open=is_open) if is_low else Interval(high=value, high_open=is_open)
    )


def _applied(reader: SchemaReader, place: Place) -> list[Term]:
    """The terms of allOf, anyOf, oneOf, not, if, references and dependent schemas."""
    schema, terms = place.schema, reader.algebra.terms
    found: list[Term] = []
    if "$ref" in schema:
        found.append(reader.term(reader.target(place)))
    found += [
        reader.term(dynamic_target(reader, place, name))
        for name in ("$dynamicRef", "$recursiveRef")
        if name in schema and place.has(name)
    ]
    if "allOf" in schema:
        found += [reader.term(each) for each in branches(reader, place, "allOf")]
    if "anyOf" in schema:
        found.append(at_least_one(reader, branches(reader, place, "anyOf")))
    if "oneOf" in schema:
        found.append(exactly_one(reader, branches(reader, place, "oneOf")))
    if "not" in schema:
        found.append(terms.complement(reader.below(place, "not")))
    if "if" in schema and place.has("if"):
        found.append(_conditional(reader, place))
    for name in ("dependentSchemas", "dependencies"):
        if name in schema and place.has(name):
            found += _dependent(reader, place, name)
    return [term for term in found if term is not terms.any]


def branches(reader: SchemaReader, place: Place, name: str) -> list[Place]:
    value = place.schema[name]
    if not isinstance(value, list) or not value:
        raise GrammarError(f"{name} must be a non-empty list", place.where(name), keyword=name)
    return [reader.place_below(place, name, at) for at in range(len(value))]


def _conditional(reader: SchemaReader, place: Place) -> Term:
    terms = reader.algebra.terms
    condition = reader.below(place, "if")
    then = reader.below(place, "then") if "then" in place.schema else terms.any
    otherwise = reader.below(place, "else") if "else" in place.schema else terms.any
    if then is terms.any and otherwise is terms.any:
        return terms.any
    # Where one side asserts nothing, the union need not be split into disjoint cases.
    if otherwise is terms.any:
        return terms.either(terms.complement(condition), then)
    if then is terms.any:
        return terms.either(condition, otherwise)
    return terms.either(
        terms.both(condition, then), terms.both(terms.complement(condition), otherwise)
    )


def _dependent(reader: SchemaReader, place: Place, name: str) -> list[Term]:
    entries = place.schema[name]
    if not isinstance(entries, dict):
        raise GrammarError(f"{name} must be an object", place.where(name), keyword=name)
    terms = reader.algebra.terms
    return [
        terms.either(reader.without_property(key, place), reader.below(place, name, key))
        for key, value in entries.items()
        if not isinstance(value, list | str)  # lists of names: see `containers.object_atom`
    ]
