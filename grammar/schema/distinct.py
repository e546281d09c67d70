"""Items of a unique array that can be arrays or objects: read with their whole value in the state.

Earlier items that equal the new one so far are its *rivals*. A step is offered only if more
completions remain than
rivals, so that one of them differs: then no text runs into a dead end, and no two items are equal.
Completions are
counted, up to a bound, as a product over the open containers.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

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
from umbel.grammar.schema.completions import (
    UNKNOWN,
    ArrayFrame,
    Chain,
    Distinct,
    Frames,
    Frozen,
    Listed,
    ObjectFrame,
    thawed,
)
from umbel.grammar.schema.digits import NumberStyle, number_leaf
from umbel.grammar.schema.object_plan import Slot
from umbel.grammar.schema.spelling import language_leaf, plain_leaf
from umbel.grammar.values.literals import spell_number, spell_text
from umbel.grammar.values.numbers import NumberSet
from umbel.grammar.values.shapes import Shape
from umbel.grammar.values.terms import Term

if TYPE_CHECKING:
    pass

_MAX_LISTED = 1_000  # numbers between bounds that are listed one by one


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
        if self._phase == "value" and not self._frames:
            listed = self._cost_of_listed(measure)
            if listed is not None:
                return listed
        best = UNREACHABLE
        for head in self.expand().heads:
            then = head.follow(0, None) if isinstance(head, RecordedHead) else head.follow(0)
            best = measure.leaf(head.leaf) + sequence_cost(then, measure)
            if best < UNREACHABLE:
                break
        return best

    def _cost_of_listed(self, measure: Measure) -> int | None:
        """Where all values of this and the further items are literals: the first ones that are not
        used, as many as must come. Looks at no other state, of which there may be a hundred in a
        row.
        """
        assert self._term is not None
        atom, (length, used) = self._shared.plan.atom, self._place
        listed = self._listed()
        if listed is None or length < len(atom.items.prefix):
            return None
        fork = self._shared.lowering.spacing.array_after
        wanted = max(1, atom.low - length)
        total = measure.leaf(fork.end) + (wanted - 1) * measure.leaf(fork.next)
        leaf, values = listed
        taken = set(used)
        for tag, value in enumerate(values):
            if value not in taken and (cost := measure.leaf(leaf, tag)) < UNREACHABLE:
                taken.add(value)
                total += cost
                wanted -= 1
                if not wanted:
                    return total
        return UNREACHABLE

    def _listed(self) -> Listed | None:
        """The texts of the term's values, each with its number as the tag, and the values; None if
        they are not all literals.
        """
        term, known = self._term, self._shared.listed
        assert term is not None
        if term not in known:
            known[term] = None
            plan = self._shared.lowering.plan(term)
            shape = _listed(plan.shape)
            is_open = shape.strings.atoms or shape.numbers.intervals or plan.arrays or plan.objects
            texts = self._shared.lowering.literals(shape)
            if texts and not is_open:
                leaf = literal_leaf((text, tag) for tag, text in enumerate(texts))
                known[term] = (leaf, [_frozen_text(text) for text in texts])
        return known[term]

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
        # What a rival has here is told apart by literals: after any other text no rival is left.
        values = {value for _, value in expected}
        shared = [text for value in values if _is_in(shape, value) for text in _spellings(value)]
        literals = dict.fromkeys((*lowering.literals(shape), *shared))
        yield from self._literal_heads(list(literals), expected)
        banned = [(text, NO_TAG) for value in values for text in _spellings(value)]
        for texts in shape.strings.atoms:
            inside = sum(kind == "s" and texts.contains(text) for kind, text in values)
            if texts.count(inside + 1) > inside:
                excluded = [(spell_text(text), NO_TAG) for text in texts.excluded]
                yield self._recorded(override_leaf(plain_leaf(texts), [*excluded, *banned]))
        style = NumberStyle(lowering.style.point_zero, unique=True)
        for interval in shape.numbers.intervals:
            yield self._recorded(override_leaf(number_leaf(interval, style), banned))
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

    def _recorded(self, leaf: Leaf) -> RecordedHead:
        """Texts that no rival has."""

        def follow(tag: int, text: bytes | None) -> Sequence:
            value = UNKNOWN if text is None else _frozen_text(text)
            then = self._done(self._frames, [], value)
            assert then is not None, "without rivals every value may come"
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
            if value[0] == kind and contains(frame.plan.atom, thawed(value))
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
            after = self._shared.rest((*self._frames[:-1], top.with_child(UNKNOWN)))
            if after * self._shared.count(term) > len(chains):
                yield from self._to("value", self._frames, chains, term).expand().heads

    def _name_heads(self, top: ObjectFrame) -> Iterator[Head | RecordedHead]:
        plan, names = top.plan, []
        for index in self._required_first(top):
            then = self._named(top, plan.names[index], plan.slots[index], index)
            if then is not None:
                names.append((plan.spelled[index], then))
        # Undeclared names that a rival has are literals too: after any other name no rival is left.
        used = sorted({name for chain in self._chains for name, _ in chain[-1][1]})
        extras = [name for name in used if self._is_free(top, name)]
        for name in extras:
            slot = next((s for lang, s in plan.kinds if lang is None or lang.accepts(name)), None)
            then = None if slot is None else self._named(top, name, slot, None)
            if then is not None:
                names.append((spell_text(name), then))
        if names:
            leaf = literal_leaf((text, tag) for tag, (text, _) in enumerate(names))
            yield Head(leaf, lambda tag: names[tag][1], closing=(0,))
        banned = [*plan.banned(top.progress.extras), *((spell_text(n), NO_TAG) for n in extras)]
        for language, slot in plan.kinds:
            other = override_leaf(language_leaf(language or languages.ANY_TEXT), banned)
            if self._named(top, None, slot, None) is not None:
                yield RecordedHead(other, _NameFollow(self, top, slot))

    def _is_free(self, top: ObjectFrame, name: str) -> bool:
        return (spell_text(name), NO_TAG) not in top.plan.banned(top.progress.extras)

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
        return (self._shared.lowering.colon, *plan.choice(found))


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


def _is_in(shape: Shape, value: Frozen) -> bool:
    """Whether a scalar lies in the parts of a shape that are not listed value by value."""
    kind, content = value
    if kind == "s":
        return any(texts.contains(content) for texts in shape.strings.atoms)
    return kind == "n" and any(each.contains(content) for each in shape.numbers.intervals)


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
