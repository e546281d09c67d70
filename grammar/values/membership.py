"""Whether a given JSON value lies in a set: the algebra read directly, without any automaton."""

from collections.abc import Sequence

from umbel.grammar.values.algebra import Algebra
from umbel.grammar.values.fields import Items
from umbel.grammar.values.literals import Json, canonical, exact, is_number
from umbel.grammar.values.shapes import ArrayAtom, ObjectAtom, Shape
from umbel.grammar.values.terms import Term


class Membership:
    """Decides membership for the terms of one algebra."""

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra

    def contains(self, term: Term, value: Json) -> bool:
        if term is self._algebra.terms.any:
            return True
        return self._in_shape(self._algebra.shape(term), value)

    def _in_shape(self, shape: Shape, value: Json) -> bool:
        if value is None:
            return shape.null
        if isinstance(value, bool):
            return value in shape.booleans
        if is_number(value):
            return shape.numbers.contains(exact(value))
        if isinstance(value, str):
            return shape.strings.contains(value)
        if isinstance(value, list):
            return any(self._in_array(atom, value) for atom in shape.arrays)
        return any(self._in_object(atom, value) for atom in shape.objects)

    def in_atom(self, atom: ArrayAtom | ObjectAtom, value: Json) -> bool:
        """Whether an array lies in an atom of arrays, or an object in one of objects."""
        if isinstance(atom, ArrayAtom):
            return self._in_array(atom, value)
        return self._in_object(atom, value)

    def _in_array(self, atom: ArrayAtom, value: list[Json]) -> bool:
        if len(value) < atom.low or (atom.high is not None and len(value) > atom.high):
            return False
        if self._num_inside(atom.items, value) != len(value):
            return False
        for part in atom.counted:
            count = self._num_inside(part.items, value)
            if count < part.low or (part.high is not None and count > part.high):
                return False
        if atom.unique is None:
            return True
        return (len({canonical(item) for item in value}) == len(value)) == atom.unique

    def _num_inside(self, items: Items, value: Sequence[Json]) -> int:
        return sum(self.contains(items.at(index), item) for index, item in enumerate(value))

    def _in_object(self, atom: ObjectAtom, value: dict[str, Json]) -> bool:
        if len(value) < atom.low or (atom.high is not None and len(value) > atom.high):
            return False
        if any(name not in value for name in atom.required):
            return False
        if not all(self.contains(atom.fields.get(name), item) for name, item in value.items()):
            return False
        for fields in atom.some:
            if not any(self.contains(fields.get(name), item) for name, item in value.items()):
                return False
        return all(
            name not in value or all(other in value for other in needed)
            for name, needed in atom.implies
        )
