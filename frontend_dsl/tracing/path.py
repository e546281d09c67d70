"""One run of a program on symbols: which way it takes at decisions, and what it appended.

All that a path knows besides the program's own variables are *facts* (what is known of a value,
which names a branch has, ...). Reads of facts are noted: two paths that agree in the program's
variables and in the facts that are read later go on alike.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.graph.nodes import AnyNode, Arg, Ref
from umbel.frontend_dsl.graph.values import apply_ops
from umbel.frontend_dsl.tracing.leaving import LeaveTrace
from umbel.frontend_dsl.tracing.outcomes import may_match
from umbel.frontend_dsl.tracing.snapshot import freeze

MAX_DECISIONS = 400  # on one path
MAX_TURNS = 64  # decisions made on one line, on one path: the turns of a loop that is unrolled
MAX_OUTCOMES = 256  # ways that one decision can have

TRUE, FALSE = "True", "False"  # what tests give

Subject = Ref | Arg
Fact = tuple[Any, ...]  # its kind, and what it is about
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Domain:
    """The texts that a value can still be, or (with `excluded`) any but those."""

    texts: tuple[str, ...]
    excluded: bool = False


ANYTHING = Domain((), excluded=True)


@dataclass(slots=True, eq=False)
class Mark:
    """A decision on the path: `groups` of outcomes, then `otherwise` as the last way if it is
    there.
    """

    subject: Subject
    groups: list[tuple[str, ...]]
    has_otherwise: bool
    chosen: int
    site: Site
    num_reads: int  # facts read up to here

    @property
    def num_ways(self) -> int:
        return len(self.groups) + self.has_otherwise


@dataclass(slots=True, eq=False)
class Point:
    """The start of a statement of the program: where paths can meet."""

    key: Hashable  # None: nobody can tell
    facts: dict[Fact, object]
    num_reads: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is surely not meant, seen while tracing."""

    site: Site
    message: str


class Met(BaseException):
    """The path goes on as one that is known already."""

    def __init__(self, entry: object) -> None:
        super().__init__("a known path")
        self.entry = entry


class Path:
    """`script`: the ways to take at the first decisions; after them the first way is taken.

    `meet(key, facts)` says whether a path from a point on is known. A path that `forgets` does not
    keep what decisions told it of a value beyond the statement: more paths meet, and a value may be
    decided on again.
    """

    def __init__(
        self,
        script: tuple[int, ...],
        meet: Callable[[Hashable, dict[Fact, object]], object | None],
        findings: dict[Finding, None],
        *,
        forgets: bool = False,
        max_turns: int = MAX_TURNS,
    ) -> None:
        self.events: list[AnyNode | Mark | Point] = []
        self.reads: list[Fact] = []
        self.num_decisions = 0
        self._script = script
        self._meet = meet
        self._forgets = forgets
        self._max_turns = max_turns
        self._findings = findings
        self._facts: dict[Fact, object] = {}
        self._sites: Counter[Site] = Counter()
        self._loops: list[weakref.ref[Turns]] = []

    @property
    def most_turns(self) -> int:
        """Decisions on the line that has most."""
        return max(self._sites.values(), default=0)

    def site(self) -> Site:
        return Site.here()

    def add(self, node: AnyNode) -> None:
        self.events.append(node)

    # Facts.

    def get(self, key: Fact) -> object:
        self.reads.append(key)
        return self._facts.get(key)

    def set(self, key: Fact, value: object) -> None:
        self._facts[key] = value

    def known(self, kind: str) -> list[Fact]:
        """What facts of a kind there are; reading them is up to the caller."""
        return [key for key in self._facts if key[0] == kind]

    # Decisions.

    def domain(self, subject: Subject) -> Domain:
        known = self.get(("domain", subject))
        if isinstance(known, Domain):
            return known
        if isinstance(subject, Ref) and not subject.ops and subject.probability_of is None:
            texts = self.outcomes((subject.branch, subject.name))
            if texts is not None:
                return Domain(texts)
        return ANYTHING

    def outcomes(self, owner: tuple[str, str]) -> tuple[str, ...] | None:
        """All texts that a call can give; None: any."""
        known = self.get(("outcomes", owner))
        return known if isinstance(known, tuple) else None

    def observe(self, subject: Subject, function: Callable[[str], Result], what: str) -> Result:
        """`function` of the subject's text, on this path: the others follow other results."""
        base = subject.with_ops(())
        domain = self.domain(base)
        if domain.excluded:
            raise self._too_open(base, what)
        groups: list[tuple[object, list[str]]] = []
        for text in domain.texts:
            result = _attempt(function, apply_ops(text, subject.ops))
            members = next((m for other, m in groups if _same(other, result)), None)
            if members is None:
                groups.append((result, [text]))
            else:
                members.append(text)
        index = 0
        if len(groups) > 1:
            index = self._decide(base, [tuple(members) for _, members in groups], False)
            self.set(("domain", base), Domain(tuple(groups[index][1])))
        result = groups[index][0]
        if isinstance(result, _Raised):
            raise result.error
        return result  # type: ignore[return-value]  # what `function` returned

    def equals(self, subject: Subject, other: str) -> bool:
        """Whether the subject's text is `other`; possible for any text at all."""
        base = subject.with_ops(())
        domain = self.domain(base)
        if not domain.excluded:
            if all(apply_ops(text, subject.ops) != other for text in self._all_texts(base)):
                self.note(f"{_spell(base)} can never be {other!r} here; it is one of "
                          f"{', '.join(map(repr, self._all_texts(base)))}")  # fmt: skip
            return self.observe(subject, lambda text: text == other, "== ")
        known = self.domain(subject)
        if not known.excluded:
            return known.texts[0] == other
        self._note_if_never(subject, other)
        if other in known.texts:
            return False
        if self._decide(subject, [(other,)], True) == 0:
            self.set(("domain", subject), Domain((other,)))
            return True
        self.set(("domain", subject), Domain((*known.texts, other), excluded=True))
        return False

    def holds(self, subject: Subject) -> bool:
        """Whether the test that `subject` ends with is true of its text; both can be."""
        known = self.domain(subject)
        if not known.excluded:
            return known.texts == (TRUE,)
        index = self._decide(subject, [(TRUE,), (FALSE,)], False)
        self.set(("domain", subject), Domain(((TRUE, FALSE)[index],)))
        return index == 0

    @contextmanager
    def apart(self, script: tuple[int, ...]) -> Iterator[list[AnyNode | Mark | Point]]:
        """Follow a piece of the program by itself: it takes the ways of `script`, and what it
        appends and decides goes into the list that this gives. Facts that it sets are forgotten.
        """
        before = self.events, self._script, self.num_decisions, self._facts, self._sites
        self.events, self._script, self.num_decisions = [], script, 0
        self._facts, self._sites = dict(self._facts), Counter()
        try:
            yield self.events
        finally:
            self.events, self._script, self.num_decisions, self._facts, self._sites = before

    def changed_facts(self, before: dict[Fact, object]) -> list[Fact]:
        """The facts that were set since `facts()` gave `before`."""
        return [key for key, value in self._facts.items() if before.get(key) != value]

    def facts(self) -> dict[Fact, object]:
        return dict(self._facts)

    def is_open(self, subject: Subject) -> bool:
        """Whether the value can be any text."""
        return self.domain(subject.with_ops(())).excluded

    def note(self, message: str) -> None:
        self._findings.setdefault(Finding(self.site(), message))

    def _note_if_never(self, subject: Subject, other: str) -> None:
        """Take note of a comparison of a `gen` with a text that its regex does not match."""
        if not isinstance(subject, Ref) or subject.ops:
            return
        pattern = self.get(("regex", (subject.branch, subject.name)))
        if isinstance(pattern, str) and not may_match(pattern, other):
            self.note(f"{_spell(subject)} can never be {other!r} here; its regex is {pattern!r}")

    def _all_texts(self, base: Subject) -> tuple[str, ...]:
        if isinstance(base, Ref):
            return self.outcomes((base.branch, base.name)) or self.domain(base).texts
        return self.domain(base).texts

    def _decide(self, subject: Subject, groups: list[tuple[str, ...]], otherwise: bool) -> int:
        site = self.site()
        self._sites[site] += 1
        if self.num_decisions >= len(self._script):
            if self._sites[site] > self._max_turns:
                times = self._max_turns
                raise LeaveTrace(f"decides more than {times} times in a row here", site)
            if self.num_decisions >= MAX_DECISIONS:
                raise LeaveTrace(f"a path has more than {MAX_DECISIONS} decisions", site)
            if len(groups) > MAX_OUTCOMES:
                raise LeaveTrace(f"a decision with {len(groups)} ways", site)
            chosen = 0
        else:
            chosen = self._script[self.num_decisions]
        self.num_decisions += 1
        self.events.append(Mark(subject, groups, otherwise, chosen, site, len(self.reads)))
        return chosen

    def _too_open(self, subject: Subject, what: str) -> LeaveTrace:
        if isinstance(subject, Arg):
            name = str(subject.path[0])
            return LeaveTrace(
                f"{what} looks into the argument {name!r}; compile({name}=...) fixes it",
                self.site(),
                argument=subject.path,
            )
        return LeaveTrace(
            f"{what} looks into the generated {subject.name!r}, which can be any text; "
            "give it choices or a small regex, or use an @umbel.tool",
            self.site(),
        )

    # Points and loops.

    def point(self) -> None:
        """Called before each statement of the program itself."""
        if self.num_decisions == 0:
            return
        if self._forgets:
            self._facts = {key: value for key, value in self._facts.items() if key[0] != "domain"}
        if self.num_decisions < len(self._script):  # known from the run that this one parts from
            self.events.append(Point(None, {}, 0))
            return
        frame = sys._getframe(1)
        turns = tuple((t.place, t.count) for ref in self._loops if (t := ref()) is not None)
        key = freeze((frame.f_code.co_name, frame.f_lasti, turns, frame.f_locals))
        if key is not None and (entry := self._meet(key, self._facts)) is not None:
            raise Met(entry)
        self.events.append(Point(key, dict(self._facts), len(self.reads)))

    def loop_turns(self) -> list[int]:
        """The turns of the loops that the path is in, from outside in: 1, 2, ..."""
        return [loop.count for ref in self._loops if (loop := ref()) is not None]

    def turns(self, values: Any) -> Iterator[Any]:
        """`values`, counted: how far a loop has come is part of where the program stands."""
        self._loops = [ref for ref in self._loops if ref() is not None]
        loop = Turns(values, len(self._loops))
        self._loops.append(weakref.ref(loop))
        return loop


class Turns(Iterator[Any]):
    """An iterator that knows how often it was asked."""

    def __init__(self, values: Any, place: int) -> None:
        self._values = iter(values)
        self.place = place
        self.count = 0

    def __next__(self) -> Any:
        self.count += 1
        return next(self._values)


@dataclass(frozen=True, slots=True)
class _Raised:
    error: Exception


def _attempt(function: Callable[[str], object], text: str) -> object:
    try:
        return function(text)
    except Exception as error:
        return _Raised(error)


def _same(a: object, b: object) -> bool:
    if isinstance(a, _Raised) and isinstance(b, _Raised):
        return repr(a.error) == repr(b.error)
    return type(a) is type(b) and repr(a) == repr(b)


def _spell(subject: Subject) -> str:
    return repr(subject.name) if isinstance(subject, Ref) else f"argument {subject.path[0]!r}"
