"""Union, intersection and complement of shapes, and the shapes of terms. Exact, within a budget."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.values.effort import Effort
from umbel.grammar.values.fields import FieldAlgebra, Fields, Items
from umbel.grammar.values.numbers import ALL_NUMBERS
from umbel.grammar.values.shapes import ArrayAtom, Counted, ObjectAtom, Shape
from umbel.grammar.values.strings import ALL_STRINGS
from umbel.grammar.values.terms import Term, Terms

BOTH_BOOLEANS = frozenset({True, False})
_MAX_ATOMS = 2_000
Atom = TypeVar("Atom", ArrayAtom, ObjectAtom)


class ShapeInProgress(Exception):
    """A shape was asked for while it is being computed: it depends on itself at the same level."""


class Algebra:
    """The sets of values over one document. `literal_shape(n)`: the shape of schema n, or of its
    complement for -n.
    """

    def __init__(
        self, literal_shape: Callable[[int], Shape], limits: Limits, effort: Effort | None = None
    ) -> None:
        self._literal_shape = literal_shape
        self.limits = limits
        self.effort = effort or Effort(limits.max_work)
        self.terms = Terms()
        self.fields = FieldAlgebra(self.terms, limits)
        anything = self.terms.any
        self.any_fields = Fields({}, anything)
        self.any_items = Items((), anything)
        self.all_arrays = (ArrayAtom(self.any_items),)
        self.all_objects = (ObjectAtom(self.any_fields),)
        self.everything = Shape(
            True, BOTH_BOOLEANS, ALL_NUMBERS, ALL_STRINGS, self.all_arrays, self.all_objects
        )
        self.nothing = Shape()

    def shape(self, term: Term) -> Shape:
        """Raises `ShapeInProgress` for a term whose shape is being computed further up."""
        if term.shape is None:
            result = self.nothing
            for clause in term.clauses:
                part = self.everything
                for number in sorted(
                    clause, reverse=True
                ):  # complements last: they have more atoms
                    part = self.both(part, self._literal_shape(number))
                result = self.either(result, part)
            term.shape = result
        shape: Shape = term.shape
        return shape

    def both(self, left: Shape, right: Shape) -> Shape:
        if left is self.everything or right is self.everything:
            return right if left is self.everything else left
        self.effort.spend()
        return Shape(
            left.null and right.null,
            left.booleans & right.booleans,
            left.numbers.intersect(right.numbers),
            left.strings.intersect(right.strings, self.limits),
            self._both_arrays(left.arrays, right.arrays),
            self._both_objects(left.objects, right.objects),
        )

    def either(self, left: Shape, right: Shape) -> Shape:
        if left is self.nothing or right is self.nothing:
            return right if left is self.nothing else left
        self.effort.spend()
        return Shape(
            left.null or right.null,
            left.booleans | right.booleans,
            left.numbers.union(right.numbers),
            left.strings.union(right.strings),
            _joined(left.arrays, right.arrays, self.all_arrays),
            _joined(left.objects, right.objects, self.all_objects),
        )

    def complement(self, shape: Shape) -> Shape:
        arrays: tuple[ArrayAtom, ...] = self.all_arrays
        objects: tuple[ObjectAtom, ...] = self.all_objects
        for array in shape.arrays:
            arrays = self._both_arrays(arrays, self._not_array(array))
        for atom in shape.objects:
            objects = self._both_objects(objects, self._not_object(atom))
        return Shape(
            not shape.null,
            BOTH_BOOLEANS - shape.booleans,
            shape.numbers.complement(),
            shape.strings.complement(self.limits),
            arrays,
            objects,
        )

    def _both_arrays(
        self, left: tuple[ArrayAtom, ...], right: tuple[ArrayAtom, ...]
    ) -> tuple[ArrayAtom, ...]:
        if left is self.all_arrays or right is self.all_arrays:
            return right if left is self.all_arrays else left
        self._check_size(len(left) * len(right))
        products = (self.both_array_atoms(a, b) for a in left for b in right)
        return tuple(atom for atom in products if atom is not None)

    def both_array_atoms(self, left: ArrayAtom, right: ArrayAtom) -> ArrayAtom | None:
        unique = left.unique if right.unique is None else right.unique
        if left.unique is not None and left.unique is not unique:
            return None
        return self.array(
            left.items.combined(right.items, self.terms.both),
            max(left.low, right.low),
            _least(left.high, right.high),
            (*left.counted, *right.counted),
            unique,
        )

    def array(
        self,
        items: Items,
        low: int = 0,
        high: int | None = None,
        counted: Iterable[Counted] = (),
        unique: bool | None = None,
    ) -> ArrayAtom | None:
        """The atom in its simplest form; None where it is plainly empty."""
        kept = []
        nothing = self.terms.none
        for part in counted:
            if part.high == 0:
                items = items.combined(part.items.mapped(self.terms.complement), self.terms.both)
            elif part.low > 0 or part.high is not None:
                kept.append(part)
            low = max(low, part.low)
        for index, term in enumerate(items.prefix):
            if term is nothing:
                high = _least(high, index)
                break
        if items.rest is nothing:
            high = _least(high, len(items.prefix))
        if high is not None:
            if low > high:
                return None
            if high < len(items.prefix):
                items = Items(items.prefix[:high], nothing)
        if any(part.high is not None and part.low > part.high for part in kept):
            return None
        if unique is not None and high is not None and high <= 1:
            if unique is False:
                return None
            unique = None
        return ArrayAtom(items, low, high, tuple(kept), unique)

    def _not_array(self, atom: ArrayAtom) -> tuple[ArrayAtom, ...]:
        found = []
        outside = atom.items.mapped(self.terms.complement)
        found.append(self.array(self.any_items, counted=[Counted(outside)]))
        if atom.low > 0:
            found.append(self.array(self.any_items, high=atom.low - 1))
        if atom.high is not None:
            found.append(self.array(self.any_items, low=atom.high + 1))
        for part in atom.counted:
            if part.low > 0:
                fewer = Counted(part.items, 0, part.low - 1)
                found.append(self.array(self.any_items, counted=[fewer]))
            if part.high is not None:
                found.append(
                    self.array(self.any_items, counted=[Counted(part.items, part.high + 1)])
                )
        if atom.unique is not None:
            found.append(self.array(self.any_items, unique=not atom.unique))
        return tuple(part for part in found if part is not None and not self._is_idle(part))

    def _is_idle(self, atom: ArrayAtom) -> bool:
        """Whether it counts members of the empty set."""
        nothing = self.terms.none
        return any(
            part.low > 0
            and part.items.rest is nothing
            and all(t is nothing for t in part.items.prefix)
            for part in atom.counted
        )

    def _both_objects(
        self, left: tuple[ObjectAtom, ...], right: tuple[ObjectAtom, ...]
    ) -> tuple[ObjectAtom, ...]:
        if left is self.all_objects or right is self.all_objects:
            return right if left is self.all_objects else left
        self._check_size(len(left) * len(right))
        products = (self.both_object_atoms(a, b) for a in left for b in right)
        return tuple(atom for atom in products if atom is not None)

    def both_object_atoms(self, left: ObjectAtom, right: ObjectAtom) -> ObjectAtom | None:
        self.effort.spend(1 + min(len(left.fields.named), len(right.fields.named)))
        return self.object(
            self.fields.both(left.fields, right.fields),
            tuple(dict.fromkeys((*left.required, *right.required))),
            max(left.low, right.low),
            _least(left.high, right.high),
            (*left.some, *right.some),
            tuple(dict.fromkeys((*left.implies, *right.implies))),
        )

    def object(
        self,
        fields: Fields,
        required: tuple[str, ...] = (),
        low: int = 0,
        high: int | None = None,
        some: tuple[Fields, ...] = (),
        implies: tuple[tuple[str, tuple[str, ...]], ...] = (),
    ) -> ObjectAtom | None:
        """The atom in its simplest form; None where it is plainly empty."""
        nothing = self.terms.none
        pending = []
        for part in some:
            if any(part.get(name) is self.terms.any for name in required):
                continue
            if self.fields.is_none(part):
                return None
            only = self.fields.only_name(part)
            if only is None:
                pending.append(part)
                continue
            # Only one property can meet the condition: it must be there, and must meet it.
            fields = self.fields.both(fields, Fields({only: part.named[only]}, self.terms.any))
            required = required if only in required else (*required, only)
        for name in required:
            if fields.get(name) is nothing:
                return None
        low = max(low, len(required))
        if high is not None and low > high:
            return None
        return ObjectAtom(fields, required, low, high, tuple(pending), implies)

    def _not_object(self, atom: ObjectAtom) -> tuple[ObjectAtom, ...]:
        anything, terms = self.any_fields, self.terms
        found = [self.object(anything, some=(self.fields.complement(atom.fields),))]
        found += [self.object(Fields({name: terms.none}, terms.any)) for name in atom.required]
        if atom.low > len(atom.required):
            found.append(self.object(anything, high=atom.low - 1))
        if atom.high is not None:
            found.append(self.object(anything, low=atom.high + 1))
        found += [self.object(self.fields.complement(part)) for part in atom.some]
        for name, needed in atom.implies:
            found += [
                self.object(Fields({other: terms.none}, terms.any), (name,)) for other in needed
            ]
        return tuple(part for part in found if part is not None)

    def _check_size(self, num_atoms: int) -> None:
        self.effort.spend(num_atoms)
        if num_atoms > _MAX_ATOMS:
            raise UnsupportedGrammar(
                f"the schema needs a union of {num_atoms} cases, more than the {_MAX_ATOMS} "
                "allowed; combine fewer alternatives by allOf, oneOf and not",
                keyword="anyOf",
            )


def _least(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return min(left, right)


def _joined(
    left: tuple[Atom, ...], right: tuple[Atom, ...], everything: tuple[Atom, ...]
) -> tuple[Atom, ...]:
    if left is everything or right is everything:
        return everything
    return tuple(dict.fromkeys(left + right))
