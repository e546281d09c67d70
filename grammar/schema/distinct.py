"""Items of a unique array that can be arrays or objects: read with their whole value in the state.

Earlier items that equal the new one so far are its *rivals*. A step is offered only if more
completions remain than
rivals, so that one of them differs: then no text runs into a dead end, and no two items are equal.
Completions are
counted, up to a bound, as a product over the open containers.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.leaves import NO_TAG, Leaf, literal_leaf, override_leaf
from umbel.grammar.pushdown.recorded import RecordedHead
from umbel.grammar.pushdown.rules import (
    UNREACHABLE,
    Expansion,
    Head,
    Measure,
    RuleState,
    Sequence,
    sequence_cost,
)
from umbel.grammar.regex import languages
from umbel.grammar.schema.digits import NumberStyle, number_leaf
from umbel.grammar.schema.objects import ColonState, ObjectPlan, Progress, Slot
from umbel.grammar.schema.spelling import language_leaf, plain_leaf
from umbel.grammar.values.literals import Json, spell_number, spell_text
from umbel.grammar.values.membership import Membership
from umbel.grammar.values.numbers import NumberSet
from umbel.grammar.values.shapes import Shape
from umbel.grammar.values.terms import Term

if TYPE_CHECKING:
    from umbel.grammar.schema.arrays import ArrayPlan
    from umbel.grammar.schema.lowering import Lowering, ValuePlan

# A finished value, hashable, equal for equal JSON: ("s", text), ("n", Fraction), ("l", null or a
# boolean),
# ("a", items), ("o", frozenset of (name, value)).
Frozen = tuple[str, Any]
Chain = tuple[Frozen, ...]  # a rival's value at each open container, outermost first

_UNKNOWN: Frozen = ("?", None)
_MAX_LISTED = 1_000  # numbers between bounds that are listed one by one
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
        return infinite and plan.atom.high is None

    def has_unused(self, term: Term, used: frozenset[Frozen]) -> bool:
        inside = sum(self.membership.contains(term, _thawed(value)) for value in used)
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
                frame = frame.with_child(_UNKNOWN)  # the next container: it counts for itself
            total = min(_MANY, total * self.completions(frame))
        return total


class DistinctState(RuleState):
    """A place inside an item: before a value ("value"), after a bracket opened ("open"), after a
    child ("after"),
    before a property name or an item ("next"). chains: the rivals.
    """

    __slots__ = ("_chains", "_expansion", "_frames", "_phase", "_place", "_shared", "_term")

    def __init__(
        self,
        shared: Distinct,
        place: tuple[int, frozenset[Frozen]],
        phase: str,
        frames: Frames,
        chains: frozenset[Chain],
        term: Term | None = None,
    ) -> None:
        """place: the number of items before this one, and their values."""
        super().__init__((shared, place, phase, frames, chains, term))
        self._shared, self._place, self._phase = shared, place, phase
        self._frames, self._chains, self._term = frames, chains, term
        self._expansion: Expansion | None = None

    def expand(self) -> Expansion:
        if self._expansion is None:
            if self._phase == "value":
                heads = tuple(self._value_heads())
            elif self._phase == "next":
                heads = tuple(self._next_heads())
            else:
                heads = tuple(self._container_heads())
            self._expansion = Expansion(heads)  # type: ignore[arg-type]  # recorded ones among them
        return self._expansion

    def cost(self, measure: Measure) -> int:
        """The first head with a way to the end: ends come first, then scalars, then required
        names.
        """
        best = UNREACHABLE
        for head in self.expand().heads:
            then = head.follow(0, None) if isinstance(head, RecordedHead) else head.follow(0)
            best = measure.leaf(head.leaf) + sequence_cost(then, measure)
            if best < UNREACHABLE:
                break
        return best

    def _to(
        self, phase: str, frames: Frames, chains: Iterable[Chain], term: Term | None = None
    ) -> "DistinctState":
        return DistinctState(self._shared, self._place, phase, frames, frozenset(chains), term)

    def _done(self, frames: Frames, chains: list[Chain], value: Frozen) -> Sequence | None:
        """What follows a finished value, of which `chains` still equal it; None if it would end in
        a duplicate.
        """
        if not frames:
            length, used = self._place
            if chains:
                return None
            return (self._shared.plan.after_distinct(length + 1, used | {value}),)
        inside = (*frames[:-1], frames[-1].with_child(value))
        if self._shared.rest(inside) <= len(chains):
            return None
        return (self._to("after", inside, chains),)

    # A value --------------------------------------------------------------------------------

    def _expected(self) -> list[tuple[Chain, Frozen]]:
        """For each rival what stands where the value will stand."""
        if not self._frames:
            return [((), value) for value in self._place[1]]
        top = self._frames[-1]
        found = []
        for chain in self._chains:
            container = chain[-1][1]
            if isinstance(top, ObjectFrame):
                value = dict(container)[top.name]
            else:
                value = container[len(top.items)]
            found.append((chain, value))
        return found

    def _value_heads(self) -> Iterator[Head | RecordedHead]:
        assert self._term is not None
        lowering = self._shared.lowering
        plan = lowering.plan(self._term)
        expected = self._expected()
        shape = _listed(plan.shape)
        yield from self._literal_heads(lowering.literals(shape), expected)
        spoilt = [v for v in {e for _, e in expected} if self._after_scalar(v, expected) is None]
        banned = [(text, NO_TAG) for value in spoilt for text in _spellings(value)]
        for texts in plan.shape.strings.atoms:
            inside = sum(kind == "s" and texts.contains(text) for kind, text in spoilt)
            if texts.count(inside + 1) > inside:
                excluded = [(spell_text(text), NO_TAG) for text in texts.excluded]
                yield self._recorded(
                    override_leaf(plain_leaf(texts), [*excluded, *banned]), expected
                )
        style = NumberStyle(lowering.style.point_zero, unique=True)
        for interval in shape.numbers.intervals:
            yield self._recorded(override_leaf(number_leaf(interval, style), banned), expected)
        for array in plan.arrays:
            yield from self._opened(ArrayFrame(array), lowering.spacing.array_start, expected)
        for each in plan.objects:
            frame = self._shared.object_frame(each)
            yield from self._opened(frame, lowering.spacing.object_start, expected)

    def _literal_heads(
        self, literals: list[bytes], expected: list[tuple[Chain, Frozen]]
    ) -> Iterator[Head]:
        sequences: dict[Sequence, int] = {}
        pairs = []
        for text in literals:
            then = self._after_scalar(_frozen_text(text), expected)
            if then is not None:
                pairs.append((text, sequences.setdefault(then, len(sequences))))
        if pairs:
            targets = list(sequences)
            yield Head(literal_leaf(pairs), lambda tag: targets[tag], closing=(0,))

    def _after_scalar(self, value: Frozen, expected: list[tuple[Chain, Frozen]]) -> Sequence | None:
        return self._done(
            self._frames, [chain for chain, other in expected if other == value], value
        )

    def _recorded(self, leaf: Leaf, expected: list[tuple[Chain, Frozen]]) -> RecordedHead:
        def follow(tag: int, text: bytes | None) -> Sequence:
            value = _UNKNOWN if text is None else _frozen_text(text)
            then = self._after_scalar(value, expected)
            assert then is not None, "a value that may not come is not in the leaf"
            return then

        return RecordedHead(leaf, follow)

    def _opened(
        self, frame: ObjectFrame | ArrayFrame, leaf: Leaf, expected: list[tuple[Chain, Frozen]]
    ) -> Iterator[Head]:
        kind = "o" if isinstance(frame, ObjectFrame) else "a"
        contains = self._shared.membership.in_atom
        chains = [
            (*chain, value)
            for chain, value in expected
            if value[0] == kind and contains(frame.plan.atom, _thawed(value))
        ]
        frames = (*self._frames, frame)
        if self._shared.rest(frames) > len(chains):
            inner = self._to("open", frames, chains)
            yield Head(leaf, lambda tag: (inner,))

    # Inside a container ---------------------------------------------------------------------

    def _container_heads(self) -> Iterator[Head]:
        spacing, top = self._shared.lowering.spacing, self._frames[-1]
        is_object, is_open = isinstance(top, ObjectFrame), self._phase == "open"
        ends = (
            (spacing.object_empty if is_open else spacing.object_end)
            if is_object
            else (spacing.array_empty if is_open else spacing.array_end)
        )
        if self._may_end(top):
            value = top.value()
            equal = [chain[:-1] for chain in self._chains if chain[-1] == value]
            then = self._done(self._frames[:-1], equal, value)
            if then is not None:
                closing = then
                yield Head(ends, lambda tag: closing)
        following = self._to("next", self._frames, self._chains)
        heads = following.expand().heads
        if is_open:
            yield from heads
        elif heads:
            yield Head(spacing.comma, lambda tag: (following,))

    def _may_end(self, top: ObjectFrame | ArrayFrame) -> bool:
        if isinstance(top, ObjectFrame):
            return top.plan.may_end(top.progress)
        return len(top.items) >= top.plan.atom.low

    def _next_heads(self) -> Iterator[Head | RecordedHead]:
        top = self._frames[-1]
        if isinstance(top, ObjectFrame):
            yield from self._name_heads(top)
        else:
            yield from self._item_heads(top)

    def _item_heads(self, top: ArrayFrame) -> Iterator[Head | RecordedHead]:
        index, atom = len(top.items), top.plan.atom
        if atom.high is not None and index >= atom.high:
            return
        for term, _ in top.plan.ways.options(index, ()):
            chains = [chain for chain in self._chains if len(chain[-1][1]) > index]
            after = self._shared.rest((*self._frames[:-1], top.with_child(_UNKNOWN)))
            if after * self._shared.count(term) > len(chains):
                yield from self._to("value", self._frames, chains, term).expand().heads

    def _name_heads(self, top: ObjectFrame) -> Iterator[Head | RecordedHead]:
        plan, names = top.plan, []
        for index in self._required_first(top):
            then = self._named(top, plan.names[index], plan.slots[index], index)
            if then is not None:
                names.append((plan.spelled[index], then))
        if names:
            declared = literal_leaf((text, tag) for tag, (text, _) in enumerate(names))
            yield Head(declared, lambda tag: names[tag][1], closing=(0,))
        used = {name for chain in self._chains for name, _ in chain[-1][1]}
        for language, slot in plan.kinds:
            spoilt = [name for name in used if self._named(top, name, slot, None) is None]
            banned = [*plan.banned(top.progress.extras), *((spell_text(n), NO_TAG) for n in spoilt)]
            leaf = override_leaf(language_leaf(language or languages.ANY_TEXT), banned)
            yield RecordedHead(leaf, _NameFollow(self, top, slot))

    def _required_first(self, top: ObjectFrame) -> list[int]:
        plan = top.plan
        return sorted(plan.candidates(top.progress), key=lambda index: not plan.required[index])

    def _named(
        self, top: ObjectFrame, name: str | None, slot: Slot, index: int | None
    ) -> Sequence | None:
        """What follows a property name; None if it would end in a duplicate or nowhere."""
        plan = top.plan
        found: list[Sequence] = []
        for term, pending in plan.options(slot, top.progress.pending):
            if index is None:
                text = None if name is None else spell_text(name)
                progress = plan.after_extra(top.progress, text, pending)
            else:
                progress = plan.after_declared(top.progress, index, pending)
            frame = replace(top, progress=progress, name="\0" if name is None else name)
            frames = (*self._frames[:-1], frame)
            chains = [chain for chain in self._chains if _can_still_equal(chain[-1], frame)]
            ways = self._shared.rest(frames) * self._shared.count(term)
            if plan.completes(progress) and ways > len(chains):
                found.append((self._to("value", frames, chains, term),))
        if not found:
            return None
        return (ColonState(self._shared.lowering), *plan.choice(found))


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


class _NameFollow:
    """What follows an undeclared name: see `RecordedHead`."""

    __slots__ = ("_slot", "_state", "_top")

    def __init__(self, state: DistinctState, top: ObjectFrame, slot: Slot) -> None:
        self._state, self._top, self._slot = state, top, slot

    def __call__(self, tag: int, text: bytes | None) -> Sequence:
        name = None if text is None else json.loads(text)
        then = self._state._named(self._top, name, self._slot, None)
        assert then is not None, "a name that may not come is not in the leaf"
        return then


def _can_still_equal(rival: Frozen, frame: ObjectFrame) -> bool:
    """Whether the rival has the property being read, and lacks none of its others for good."""
    plan, entries = frame.plan, dict(frame.entries)
    names = {name for name, _ in rival[1]}
    return frame.name in names and not any(
        name in plan.position and plan.is_gone(frame.progress, name)
        for name in names - entries.keys() - {frame.name}
    )


def _frozen_text(text: bytes) -> Frozen:
    """The value of a scalar's spelling."""
    if text[:1] == b'"':
        return ("s", json.loads(text))
    if text[:1] in b"-0123456789":
        return ("n", Fraction(Decimal(text.decode())))
    return ("l", text)


def _spellings(value: Frozen) -> list[bytes]:
    kind, content = value
    if kind == "s":
        return [spell_text(content)]
    if kind == "n":
        return [text.encode() for text in spell_number(content)]
    return []


def _thawed(value: Frozen) -> Json:
    """The JSON value again; numbers stay exact."""
    kind, content = value
    if kind == "a":
        return [_thawed(item) for item in content]
    if kind == "o":
        return {name: _thawed(item) for name, item in content}
    if kind == "l":
        return json.loads(content)
    if kind == "n":
        return Decimal(content.numerator) / Decimal(content.denominator)
    return content
