"""Whether a set of values is empty: the least fixed point over recursive terms.

A term counts as empty while it is being looked at: a property that requires itself has no finite
value. A positive
answer never depends on that assumption; a negative one is kept only when it does not.
"""

from umbel.grammar.values.algebra import Algebra, ShapeInProgress
from umbel.grammar.values.arrays import ArrayWays
from umbel.grammar.values.objects import ObjectWays, closure, without_implications
from umbel.grammar.values.shapes import ArrayAtom, ObjectAtom, Shape
from umbel.grammar.values.terms import Term

_NOWHERE = 1 << 60
_ENOUGH_VALUES = 100_000


class Emptiness:
    """Answers for the terms of one algebra; kept on the terms."""

    def __init__(self, algebra: Algebra) -> None:
        self._algebra = algebra
        self._open: dict[Term, int] = {}  # terms being looked at, with their depth
        self._lowest = _NOWHERE  # the outermost open term that an answer relied on

    def has_member(self, term: Term) -> bool:
        """Raises `ShapeInProgress` while the shapes of the schema around are not known yet."""
        if term is self._algebra.terms.any:
            return True
        if term.emptiness is not None:
            return not term.emptiness
        depth = self._open.get(term)
        if depth is not None:
            self._lowest = min(self._lowest, depth)
            return False
        self._algebra.effort.spend()
        return self._look(term)

    def _look(self, term: Term) -> bool:
        depth = len(self._open)
        outer, self._lowest = self._lowest, _NOWHERE
        self._open[term] = depth
        try:
            found = self.has_value(self._algebra.shape(term))
        finally:
            del self._open[term]
            relied_on, self._lowest = self._lowest, outer
        if found:
            term.emptiness = False
        elif relied_on >= depth:
            term.emptiness = True
        else:
            self._lowest = min(outer, relied_on)
        return found

    def has_value(self, shape: Shape) -> bool:
        """Whether a shape holds any value."""
        if shape.null or shape.booleans or not (shape.numbers.is_empty and shape.strings.is_empty):
            return True
        unknown: ShapeInProgress | None = None
        atoms: list[ArrayAtom | ObjectAtom] = [*shape.arrays, *shape.objects]
        for atom in atoms:
            try:
                found = self.has_atom(atom)
            except ShapeInProgress as exc:
                unknown = exc
                continue
            if found:
                return True
        if unknown is not None:
            raise unknown
        return False

    def has_atom(self, atom: ArrayAtom | ObjectAtom) -> bool:
        return self.has_array(atom) if isinstance(atom, ArrayAtom) else self.has_object(atom)

    def has_array(self, atom: ArrayAtom) -> bool:
        if atom.unique is False:
            return self._has_equal_pair(atom)
        if not ArrayWays(atom, self._algebra, self.has_member).completes(
            0, (0,) * len(atom.counted)
        ):
            return False
        if atom.unique is None or atom.low < 2:
            return True
        wanted = min(atom.low, _ENOUGH_VALUES)
        if atom.items.prefix or atom.counted:
            return True  # decided by the lowering, which refuses what it cannot keep distinct
        return self.num_values(atom.items.rest, wanted) >= wanted

    def _has_equal_pair(self, atom: ArrayAtom) -> bool:
        count = max(len(atom.items.prefix) + 2, atom.low)
        count = count if atom.high is None else min(count, atom.high)
        last = min(count, len(atom.items.prefix) + 2)
        both = self._algebra.terms.both
        return all(self.has_member(atom.items.at(i)) for i in range(min(atom.low, last))) and any(
            self.has_member(both(atom.items.at(i), atom.items.at(j)))
            for j in range(last)
            for i in range(j)
        )

    def num_values(self, term: Term, enough: int) -> int:
        """How many values a term has; counting stops at `enough`. Containers count as unlimited
        unless empty.
        """
        shape = self._algebra.shape(term)
        total = int(shape.null) + len(shape.booleans)
        for part in (shape.numbers, shape.strings):
            count = part.finite_count(enough)
            if count is None:
                return enough
            total += count
        for array in shape.arrays:
            if self.has_array(array):
                total += enough if array.high != 0 else 1
        for atom in shape.objects:
            if self.has_object(atom):
                total += enough if atom.high != 0 else 1
        return min(total, enough)

    def has_object(self, atom: ObjectAtom) -> bool:
        """Every required property must have a value; the one known to be empty first, for it
        decides.
        """
        unknown: ShapeInProgress | None = None
        for name in atom.required:
            try:
                if not self.has_member(atom.fields.get(name)):
                    return False
            except ShapeInProgress as exc:
                unknown = exc
        if unknown is not None:
            raise unknown
        if not (
            atom.some or atom.high is not None or atom.low > len(atom.required) or atom.implies
        ):
            return True
        for part in without_implications(atom, self._algebra):
            ways = ObjectWays(part, self._algebra, self.has_member)
            missing = closure(part.required, part.implies)
            if ways.completes(missing, part.some, 0, _never_gone):
                return True
        return False


def _never_gone(_name: str) -> bool:
    return False
