"""All ways through the body of a map's item, apart from those of the other items.

Nothing outside sees how a body went, only the text that it returns: its decisions end with that
text (or texts) as values (`Give`). So the runs of the items are added up, not multiplied.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from umbel.frontend_dsl.graph import nodes
from umbel.frontend_dsl.graph.nodes import Block, Ref
from umbel.frontend_dsl.tracing.explore import merge
from umbel.frontend_dsl.tracing.leaving import HasEffect, LeaveTrace
from umbel.frontend_dsl.tracing.path import MAX_OUTCOMES, Fact, Mark, Point
from umbel.frontend_dsl.tracing.recorder import Recording
from umbel.frontend_dsl.tracing.symbols import Symbol, parts_of

VALUE = "$value"  # what a body returns is called
MAX_ITEM_RUNS = 64  # ways through one body


class NotApart(Exception):
    """The body has to be followed as part of the path around it."""


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
    _is_tuple: bool = False
    _texts: list[dict[str, None] | None] = field(default_factory=list)  # None: not all are known

    def value(self) -> Any:
        """What the body returns, with its nodes added to the path. Raises `NotApart`, with nothing
        done, for a body that does not decide, returns no text (or tuple of texts), or has an effect
        outside.
        """
        self._before = self.sees()
        if self._before is None:
            raise NotApart
        block = self._from((), 0)
        if not self._decides:
            raise NotApart  # it is one way: its value is what it is
        path = self.recording.path
        for node in block:
            path.add(node)
        symbols = []
        for index, texts in enumerate(self._texts):
            owner = (self.branch, f"{VALUE}{index}")
            is_few = texts is not None and len(texts) <= MAX_OUTCOMES
            path.set(("outcomes", owner), tuple(texts or ()) if is_few else None)
            symbols.append(Symbol(path, (Ref(*owner),)))
        return tuple(symbols) if self._is_tuple else symbols[0]

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

    def _follow(self, script: tuple[int, ...]) -> tuple[list[Any], list[nodes.Give]]:
        self._num_runs += 1
        if self._num_runs > MAX_ITEM_RUNS:
            raise NotApart
        path = self.recording.path
        facts = path.facts()
        with path.apart(script) as events:
            try:
                value = self.run()
                if not all(map(self._is_own, path.changed_facts(facts))):
                    raise NotApart  # it does something to another branch
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

    def _given(self, value: Any) -> list[nodes.Give]:
        items = value if type(value) is tuple else (value,)
        is_first = self._num_runs == 1
        if is_first:
            self._is_tuple, self._texts = type(value) is tuple, [{} for _ in items]
        is_alike = (type(value) is tuple) == self._is_tuple and len(items) == len(self._texts)
        if not items or not is_alike or not all(isinstance(item, str) for item in items):
            raise NotApart
        path, where, given = self.recording.path, self.recording.where(), []
        for index, item in enumerate(items):
            texts = self._texts[index]
            if isinstance(item, Symbol):
                self._texts[index] = None
            elif texts is not None:
                texts.setdefault(item)
            parts = parts_of(item, path)
            given.append(nodes.Give(branch=self.branch, name=f"{VALUE}{index}", parts=parts,
                                    **where))  # fmt: skip
        return given

    def _is_own(self, fact: Fact) -> bool:
        """Whether a fact is about the body's branch or those below it. What is known of a value on
        one way may be forgotten.
        """
        if fact[0] == "domain":
            return True
        owner = fact[1] if isinstance(fact[1], str) else fact[1][0]
        return owner == self.branch or owner.startswith(self.branch + "/")
