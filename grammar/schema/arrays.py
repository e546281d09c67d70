"""Arrays as grammar states: the number of items so far, the conditions met so far, and for unique
items their values.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.leaves import NO_TAG, Leaf, literal_leaf, override_leaf
from umbel.grammar.pushdown.recorded import RecordedHead
from umbel.grammar.pushdown.rules import (
    Expansion,
    Head,
    Measure,
    RuleState,
    Sequence,
    sequence_cost,
)
from umbel.grammar.schema.digits import NumberStyle, number_leaf
from umbel.grammar.schema.spelling import plain_leaf
from umbel.grammar.values.arrays import ArrayWays, Counts
from umbel.grammar.values.literals import spell_number, spell_text
from umbel.grammar.values.numbers import NumberSet
from umbel.grammar.values.shapes import ArrayAtom, Shape
from umbel.grammar.values.terms import Term

if TYPE_CHECKING:
    from umbel.grammar.schema.lowering import Lowering

Used = frozenset[bytes]  # the finished items of a unique array, each by all its spellings
_NONE_USED: Used = frozenset()
_MAX_LISTED = 1_000  # numbers between bounds that are listed one by one


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
        self.unique = bool(atom.unique)
        if self.unique:
            _check_unique(self)

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

    def head(self) -> Head:
        start = ArrayState(self, 0, self.ways.start, _NONE_USED, is_open=True)
        return Head(self.lowering.spacing.array_start, lambda tag: (start,))

    def after(self, length: int, counts: Counts, used: Used) -> "ArrayState":
        if self.atom.high is None:
            length = min(length, self._horizon)
        return ArrayState(self, length, counts, used, is_open=False)

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
    """After the opening bracket (is_open), or after an item."""

    __slots__ = ("_counts", "_is_open", "_length", "_plan", "_used")

    def __init__(
        self, plan: ArrayPlan, length: int, counts: Counts, used: Used, *, is_open: bool
    ) -> None:
        super().__init__((plan, length, counts, used, is_open))
        self._plan, self._length, self._counts = plan, length, counts
        self._used, self._is_open = used, is_open

    def expand(self) -> Expansion:
        plan, spacing = self._plan, self._plan.lowering.spacing
        heads = []
        if plan.may_end(self._length, self._counts):
            heads.append(Head(self._end(), _nothing))
        items = ItemState(plan, self._length, self._counts, self._used)
        if not items.is_possible():
            return Expansion(tuple(heads))
        if self._is_open:
            return Expansion(tuple(heads), ((items,),))
        heads.append(Head(spacing.comma, lambda tag: (items,)))
        return Expansion(tuple(heads))

    def _end(self) -> Leaf:
        spacing = self._plan.lowering.spacing
        return spacing.array_empty if self._is_open else spacing.array_end

    def cost(self, measure: Measure) -> int:
        plan, low = self._plan, self._plan.atom.low
        if plan.may_end(self._length, self._counts):
            return measure.leaf(self._end())
        comma = 0 if self._is_open else measure.leaf(plan.lowering.spacing.comma)
        if plan.atom.counted or plan.unique or self._length < len(plan.atom.items.prefix):
            return comma + measure.state(ItemState(plan, self._length, self._counts, self._used))
        each = measure.state(plan.lowering.state(plan.atom.items.rest))
        more = (low - self._length - 1) * (measure.leaf(plan.lowering.spacing.comma) + each)
        return comma + each + more + measure.leaf(plan.lowering.spacing.array_end)


class ItemState(RuleState):
    """Before an item: after the opening bracket or after a comma."""

    __slots__ = ("_counts", "_length", "_plan", "_used")

    def __init__(self, plan: ArrayPlan, length: int, counts: Counts, used: Used) -> None:
        super().__init__((plan, length, counts, used))
        self._plan, self._length, self._counts, self._used = plan, length, counts, used

    def is_possible(self) -> bool:
        plan = self._plan
        options = plan.next_items(self._length, self._counts)
        if not options or not plan.unique:
            return bool(options)
        term = options[0][0]
        enough = len(self._used) + 1
        return plan.lowering.reader.emptiness.num_values(term, enough) > _num_used(self._used)

    def expand(self) -> Expansion:
        plan = self._plan
        options = plan.next_items(self._length, self._counts)
        if plan.unique:
            heads = tuple(self._unique_heads(options[0][0]))
            return Expansion(heads)  # type: ignore[arg-type]  # recorded ones among them
        return Expansion(
            calls=tuple(
                (plan.lowering.state(term), plan.after(self._length + 1, counts, self._used))
                for term, counts in options
            )
        )

    def cost(self, measure: Measure) -> int:
        """The option that meets most conditions is the way to the end."""
        plan = self._plan
        if plan.unique:
            return min(
                measure.leaf(head.leaf) + sequence_cost(_unknown(head), measure)
                for head in self.expand().heads
            )
        options = plan.next_items(self._length, self._counts)
        low = plan.atom.counted
        options.sort(
            key=lambda option: -sum(min(c, p.low) for c, p in zip(option[1], low, strict=True))
        )
        best = None
        for term, counts in options[:1]:
            best = measure.state(plan.lowering.state(term)) + measure.state(
                plan.after(self._length + 1, counts, self._used)
            )
        assert best is not None, "an array that cannot go on has no item state"
        return best

    def _unique_heads(self, term: Term) -> Iterator[Head | RecordedHead]:
        lowering, used = self._plan.lowering, self._used
        shape = _listed(lowering.algebra.shape(term))
        free = [text for text in lowering.literals(shape) if text not in used]
        if free:
            by_value: dict[Sequence, int] = {}
            pairs = []
            for text in free:
                then = self._then(text)
                pairs.append((text, by_value.setdefault(then, len(by_value))))
            sequences = list(by_value)
            yield Head(literal_leaf(pairs), lambda tag: sequences[tag], closing=(0,))
        banned = [(text, NO_TAG) for text in used]
        style = NumberStyle(lowering.style.point_zero, unique=True)
        leaves: list[Leaf] = []
        for texts in shape.strings.atoms:
            taken = {text for text in used if texts.contains(_decoded(text))}
            if texts.count(len(taken) + len(texts.excluded) + 1) > len(taken):
                excluded = [(spell_text(text), NO_TAG) for text in texts.excluded]
                leaves.append(override_leaf(plain_leaf(texts), [*excluded, *banned]))
        leaves += [
            override_leaf(number_leaf(interval, style), banned)
            for interval in shape.numbers.intervals
        ]
        for leaf in leaves:
            yield RecordedHead(leaf, self._follow)

    def _follow(self, tag: int, text: bytes | None) -> Sequence:
        if text is None:
            return (self._plan.after(self._length + 1, self._counts, self._used),)
        return self._then(text)

    def _then(self, text: bytes) -> Sequence:
        spellings = _spellings(text)
        used = self._used | spellings
        return (self._plan.after(self._length + 1, self._counts, used),)


def _check_unique(plan: ArrayPlan) -> None:
    """Refuse what cannot be kept distinct: containers, and few values of different kinds by
    position.
    """
    atom, lowering = plan.atom, plan.lowering
    if atom.counted:
        raise UnsupportedGrammar(
            "uniqueItems together with contains is not supported", keyword="uniqueItems"
        )
    limit = (
        len(atom.items.prefix) + 1
        if atom.high is None
        else min(atom.high, len(atom.items.prefix) + 1)
    )
    emptiness = lowering.reader.emptiness
    for index in range(limit):
        shape: Shape = lowering.algebra.shape(atom.items.at(index))
        containers = any(map(emptiness.has_array, shape.arrays)) or any(
            map(emptiness.has_object, shape.objects)
        )
        if containers:
            raise UnsupportedGrammar(
                "uniqueItems over items that can be arrays or objects is not supported; "
                "give items a scalar type",
                keyword="uniqueItems",
            )
        if atom.items.prefix and emptiness.num_values(atom.items.at(index), limit + 1) <= min(
            atom.low if atom.high is None else atom.high, limit
        ):
            raise UnsupportedGrammar(
                "uniqueItems over prefixItems with few values each is not supported",
                keyword="uniqueItems",
            )


def _listed(shape: Shape) -> Shape:
    """With few numbers as explicit values, which can be used up."""
    if not shape.numbers.intervals or shape.numbers.finite_count(_MAX_LISTED) is None:
        return shape
    members = set(shape.numbers.values)
    for interval in shape.numbers.intervals:
        first, last = interval.index_range()
        assert interval.step is not None
        assert first is not None
        assert last is not None
        values = (index * interval.step for index in range(first, last + 1))
        members |= {value for value in values if interval.contains(value)}
    return replace(shape, numbers=NumberSet(frozenset(members)))


def _num_used(used: Used) -> int:
    return len({_value(text) for text in used})


def _decoded(text: bytes) -> str:
    value = json.loads(text)
    return value if isinstance(value, str) else "\0not a string"


def _value(text: bytes) -> object:
    first = text[:1]
    return Fraction(Decimal(text.decode())) if first in b"-0123456789" else text


def _spellings(text: bytes) -> Used:
    value = _value(text)
    if isinstance(value, Fraction):
        return frozenset(spelling.encode() for spelling in spell_number(value))
    return frozenset({text})


def _unknown(head: Head | RecordedHead) -> Sequence:
    """What follows some text of a head."""
    return head.follow(0, None) if isinstance(head, RecordedHead) else head.follow(0)


def _nothing(tag: int) -> Sequence:
    return ()
