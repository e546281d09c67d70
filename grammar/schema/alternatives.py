"""oneOf: a plain union where the branches share no instance, else with the complements of those
that may.
"""

from umbel.grammar.schema.reader import SchemaReader
from umbel.grammar.values.algebra import ShapeInProgress
from umbel.grammar.values.shapes import ObjectAtom, Shape
from umbel.grammar.values.terms import Term


def exactly_one(reader: SchemaReader, branches: list[Term]) -> Term:
    """The term of the values that lie in exactly one branch."""
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
