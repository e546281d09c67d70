"""Whether an array that has been begun can still be completed, given the items so far."""

from collections.abc import Callable, Iterator
from itertools import product

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.values.algebra import Algebra
from umbel.grammar.values.shapes import ArrayAtom
from umbel.grammar.values.terms import Term

Counts = tuple[int, ...]
_MAX_COUNTED = 4
_MAX_LEVELS = 4_096


class ArrayWays:
    """The ways through one atom. `has_member(term)` says whether an item term has any value."""

    def __init__(
        self, atom: ArrayAtom, algebra: Algebra, has_member: Callable[[Term], bool]
    ) -> None:
        if len(atom.counted) > _MAX_COUNTED:
            raise UnsupportedGrammar(
                f"an array must satisfy {len(atom.counted)} contains conditions at once, more than "
                f"the {_MAX_COUNTED} supported",
                keyword="contains",
            )
        self.atom = atom
        self.start: Counts = (0,) * len(atom.counted)
        self._algebra = algebra
        self._has_member = has_member
        self._options: dict[tuple[int, Counts], list[tuple[Term, Counts]]] = {}
        self._known: dict[tuple[int, Counts, int], bool] = {}

    def options(self, index: int, counts: Counts) -> list[tuple[Term, Counts]]:
        """What the item at `index` can be, and the counts after it; none of the terms is empty.

        A count stays at its lower bound when there is no upper one: more of it changes nothing.
        """
        key = (min(index, len(self.atom.items.prefix) + self._longest()), counts)
        found = self._options.get(key)
        if found is None:
            found = self._options[key] = list(self._make_options(index, counts))
        return found

    def _longest(self) -> int:
        return max((len(part.items.prefix) for part in self.atom.counted), default=0)

    def _make_options(self, index: int, counts: Counts) -> Iterator[tuple[Term, Counts]]:
        terms = self._algebra.terms
        choices = []
        for part, count in zip(self.atom.counted, counts, strict=True):
            hit = (part.items.at(index), count + 1)
            if part.high is None:
                choices.append(
                    [(terms.any, count)] if count >= part.low else [hit, (terms.any, count)]
                )
            else:
                miss = (terms.complement(part.items.at(index)), count)
                choices.append([miss] if count >= part.high else [hit, miss])
        for chosen in product(*choices):
            term = self.atom.items.at(index)
            for part_term, _ in chosen:
                term = terms.both(term, part_term)
            if self._has_member(term):
                yield term, tuple(count for _, count in chosen)

    def is_satisfied(self, counts: Counts) -> bool:
        return all(count >= part.low for part, count in zip(self.atom.counted, counts, strict=True))

    def may_end(self, length: int, counts: Counts) -> bool:
        return length >= self.atom.low and self.is_satisfied(counts)

    def completes(self, length: int, counts: Counts) -> bool:
        """Whether some items after the first `length` ones complete the array."""
        atom = self.atom
        if self.may_end(length, counts):
            return True
        if atom.high is not None and length >= atom.high:
            return False
        fixed = max(len(atom.items.prefix), self._longest())
        key = (length, counts, 0)
        if key not in self._known:
            self._algebra.effort.spend()
            if length < fixed:
                self._known[key] = any(
                    self.completes(length + 1, after) for _, after in self.options(length, counts)
                )
            else:
                self._known[key] = self._completes_uniformly(length, counts)
        return self._known[key]

    def _completes_uniformly(self, length: int, counts: Counts) -> bool:
        """All further positions are alike: breadth first over the counts, one level per item."""
        atom = self.atom
        level = {counts}
        seen: set[Counts] = set()
        for distance in range(_MAX_LEVELS):
            if not level or (atom.high is not None and length + distance > atom.high):
                return False
            for state in level:
                if self.may_end(length + distance, state):
                    return True
                # An item that changes nothing fills the array up to any length.
                fills = any(after == state for _, after in self.options(length, state))
                if fills and self.is_satisfied(state):
                    return True
            if level <= seen and length + distance >= atom.low:
                return False
            seen |= level
            self._algebra.effort.spend(len(level))
            level = {after for state in level for _, after in self.options(length, state)}
        raise UnsupportedGrammar(
            "the bounds of contains and minItems are too large to be decided together",
            keyword="contains",
        )
