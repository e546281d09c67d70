"""All ways through the body of a map's item, apart from those of the other items.

Nothing outside sees how a body went, only what it returns: its decisions end with that as a value
(`Give`). So the runs of the items are added up, not multiplied.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from umbel.frontend_dsl.graph import nodes
from umbel.frontend_dsl.graph.nodes import Block, Give, blocks_of, with_blocks
from umbel.frontend_dsl.tracing.explore import merge
from umbel.frontend_dsl.tracing.leaving import HasEffect, LeaveTrace
from umbel.frontend_dsl.tracing.path import Fact, Mark, Point
from umbel.frontend_dsl.tracing.recorder import Recording
from umbel.frontend_dsl.tracing.returned import Differs, Place, rebuilt, shape_of, template_of

VALUE = "$value"  # what a body returns is called
MAX_ITEM_RUNS = 64  # ways through one body


class NotApart(Exception):
    """The body has to be followed as part of the path around it. The message says why, if it is
    worth knowing: each item then doubles the paths.
    """


def multiplying(reason: NotApart) -> str:
    return (
        f"the body of this map {reason}, so each item multiplies the paths; let it return texts, "
        "numbers, constants, or containers of them, the same on all ways"
    )


@dataclass(slots=True, eq=False)
class Aside:
    """`run()` runs the body, which `sees` all that it could change outside of itself."""

    recording: Recording
    branch: str
    run: Callable[[], Any]
    sees: Callable[[], Hashable]
    _num_runs: int = 0
    _decides: bool = False
    _before: Hashable = None
    _shape: object = None
    _places: list[Place] = field(default_factory=list)

    def value(self) -> Any:
        """What the body returns, with its nodes added to the path. Raises `NotApart`, with nothing
        done, for a body that does not decide, returns what cannot be a value of all ways, or has an
        effect outside.
        """
        self._before = self.sees()
        if self._before is None:
            raise NotApart
        block = self._from((), 0)
        if not self._decides:
            raise NotApart  # it is one way: its value is what it is
        path = self.recording.path
        try:
            values = [place.value(path) for place in self._places]
        except Differs as error:
            raise NotApart(f"decides and returns {error}") from None
        superfluous = {place.owner for place in self._places if place.is_same}
        for node in _without(block, superfluous):
            path.add(node)
        return rebuilt(self._shape, iter(values))

    def _from(self, script: tuple[int, ...], num_events: int) -> Block:
        """What follows after the first `num_events` events of the ways of `script`."""
        events, given = self._follow(script)
        block: Block = tuple(given)
        pending: list[Any] = []
        depth = sum(isinstance(event, Mark) for event in events)
        for index in range(len(events) - 1, num_events - 1, -1):
            event = events[index]
            if not isinstance(event, Mark):
                pending.append(event)
                continue
            self._decides = True
            block, pending = (*reversed(pending), *block), []
            depth -= 1
            before = (*script, *(0,) * (depth - len(script)))
            ways = range(1, event.num_ways)
            others = [self._from((*before, way), index + 1) for way in ways]
            block = merge(event, [block, *others], self.recording.where(event.site))
        return (*reversed(pending), *block)

    def _follow(self, script: tuple[int, ...]) -> tuple[list[Any], list[Give]]:
        self._num_runs += 1
        if self._num_runs > MAX_ITEM_RUNS:
            raise NotApart(f"has more than {MAX_ITEM_RUNS} ways through it")
        path = self.recording.path
        facts = path.facts()
        with path.apart(script) as events:
            try:
                value = self.run()
                if not all(map(self._is_own, path.changed_facts(facts))):
                    raise NotApart("decides and appends to another branch")
                given = self._given(value)
            except LeaveTrace as error:
                raise NotApart from error
            finally:
                if self.sees() != self._before:
                    raise HasEffect(LeaveTrace("the body of a map has an effect", path.site()))
        names = {getattr(event, "name", None) for event in events}
        if not names.isdisjoint(give.name for give in given):
            raise NotApart
        return [event for event in events if not isinstance(event, Point)], given

    def _given(self, value: Any) -> list[Give]:
        found: list[Any] = []
        shape = shape_of(value, found)
        if self._num_runs == 1:
            self._shape = shape
            self._places = [Place((self.branch, f"{VALUE}{i}")) for i in range(len(found))]
        elif shape != self._shape:
            raise NotApart("decides and returns containers of several shapes")
        path, where = self.recording.path, self.recording.where()
        given = []
        for place, item in zip(self._places, found, strict=True):
            place.values.append(item)
            branch, name = place.owner
            given.append(Give(branch=branch, name=name, parts=template_of(item, path), **where))
        return given

    def _is_own(self, fact: Fact) -> bool:
        """Whether a fact is about the body's branch or those below it. What is known of a value on
        one way may be forgotten.
        """
        if fact[0] == "domain":
            return True
        owner = fact[1] if isinstance(fact[1], str) else fact[1][0]
        return owner == self.branch or owner.startswith(self.branch + "/")


def _without(block: Block, owners: set[tuple[str, str]]) -> Block:
    """`block` without the values that nobody needs."""
    return tuple(
        with_blocks(node, [_without(inner, owners) for inner in blocks_of(node)])
        for node in block
        if not (isinstance(node, nodes.Give) and (node.branch, node.name) in owners)
    )
