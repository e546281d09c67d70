"""Containers that are being read inside an item of a unique array: their contents so far, and how
many ways there are to complete them.
"""

import json
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.leaves import Leaf
from umbel.grammar.schema.object_plan import ObjectPlan, Progress
from umbel.grammar.values.literals import Json
from umbel.grammar.values.membership import Membership
from umbel.grammar.values.terms import Term

if TYPE_CHECKING:
    from umbel.grammar.schema.arrays import ArrayPlan
    from umbel.grammar.schema.lowering import Lowering, ValuePlan

# A finished value, hashable, equal for equal JSON: ("s", text), ("n", Fraction), ("l", null or a
# boolean),
# ("a", items), ("o", frozenset of (name, value)).
Frozen = tuple[str, Any]
Listed = tuple[Leaf, list[Frozen]]  # literals with their numbers as tags, and their values
Chain = tuple[Frozen, ...]  # a rival's value at each open container, outermost first

UNKNOWN: Frozen = ("?", None)
_MANY = 10_000  # completions: counting stops here; a unique array may have as many items


@dataclass(frozen=True, slots=True)
class ObjectFrame:
    """An open object. name: of the property being read."""

    plan: ObjectPlan
    progress: Progress
    entries: tuple[tuple[str, Frozen], ...] = ()
    name: str | None = None

    def value(self) -> Frozen:
        return ("o", frozenset(self.entries))

    def with_child(self, value: Frozen) -> "ObjectFrame":
        assert self.name is not None
        return replace(self, entries=(*self.entries, (self.name, value)), name=None)


@dataclass(frozen=True, slots=True)
class ArrayFrame:
    """An open array."""

    plan: "ArrayPlan"
    items: tuple[Frozen, ...] = ()

    def value(self) -> Frozen:
        return ("a", self.items)

    def with_child(self, value: Frozen) -> "ArrayFrame":
        return replace(self, items=(*self.items, value))


Frames = tuple[ObjectFrame | ArrayFrame, ...]


class Distinct:
    """What the states of one unique array share."""

    def __init__(self, plan: "ArrayPlan") -> None:
        self.plan = plan
        self.lowering: Lowering = plan.lowering
        self.membership = Membership(self.lowering.algebra)
        self._counts: dict[Term, int] = {}
        self.listed: dict[Term, Listed | None] = {}  # set by `DistinctState`

    def check(self) -> None:
        """Raises `UnsupportedGrammar` where completions cannot be counted, or items may run out."""
        pending = list(self.plan.children())
        seen = set(pending)
        while pending:
            plan = self.lowering.plan(pending.pop())
            countable = all(array.is_simple for array in plan.arrays) and all(
                each.is_simple or self._is_open(each) for each in plan.objects
            )
            if not countable:
                raise UnsupportedGrammar(
                    "uniqueItems over arrays or closed objects with conditions beyond items, "
                    "properties and required is not supported",
                    keyword="uniqueItems",
                )
            for inner in plan.children():
                if inner not in seen:
                    seen.add(inner)
                    pending.append(inner)

        atom = self.plan.atom
        for index in range(min(atom.low, len(atom.items.prefix) + 1)):
            wanted = index + 1 if index < len(atom.items.prefix) else atom.low
            if atom.items.prefix and self.count(atom.items.at(index)) < min(wanted, _MANY):
                raise UnsupportedGrammar(
                    "uniqueItems over prefixItems with few values each is not supported",
                    keyword="uniqueItems",
                )

    def _is_open(self, plan: ObjectPlan) -> bool:
        """Whether there are always further properties that make an object differ from others."""
        plan.prepare()
        infinite = any(plan.has_free_names(kind, _MANY) for kind in range(len(plan.kinds)))
        return infinite and plan.atom.high is None and not plan.atom.some

    def has_unused(self, term: Term, used: frozenset[Frozen]) -> bool:
        inside = sum(
            value == UNKNOWN or self.membership.contains(term, thawed(value)) for value in used
        )
        return self.count(term) > inside

    def count(self, term: Term) -> int:
        """How many values a term has, up to a bound. A recursive term that has one has many."""
        known = self._counts.get(term)
        if known is None:
            self._counts[term] = _MANY
            known = self._counts[term] = min(_MANY, self._count(self.lowering.plan(term)))
        return known

    def _count(self, plan: "ValuePlan") -> int:
        shape = plan.shape
        total = int(shape.null) + len(shape.booleans)
        for part in (shape.numbers, shape.strings):
            count = part.finite_count(_MANY)
            total += _MANY if count is None else count
        # Alternatives may overlap: the largest is certain.
        arrays = [self.completions(ArrayFrame(array)) for array in plan.arrays]
        objects = [self.completions(self.object_frame(each)) for each in plan.objects]
        return total + max(arrays, default=0) + max(objects, default=0)

    def object_frame(self, plan: ObjectPlan) -> ObjectFrame:
        plan.prepare()
        return ObjectFrame(plan, plan.first())

    def completions(self, frame: ObjectFrame | ArrayFrame) -> int:
        """The ways to complete a container whose current child is finished."""
        if isinstance(frame, ObjectFrame):
            return self._object_completions(frame)
        return self._array_completions(frame)

    def _object_completions(self, frame: ObjectFrame) -> int:
        plan = frame.plan
        if plan.kinds:
            return _MANY
        total = 1
        for index in range(len(plan.names)):
            if not plan.is_gone(frame.progress, plan.names[index]):
                optional = 0 if plan.required[index] else 1
                total = min(_MANY, total * (self.count(plan.slots[index].term) + optional))
        return total

    def _array_completions(self, frame: ArrayFrame) -> int:
        atom = frame.plan.atom
        index, total, ways = len(frame.items), 0, 1
        while total < _MANY and ways:
            if index >= atom.low:
                total += ways
            if index == atom.high:
                break
            term = atom.items.at(index)
            ways = min(_MANY, ways * (self.count(term) if self._has(term) else 0))
            if atom.high is None and index >= max(atom.low, len(atom.items.prefix)):
                return _MANY if ways else total
            index += 1
        return min(total, _MANY)

    def _has(self, term: Term) -> bool:
        return self.lowering.reader.emptiness.has_member(term)

    def rest(self, frames: Frames) -> int:
        """The ways to complete all open containers. The innermost has no child that is
        unfinished.
        """
        total = 1
        for depth, frame in enumerate(frames):
            if depth < len(frames) - 1 and isinstance(frame, ArrayFrame):
                frame = frame.with_child(UNKNOWN)  # the next container: it counts for itself
            total = min(_MANY, total * self.completions(frame))
        return total


def thawed(value: Frozen) -> Json:
    """The JSON value again; numbers stay exact."""
    kind, content = value
    if kind == "a":
        return [thawed(item) for item in content]
    if kind == "o":
        return {name: thawed(item) for name, item in content}
    if kind == "l":
        return json.loads(content)
    if kind == "n":
        return Decimal(content.numerator) / Decimal(content.denominator)
    return content
