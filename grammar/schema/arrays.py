"""Arrays as grammar states: the number of items so far, the conditions met so far, and for unique
items their values.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.rules import (
    UNREACHABLE,
    Expansion,
    Head,
    Measure,
    RuleState,
    Sequence,
)
from umbel.grammar.schema.completions import Distinct, Frozen
from umbel.grammar.schema.distinct import DistinctState
from umbel.grammar.schema.spacing import Fork
from umbel.grammar.values.arrays import ArrayWays, Counts
from umbel.grammar.values.shapes import ArrayAtom
from umbel.grammar.values.terms import Term

# Different items that an array must have: what completes it is then found item by item.
_MAX_DISTINCT = 100

if TYPE_CHECKING:
    from umbel.grammar.schema.lowering import Lowering

Used = frozenset[Frozen]  # the finished items of a unique array


class ArrayPlan:
    """One atom, ready to be read."""

    def __init__(self, atom: ArrayAtom, lowering: "Lowering") -> None:
        self.atom = atom
        self.lowering = lowering
        self.ways = ArrayWays(atom, lowering.algebra, lowering.reader.emptiness.has_member)
        longest = max((len(part.items.prefix) for part in atom.counted), default=0)
        # Beyond this many items their number no longer matters.
        self._horizon = max(atom.low, len(atom.items.prefix), longest)
        self._is_plain = not atom.counted
        if atom.unique is False:
            raise UnsupportedGrammar(
                "uniqueItems under `not` (two items must be equal) is not supported",
                keyword="uniqueItems",
            )
        if atom.unique and atom.counted:
            raise UnsupportedGrammar(
                "uniqueItems together with contains is not supported", keyword="uniqueItems"
            )
        if atom.unique and atom.low > _MAX_DISTINCT:
            raise UnsupportedGrammar(
                f"uniqueItems with at least {atom.low} items is not supported, only up to "
                f"{_MAX_DISTINCT}",
                keyword="uniqueItems",
            )
        self.distinct = Distinct(self) if atom.unique else None

    def children(self) -> Iterator[Term]:
        """Every term that an item can have."""
        if self._is_plain:
            yield from (
                term for term in (*self.atom.items.prefix, self.atom.items.rest) if self._has(term)
            )
            return
        longest = self._horizon if self._horizon <= 64 else len(self.atom.items.prefix) + 1
        pending = [(0, self.ways.start)]
        seen = set(pending)
        while pending:
            index, counts = pending.pop()
            for term, after in self.ways.options(index, counts):
                yield term
                target = (min(index + 1, longest), after)
                if target not in seen:
                    seen.add(target)
                    pending.append(target)

    def _has(self, term: Term) -> bool:
        return self.lowering.reader.emptiness.has_member(term)

    @property
    def is_simple(self) -> bool:
        """Whether only the kinds and the number of items matter."""
        return self._is_plain and self.distinct is None

    def heads(self) -> tuple[Head, ...]:
        """The opening bracket, and what comes with it."""
        spacing = self.lowering.spacing
        return self.forked(spacing.array_first, 0, self.ways.start, frozenset())

    def forked(self, fork: Fork, length: int, counts: Counts, used: Used) -> tuple[Head, ...]:
        """The end after so many items, or one more."""
        following = ItemState(self, length, counts, used).sequence()
        return fork.heads(following, may_end=self.may_end(length, counts))

    def after(self, length: int, counts: Counts, used: Used) -> "ArrayState":
        if self.atom.high is None:
            length = min(length, self._horizon)
        return ArrayState(self, length, counts, used)

    def after_distinct(self, length: int, used: Used) -> "ArrayState":
        return self.after(length, self.ways.start, used)

    def may_end(self, length: int, counts: Counts) -> bool:
        return self.ways.may_end(length, counts)

    def next_items(self, length: int, counts: Counts) -> list[tuple[Term, Counts]]:
        """The items that may come next, if the array can be completed after them."""
        if self.atom.high is not None and length >= self.atom.high:
            return []
        found = self.ways.options(length, counts)
        if self._is_plain:
            # Whether the items up to the lower bound exist was checked for the whole atom.
            return found
        return [option for option in found if self.ways.completes(length + 1, option[1])]


class ArrayState(RuleState):
    """After an item."""

    __slots__ = ("_counts", "_length", "_plan", "_used")

    def __init__(self, plan: ArrayPlan, length: int, counts: Counts, used: Used) -> None:
        super().__init__((plan, length, counts, used))
        self._plan, self._length = plan, length
        self._counts, self._used = counts, used

    def expand(self) -> Expansion:
        plan = self._plan
        fork = plan.lowering.spacing.array_after
        return Expansion(plan.forked(fork, self._length, self._counts, self._used))

    def cost(self, measure: Measure) -> int:
        plan, low = self._plan, self._plan.atom.low
        fork = plan.lowering.spacing.array_after
        end, comma = measure.leaf(fork.end), measure.leaf(fork.next)
        if plan.may_end(self._length, self._counts):
            return end
        if (
            plan.atom.counted
            or plan.distinct is not None
            or self._length < len(plan.atom.items.prefix)
        ):
            return comma + measure.state(ItemState(plan, self._length, self._counts, self._used))
        each = measure.state(plan.lowering.state(plan.atom.items.rest))
        return (low - self._length) * (comma + each) + end


class ItemState(RuleState):
    """Before an item: after the opening bracket or after a comma."""

    __slots__ = ("_counts", "_length", "_plan", "_used")

    def __init__(self, plan: ArrayPlan, length: int, counts: Counts, used: Used) -> None:
        super().__init__((plan, length, counts, used))
        self._plan, self._length, self._counts, self._used = plan, length, counts, used

    def sequence(self) -> Sequence | None:
        """The states of an item, this one only if there are several ways; None if there is none."""
        plan = self._plan
        options = plan.next_items(self._length, self._counts)
        if plan.distinct is not None:
            is_possible = options and plan.distinct.has_unused(options[0][0], self._used)
            return (self,) if is_possible else None
        if len(options) > 1:
            return (self,)
        return self._then(*options[0]) if options else None

    def _then(self, term: Term, counts: Counts) -> Sequence:
        plan = self._plan
        return plan.lowering.state(term), plan.after(self._length + 1, counts, self._used)

    def expand(self) -> Expansion:
        plan = self._plan
        options = plan.next_items(self._length, self._counts)
        if plan.distinct is not None:
            place = (self._length, self._used)
            state = DistinctState(plan.distinct, place, "value", (), frozenset(), options[0][0])
            return Expansion(calls=((state,),))
        return Expansion(calls=tuple(self._then(*option) for option in options))

    def cost(self, measure: Measure) -> int:
        """The option that meets most conditions is the way to the end."""
        plan = self._plan
        if plan.distinct is not None:
            return super().cost(measure)
        options = plan.next_items(self._length, self._counts)
        low = plan.atom.counted
        options.sort(
            key=lambda option: -sum(min(c, p.low) for c, p in zip(option[1], low, strict=True))
        )
        for term, counts in options:
            cost = measure.state(plan.lowering.state(term)) + measure.state(
                plan.after(self._length + 1, counts, self._used)
            )
            if cost < UNREACHABLE:
                return cost
        return UNREACHABLE
