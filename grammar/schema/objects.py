"""Objects as grammar states: which properties have come, which must still come, and the undeclared
names used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from umbel.grammar.pushdown.leaves import literal_leaf
from umbel.grammar.pushdown.recorded import RecordedHead
from umbel.grammar.pushdown.rules import (
    UNREACHABLE,
    Expansion,
    Head,
    Measure,
    RuleState,
    Sequence,
)
from umbel.grammar.schema.object_costs import cheapest_rest
from umbel.grammar.schema.object_plan import ObjectPlan, Progress
from umbel.grammar.schema.spacing import Fork
from umbel.grammar.values.literals import spell_text
from umbel.grammar.values.terms import Term

if TYPE_CHECKING:
    from umbel.grammar.schema.lowering import Lowering


def object_heads(plan: ObjectPlan) -> tuple[Head, ...]:
    """The opening brace of an object of the plan, and what comes with it."""
    plan.prepare()
    return _forked(plan.lowering.spacing.object_first, plan, plan.first())


def _forked(fork: Fork, plan: ObjectPlan, progress: Progress) -> tuple[Head, ...]:
    following = None
    if not plan.is_full(progress):
        keys = KeyState(plan, progress)
        following = (keys,) if keys.is_possible() else None
    return fork.heads(following, may_end=plan.may_end(progress))


class ObjectState(RuleState):
    """After a property."""

    __slots__ = ("_plan", "_progress")

    def __init__(self, plan: ObjectPlan, progress: Progress) -> None:
        super().__init__((plan, progress))
        self._plan, self._progress = plan, progress

    def expand(self) -> Expansion:
        plan = self._plan
        return Expansion(_forked(plan.lowering.spacing.object_after, plan, self._progress))

    def cost(self, measure: Measure) -> int:
        plan, progress = self._plan, self._progress
        fork = plan.lowering.spacing.object_after
        if plan.may_end(progress):
            return measure.leaf(fork.end)
        return measure.leaf(fork.next) + measure.state(KeyState(plan, progress))


class KeyState(RuleState):
    """In front of a property name, behind its opening quote."""

    __slots__ = ("_expansion", "_plan", "_progress")

    def __init__(self, plan: ObjectPlan, progress: Progress) -> None:
        super().__init__((plan, progress))
        self._plan, self._progress = plan, progress
        self._expansion: Expansion | None = None

    def is_possible(self) -> bool:
        return bool(self.expand().heads)

    def expand(self) -> Expansion:
        if self._expansion is None:
            # A recorded head stands where plain ones do.
            self._expansion = Expansion(tuple(self._heads()))  # type: ignore[arg-type]
        return self._expansion

    def _heads(self) -> Iterator[Head | RecordedHead]:
        plan, progress = self._plan, self._progress
        chosen = plan.open_names(progress)
        if not plan.is_simple:
            bits = plan.leaves.bits
            positions = (i for i in plan.candidates(progress) if self._declared(i))
            chosen = sum(bits[index] for index in positions)
        free = [
            kind
            for kind in range(len(plan.kinds))
            if plan.has_free_name(kind, progress.extras) and self._extra(kind, None)
        ]
        if chosen and free and plan.is_open:
            # One leaf for all names, declared or not: one thread, and rows as without declarations.
            leaf = plan.names_leaf(chosen, progress.extras)
            yield RecordedHead(leaf, self._after_name, tags=(0,))
            return
        if chosen:
            leaf = plan.leaves.declared(chosen)
            yield Head(leaf, self._after_declared)
        for kind in free:
            leaf = plan.extra_leaves(progress.extras)[kind]
            yield RecordedHead(leaf, self._extra_follow(kind))

    def _after_declared(self, tag: int) -> Sequence:
        return self._then(self._declared(tag))

    def _after_name(self, tag: int, text: bytes | None) -> Sequence:
        """Tag 0 is an undeclared name, 1 + k the declared one of position k."""
        return self._then(self._extra(0, text) if tag == 0 else self._declared(tag - 1))

    def _declared(self, index: int) -> list[tuple[Term, Progress]]:
        """The ways to go on after a declared name."""
        plan, progress = self._plan, self._progress
        found = []
        for term, pending in plan.options(plan.slots[index], progress.pending):
            after = plan.after_declared(progress, index, pending)
            if plan.completes(after):
                found.append((term, after))
        return found

    def _extra(self, kind: int, text: bytes | None) -> list[tuple[Term, Progress]]:
        """The ways to go on after an undeclared name, read as `text`."""
        plan, progress = self._plan, self._progress
        found = []
        name = None if text is None else b'"' + text
        for term, pending in plan.options(plan.kinds[kind][1], progress.pending):
            after = plan.after_extra(progress, name, pending)
            if plan.completes(after):
                found.append((term, after))
        return found

    def _extra_follow(self, kind: int) -> "_Extra":
        return _Extra(self, kind)

    def _then(self, ways: list[tuple[Term, Progress]]) -> Sequence:
        plan = self._plan
        sequences: list[Sequence] = [
            (plan.lowering.state(term), ObjectState(plan, after)) for term, after in ways
        ]
        return (plan.lowering.colon, *plan.choice(sequences))

    def cost(self, measure: Measure) -> int:
        """The cheapest way to the end; where values meet conditions of the whole object, one way: a
        missing property if there is one, else whatever may come first.
        """
        plan, progress = self._plan, self._progress
        if not (plan.atom.some or plan.atom.implies):
            return cheapest_rest(plan, progress, measure)
        colon = measure.leaf(plan.lowering.spacing.colon)
        missing = plan.missing(progress)
        for index in self._cheap_order(missing):
            key = colon + measure.leaf(plan.leaves.single(index))
            ways = self._declared(index)
            if plan.names[index] not in missing:
                ways = self._useful(ways)
            cost = self._cost_of(ways, key, measure)
            if cost < UNREACHABLE:
                return cost
        for kind in range(len(plan.kinds)):
            names = plan.witnesses(kind, progress.extras)
            if names:
                texts = [spell_text(name)[1:] for name in names]
                key = max(measure.leaf(literal_leaf(text)) for text in texts)
                # Not by one of the witnesses: a place inside a name does not know it either.
                ways = self._useful(self._extra(kind, None))
                cost = self._cost_of(ways, colon + key, measure)
                if cost < UNREACHABLE:
                    return cost
        return UNREACHABLE

    def _useful(self, ways: list[tuple[Term, Progress]]) -> list[tuple[Term, Progress]]:
        """Those that come nearer to the end, or reach it: others could go on for ever."""
        plan, progress = self._plan, self._progress
        if progress.size < plan.low:
            return ways
        num_pending = len(progress.pending)
        return [way for way in ways if len(way[1].pending) < num_pending or plan.may_end(way[1])]

    def _cost_of(self, ways: list[tuple[Term, Progress]], key: int, measure: Measure) -> int:
        """The way that leaves the fewest obligations, if tokens spell it; else the next one."""
        for term, after in sorted(ways, key=lambda way: len(way[1].pending)):
            cost = key + self._cost_after(term, after, measure)
            if cost < UNREACHABLE:
                return cost
        return UNREACHABLE

    def _cheap_order(self, missing: tuple[str, ...]) -> Iterator[int]:
        plan = self._plan
        possible = set(plan.candidates(self._progress))
        for name in missing:
            if plan.position[name] in possible:
                yield plan.position[name]
        yield from sorted(possible - {plan.position[name] for name in missing})

    def _cost_after(self, term: Term, after: Progress, measure: Measure) -> int:
        value = measure.state(self._plan.lowering.state(term))
        return value + measure.state(ObjectState(self._plan, after))


class _Extra:
    """What follows an undeclared name: see `RecordedHead`."""

    __slots__ = ("_keys", "_kind")

    def __init__(self, keys: KeyState, kind: int) -> None:
        self._keys, self._kind = keys, kind

    def __call__(self, tag: int, text: bytes | None) -> Sequence:
        return self._keys._then(self._keys._extra(self._kind, text))  # one component


class ColonState(RuleState):
    """The colon after a name."""

    __slots__ = ("_expansion",)

    def __init__(self, lowering: "Lowering") -> None:
        super().__init__(lowering.spacing)
        self._expansion = Expansion((Head(lowering.spacing.colon, _nothing),))

    def expand(self) -> Expansion:
        return self._expansion


def _nothing(tag: int) -> Sequence:
    return ()
