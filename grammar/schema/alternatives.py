"""anyOf and oneOf. Branches that only list values are joined first, so that there may be thousands.

oneOf is a plain union where the branches share no instance, else one with the complements of those
that may.
"""

from collections import Counter

from umbel.grammar.schema.assertion_table import ASSERTIONS, DRAFT_3
from umbel.grammar.schema.reader import Place, SchemaReader
from umbel.grammar.values.algebra import ShapeInProgress
from umbel.grammar.values.literals import Json, canonical
from umbel.grammar.values.shapes import ObjectAtom, Shape
from umbel.grammar.values.terms import Term


def at_least_one(reader: SchemaReader, places: list[Place]) -> Term:
    """The term of the values that lie in some branch."""
    listed, others = _divided(reader, places)
    found = [reader.term(place) for place in others]
    if listed:
        values = {canonical(value): value for each in listed for value in each}
        found.insert(0, reader.constants(list(values.values()), places[0]))
    return reader.algebra.terms.either(*found)


def exactly_one(reader: SchemaReader, places: list[Place]) -> Term:
    """The term of the values that lie in exactly one branch."""
    listed, others = _divided(reader, places)
    found = [reader.term(place) for place in others]
    if not listed:
        return _exactly_one(reader, found)
    values = [{canonical(value): value for value in each} for each in listed]
    times = Counter(key for each in values for key in each)
    all_values = {key: value for each in values for key, value in each.items()}
    once = [value for key, value in all_values.items() if times[key] == 1]
    more = [value for key, value in all_values.items() if times[key] > 1]
    term = _exactly_one(reader, [reader.constants(once, places[0]), *found] if once else found)
    if more:
        terms = reader.algebra.terms
        term = terms.both(term, terms.complement(reader.constants(more, places[0])))
    return term


def _divided(reader: SchemaReader, places: list[Place]) -> tuple[list[list[Json]], list[Place]]:
    """The values of the branches that only list some, if there are several such; the others."""
    listed: list[list[Json]] = []
    others: list[Place] = []
    for place in places:
        values = _listed(reader, place)
        if values is None:
            others.append(place)
        else:
            listed.append(values)
    return (listed, others) if len(listed) > 1 else ([], places)


def _listed(reader: SchemaReader, place: Place) -> list[Json] | None:
    """The values of a subschema that has only `const` or `enum`; None: there is more to it."""
    schema = place.schema
    if not isinstance(schema, dict) or not schema.keys().isdisjoint(DRAFT_3):
        return None
    names = schema.keys() & ASSERTIONS
    if len(names) != 1 or not names <= {"const", "enum"}:
        return None
    (name,) = names
    if not place.has(name) or reader.is_ignored(place, name):
        return None
    values = [schema["const"]] if name == "const" else schema["enum"]
    return values if isinstance(values, list) and values else None


def _exactly_one(reader: SchemaReader, branches: list[Term]) -> Term:
    terms = reader.algebra.terms
    options = [branch for branch in branches if branch is not terms.none]
    if len(options) == 1:
        return options[0]
    looks = _looks(reader, options)
    chosen = []
    for index, option in enumerate(options):
        alone = option
        for other_index, other in enumerate(options):
            if other_index == index:
                continue
            if _may_overlap(reader, options, looks, index, other_index):
                alone = terms.both(alone, terms.complement(other))
        chosen.append(alone)
    return terms.either(*chosen)


def _looks(reader: SchemaReader, options: list[Term]) -> list["_Look"]:
    return [_Look(reader, option) for option in options]


class _Look:
    """What tells a branch from others at little cost: its types, and properties that must hold
    certain texts.
    """

    def __init__(self, reader: SchemaReader, term: Term) -> None:
        self.kinds = frozenset(("null", "booleans", "numbers", "strings", "arrays", "objects"))
        self.marks: dict[str, frozenset[str]] = {}
        try:
            shape: Shape = reader.algebra.shape(term)
        except ShapeInProgress:
            return
        parts = {
            "null": shape.null,
            "booleans": shape.booleans,
            "numbers": not shape.numbers.is_empty,
            "strings": not shape.strings.is_empty,
            "arrays": shape.arrays,
            "objects": shape.objects,
        }
        self.kinds = frozenset(name for name, part in parts.items() if part)
        if len(shape.objects) == 1:
            self._mark(reader, shape.objects[0])

    def _mark(self, reader: SchemaReader, atom: ObjectAtom) -> None:
        for name in atom.required:
            try:
                shape = reader.algebra.shape(atom.fields.get(name))
            except ShapeInProgress:
                continue
            others = shape.null or shape.booleans or shape.arrays or shape.objects
            if shape.strings.values and not (
                shape.strings.atoms or others or not shape.numbers.is_empty
            ):
                self.marks[name] = shape.strings.values

    def is_apart(self, other: "_Look") -> bool:
        common = self.kinds & other.kinds
        if not common:
            return True
        if common != {"objects"}:
            return False
        return any(
            values.isdisjoint(other.marks[name])
            for name, values in self.marks.items()
            if name in other.marks
        )


def _may_overlap(
    reader: SchemaReader, options: list[Term], looks: list["_Look"], left: int, right: int
) -> bool:
    if looks[left].is_apart(looks[right]):
        return False
    both = reader.algebra.terms.both(options[left], options[right])
    try:
        return reader.emptiness.has_member(both)
    except ShapeInProgress:
        # They meet again inside the schema that is being read: subtracting one from the other is
        # right anyway.
        return True
