"""All paths of a program as one block of nodes.

The program is run once per way that a decision has. A run stops where it meets a known path: at the
same statement, with the same variables and the same facts among those that matter later. So
the number of runs grows with the number of ways, not with their combinations.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.graph import nodes
from umbel.frontend_dsl.graph.nodes import Arm, Block, Decide, Leave, Return
from umbel.frontend_dsl.tracing.leaving import HasEffect, LeaveTrace, NotTraceable
from umbel.frontend_dsl.tracing.path import (
    MAX_TURNS,
    Fact,
    Finding,
    Mark,
    Met,
    Path,
    Point,
    Subject,
)
from umbel.frontend_dsl.tracing.recorder import Recording
from umbel.frontend_dsl.tracing.results import as_data

MAX_RUNS = 100  # of one program, each path by itself
MAX_FORGETFUL_RUNS = 300  # with paths that forget what they decided
# Whether paths forget, and how many turns of a loop are followed before it is left to Python.
ATTEMPTS = ((False, MAX_TURNS), (True, MAX_TURNS), (True, 8))
MAX_NODES = 10_000  # of a graph, written out: what follows a decision may be there once per way


# One way of a decision: the texts that lead to it, None for all others; and what follows.
Way = tuple[tuple[str, ...] | None, Block]


@dataclass(slots=True, eq=False)
class Known:
    """What follows from a point: valid where `facts` (those read later) are the same."""

    facts: dict[Fact, object]
    block: Block

    def fits(self, facts: dict[Fact, object]) -> bool:
        return all(facts.get(key) == value for key, value in self.facts.items())


@dataclass(slots=True)
class Explored:
    """`reads`: facts that were read on any of the paths."""

    block: Block
    reads: set[Fact]


class _TooLarge(Exception):
    """More paths than a graph is for."""


@dataclass(slots=True, eq=False)
class Explorer:
    """`run(recording)` runs the program on symbols and returns what it returned."""

    run: Callable[[Recording], Any]
    defaults: dict[str, Any]
    start: Site  # where the program is defined
    files: dict[str, int] = field(default_factory=dict)
    types: dict[tuple[str, str], Any] = field(default_factory=dict)
    tools: dict[str, Any] = field(default_factory=dict)
    findings: dict[Finding, None] = field(default_factory=dict)
    leaves: list[LeaveTrace] = field(default_factory=list)
    multiplies: dict[Site, str] = field(default_factory=dict)  # see `Recording`
    num_runs: int = 0
    num_met: int = 0
    forgets: bool = False
    goes_apart: bool = True  # bodies of maps are followed by themselves; see `aside`
    max_turns: int = MAX_TURNS
    most_turns: int = 0  # decisions on one line of one path
    _sizes: dict[int, tuple[nodes.AnyNode, int]] = field(default_factory=dict)
    _known: dict[Hashable, list[Known]] = field(default_factory=dict)

    def explore(self) -> Block:
        """The whole program. Raises `LeaveTrace` if every path leaves the trace."""
        try:
            return self._explore()
        except HasEffect:
            self.goes_apart = False
            return self._explore()

    def _explore(self) -> Block:
        reason: _TooLarge | None = None
        for self.forgets, self.max_turns in ATTEMPTS:
            if reason is not None and self.most_turns < self.max_turns < MAX_TURNS:
                break  # it would be the same again
            self.num_runs = 0
            self._known.clear()
            self.leaves.clear()
            try:
                return self._whole(self._from((), 0, 0).block)
            except _TooLarge as error:
                reason = reason or error
        raise NotTraceable(LeaveTrace(f"{reason}{self._maps_that_multiply()}", self.start))

    def _maps_that_multiply(self) -> str:
        return "".join(f"; {site}: {what}" for site, what in self.multiplies.items())

    def _whole(self, block: Block) -> Block:
        if self.leaves and _always_leaves(block):
            first = self.leaves[0]
            why = self._maps_that_multiply()
            raise LeaveTrace(first.reason + why, first.site, argument=first.argument)
        return block

    def _from(self, script: tuple[int, ...], num_events: int, num_reads: int) -> Explored:
        """What follows after the first `num_events` events and `num_reads` reads of the path of
        `script`, which are known. `reads` are those after them.
        """
        path, end, met = self._follow(script)
        block: Block = (end,) if end is not None else ()
        elsewhere: set[Fact] = set()  # read on other paths that part from this one
        if met is not None:
            block, elsewhere = met.block, set(met.facts)
        pending: list[Any] = []
        depth = path.num_decisions
        for index in range(len(path.events) - 1, num_events - 1, -1):
            event = path.events[index]
            if not isinstance(event, Point | Mark):
                pending.append(event)
                continue
            block, pending = (*reversed(pending), *block), []
            if isinstance(event, Point):
                self._remember(event, block, elsewhere.union(path.reads[event.num_reads :]))
                continue
            depth -= 1
            before = (*script, *(0,) * (depth - len(script)))
            others = [
                self._from((*before, way), index + 1, event.num_reads)
                for way in range(1, event.num_ways)
            ]
            elsewhere.update(*(other.reads for other in others))
            block = merge(
                event, [block, *(other.block for other in others)], self.where(event.site)
            )
        block = (*reversed(pending), *block)
        if sum(map(self._size, block)) > MAX_NODES:
            raise _TooLarge(f"its paths have more than {MAX_NODES} nodes")
        return Explored(block, elsewhere.union(path.reads[num_reads:]))

    def where(self, site: Site) -> dict[str, int]:
        return {"file": self.files.setdefault(site.file, len(self.files)), "line": site.line}

    def _remember(self, point: Point, block: Block, reads: set[Fact]) -> None:
        if point.key is None:
            return
        facts = {key: point.facts.get(key) for key in reads}
        self._known.setdefault(point.key, []).append(Known(facts, block))

    def _size(self, node: nodes.AnyNode) -> int:
        """Nodes in `node`, itself included. Blocks share nodes, so they are counted once each."""
        known = self._sizes.get(id(node))
        if known is None:
            inner = (self._size(n) for block in nodes.blocks_of(node) for n in block)
            known = (node, 1 + sum(inner))  # the node is kept, so that its id stays its own
            self._sizes[id(node)] = known
        return known[1]

    def _meet(self, key: Hashable, facts: dict[Fact, object]) -> object | None:
        return next((k for k in self._known.get(key, ()) if k.fits(facts)), None)

    def _follow(self, script: tuple[int, ...]) -> tuple[Path, Any, Known | None]:
        """One run: its path, the node that ends it, and the known path it met."""
        path = Path(script, self._meet, self.findings, forgets=self.forgets,
                    max_turns=self.max_turns)  # fmt: skip
        recording = Recording(path, self.defaults, self.files, self.types)
        recording.goes_apart, recording.multiplies = self.goes_apart, self.multiplies
        self.num_runs += 1
        try:
            limit = MAX_FORGETFUL_RUNS if self.forgets else MAX_RUNS
            if self.num_runs > limit:
                raise _TooLarge(f"it has more than {limit} paths")
            value = self.run(recording)
            end: Any = Return(value=as_data(value, path), **self.where(self.start))
        except Met as met:
            self.num_met += 1
            return path, None, met.entry  # type: ignore[return-value]  # what `_meet` returned
        except LeaveTrace as error:
            error.__cause__ = error.__context__ = None  # they and the traceback hold the path
            self.leaves.append(error.with_traceback(None))
            end = Leave(reason=error.reason, **recording.where(error.site))
        finally:
            self.tools.update(recording.tools)
            self.most_turns = max(self.most_turns, path.most_turns)
        return path, end, None


def merge(mark: Mark, blocks: list[Block], where: dict[str, int]) -> Block:
    """A decision between `blocks`, and after it what they have in common at their ends."""
    otherwise = blocks[-1] if mark.has_otherwise else None
    arms: list[tuple[list[str], Block]] = []
    for texts, block in zip(mark.groups, blocks, strict=False):
        same = next((arm for arm in arms if arm[1] == block), None)
        if same is not None:
            same[0].extend(texts)
        else:
            arms.append((list(texts), block))
    bodies = [block for _, block in arms] + ([otherwise] if otherwise is not None else [])
    if all(body == bodies[0] for body in bodies):
        return bodies[0]
    shared = _common_suffix(bodies)
    cut = [body[: len(body) - shared] for body in bodies]
    ways: list[Way] = [(tuple(texts), body) for (texts, _), body in zip(arms, cut, strict=False)]
    if otherwise is not None:
        ways.append((None, cut[-1]))
    decide = flattened(_decide(mark.subject, factored(ways, mark.subject, where), where))
    return (decide, *bodies[0][len(bodies[0]) - shared :])


def factored(ways: list[Way], subject: Subject, where: dict[str, int]) -> list[Way]:
    """Ways that go on alike (but not all do) as one: a decision between them, and then what they
    share. Else what follows a turn of a loop would be written once for each way through the turn.
    """
    out: list[Way] = []
    left = list(ways)
    while left:
        first = left.pop(0)
        alike = [w for w in left if w[1] and first[1] and w[1][-1] == first[1][-1]]
        if not alike:
            out.append(first)
            continue
        group = [first, *alike]
        left = [way for way in left if all(way is not other for other in alike)]
        shared = _common_suffix([body for _, body in group])
        between = [(texts, body[: len(body) - shared]) for texts, body in group]
        tail = first[1][len(first[1]) - shared :]
        texts = None if any(t is None for t, _ in group) else tuple(
            text for outcomes, _ in group for text in outcomes or ()
        )  # fmt: skip
        out.append((texts, (_decide(subject, between, where), *tail)))
    return sorted(out, key=lambda way: way[0] is None)  # the rest comes last


def _decide(subject: Subject, ways: list[Way], where: dict[str, int]) -> Decide:
    return Decide(
        subject=subject,
        arms=tuple(Arm(texts, body) for texts, body in ways if texts is not None),
        otherwise=next((body for texts, body in ways if texts is None), None),
        **where,
    )


def flattened(decide: Decide) -> Decide:
    """Without decisions on the same subject right inside: their arms become its own."""
    arms: list[Arm] = []
    for arm in decide.arms:
        inner = arm.body[0] if len(arm.body) == 1 else None
        is_same = isinstance(inner, Decide) and inner.subject == decide.subject
        if isinstance(inner, Decide) and is_same and inner.otherwise is None:
            arms += inner.arms
        else:
            arms.append(arm)
    otherwise = decide.otherwise
    if otherwise is not None and len(otherwise) == 1 and isinstance(otherwise[0], Decide):
        inner = otherwise[0]
        if inner.subject == decide.subject:
            arms += inner.arms
            otherwise = inner.otherwise
    return msgspec.structs.replace(decide, arms=tuple(arms), otherwise=otherwise)


def _common_suffix(blocks: list[Block]) -> int:
    length = 0
    shortest = min(len(block) for block in blocks)
    while length < shortest and all(
        block[-1 - length] == blocks[0][-1 - length] for block in blocks[1:]
    ):
        length += 1
    return length


def _always_leaves(block: Block) -> bool:
    return not any(isinstance(node, Return) for node in nodes.walk(block))
