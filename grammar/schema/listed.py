"""Keywords whose values are numbers or lists of JSON values, checked and read."""

from fractions import Fraction

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.schema.reader import Place, SchemaReader
from umbel.grammar.values.fields import Fields, Items
from umbel.grammar.values.literals import Json, exact, is_number
from umbel.grammar.values.numbers import NumberSet
from umbel.grammar.values.shapes import ArrayAtom, ObjectAtom, Shape
from umbel.grammar.values.strings import StringSet


def number_of(place: Place, name: str) -> Fraction:
    value = place.schema[name]
    if not is_number(value):
        raise GrammarError(
            f"{name} must be a number, got {value!r:.60}", place.where(name), keyword=name
        )
    try:
        return exact(value)
    except GrammarError as exc:
        raise UnsupportedGrammar(f"{name}: {exc.message}", place.where(name), keyword=name) from exc


def count_of(place: Place, name: str) -> int | None:
    """A keyword whose value is a non-negative integer; None when it is absent or asserts
    nothing.
    """
    if name not in place.schema or not place.has(name):
        return None
    value = place.schema[name]
    if not is_number(value) or value < 0 or value != int(value):
        raise GrammarError(
            f"{name} must be a non-negative integer, got {value!r:.60}",
            place.where(name),
            keyword=name,
        )
    return int(value)


def listed_values(reader: SchemaReader, place: Place, name: str) -> Shape:
    """The values of enum, or the one of const."""
    values = place.schema[name] if name == "enum" else [place.schema[name]]
    if not isinstance(values, list):
        raise GrammarError("enum must be a list", place.where("enum"), keyword="enum")
    null = False
    booleans: set[bool] = set()
    numbers: set[Fraction] = set()
    strings: set[str] = set()
    arrays: list[ArrayAtom] = []
    objects: list[ObjectAtom] = []
    for value in values:
        if isinstance(value, str):
            strings.add(_checked(value, place, name))
        elif value is None:
            null = True
        elif isinstance(value, bool):
            booleans.add(value)
        elif is_number(value):
            numbers.add(exact(value))
        elif isinstance(value, list):
            arrays.append(_constant_array(reader, value, place))
        else:
            objects.append(_constant_object(reader, value, place))
    return Shape(
        null,
        frozenset(booleans),
        NumberSet(frozenset(numbers)),
        StringSet(frozenset(strings)),
        tuple(arrays),
        tuple(objects),
    )


def _constant_array(reader: SchemaReader, value: list[Json], place: Place) -> ArrayAtom:
    items = Items(tuple(reader.constant(item, place) for item in value), reader.algebra.terms.none)
    return ArrayAtom(items, len(value), len(value))


def _constant_object(reader: SchemaReader, value: dict[str, Json], place: Place) -> ObjectAtom:
    fields = {
        _checked(key, place, "enum"): reader.constant(item, place) for key, item in value.items()
    }
    return ObjectAtom(Fields(fields, reader.algebra.terms.none), tuple(fields), len(fields))


def _checked(text: str, place: Place, name: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise UnsupportedGrammar(
            f"{text!r:.60} holds a surrogate, which no UTF-8 text can",
            place.where(name),
            keyword=name,
        )
    return text
