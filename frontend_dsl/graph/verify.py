"""What can be said of a graph before it runs: names that are not there, values that nobody reads,
ends that cannot come, outcomes that no constraint allows.
"""

from dataclasses import dataclass
from itertools import zip_longest

import msgspec

from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.graph.loops import turn_alone
from umbel.frontend_dsl.graph.nodes import (
    TOOLS,
    Again,
    AnyNode,
    Arg,
    Best,
    Block,
    CallTool,
    Choose,
    Decide,
    Fork,
    Generate,
    Give,
    Graph,
    Join,
    Leave,
    Loop,
    Ref,
    Return,
    blocks_of,
    inherited,
    lanes_of,
    reads_of,
    templates_of,
)
from umbel.frontend_dsl.graph.values import NoValue, apply_ops
from umbel.runtime.errors import InvalidRequest

Value = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong (`is_error`) or odd at `site`."""

    site: Site
    message: str
    is_error: bool = False

    def __str__(self) -> str:
        return f"{self.site}: {'error' if self.is_error else 'warning'}: {self.message}"


@dataclass(slots=True)
class Scope:
    """What is surely there at a place: branches, and values by branch and name. `is_possible`: no
    decision on the way is known to go another way.
    """

    branches: set[str]
    values: set[Value]
    is_possible: bool = True

    def copy(self) -> "Scope":
        return Scope(set(self.branches), set(self.values), self.is_possible)


def problems_of(graph: Graph) -> list[Problem]:
    """All problems, in program order; errors make the graph impossible to run."""
    return _Verifier(graph).run()


def require_sound(graph: Graph) -> None:
    """Raise `InvalidRequest` with the first error of `graph`."""
    for problem in problems_of(graph):
        if problem.is_error:
            raise InvalidRequest(f"the graph cannot run: {problem}")


class _Verifier:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._problems: dict[Problem, None] = {}
        self._outcomes: dict[Value, set[str]] = {}  # of calls with few
        self._named: dict[Value, AnyNode] = {}
        self._reads: set[Value] = set()
        self._again: dict[str, list[Scope]] = {}  # per loop: where its turn goes on
        self._ends_loop = False

    def run(self) -> list[Problem]:
        self._block(self._graph.body, Scope({"root"}, set()))
        for value, node in self._named.items():
            if value not in self._reads:
                self._warn(node, f"the program does not read {value[1]!r} of {value[0]}")
        return list(self._problems)

    def _block(self, block: Block, scope: Scope) -> bool:
        """Whether what comes after the block is reached."""
        for node in block:
            self._node(node, scope)
            if isinstance(node, Return | Leave):
                self._ends_loop |= scope.is_possible
                return False
            if isinstance(node, Again):
                if node.index not in self._again:
                    self._error(node, f"there is no loop {node.index!r} here")
                else:
                    self._again[node.index].append(scope.copy())
                return False
            if isinstance(node, Loop) and not self._loop(node, scope):
                return False
            if isinstance(node, Decide) and not self._ways(node, scope):
                return False
        return True

    def _ways(self, node: Decide, scope: Scope) -> bool:
        ends = []
        known = self._known(node.subject)
        arms = [arm.outcomes for arm in node.arms]
        for outcomes, body in zip_longest(arms, blocks_of(node)):
            is_possible = known is None or (
                bool(known.difference(*arms)) if outcomes is None else bool(known & {*outcomes})
            )
            inner = scope.copy()
            inner.is_possible &= is_possible
            if self._block(body, inner):
                ends.append(inner)
        return _meet(scope, ends)

    def _loop(self, node: Loop, scope: Scope) -> bool:
        """Turn by turn: each begins with what is there wherever the one before went on."""
        ends: list[Scope] = []
        around, self._ends_loop = self._ends_loop, False
        outer = self._again.get(node.index)
        for number in range(node.start, node.max_turns):
            self._again[node.index] = []
            inner = scope.copy()
            if self._block(turn_alone(msgspec.structs.replace(node, start=number)), inner):
                ends.append(inner)
                self._ends_loop |= inner.is_possible
            if not _meet(scope, self._again[node.index]):
                break
        else:
            if not self._ends_loop:
                number_of_turns = node.max_turns - node.start
                self._warn(node, f"the loop cannot end before {number_of_turns} turns")
            if self._block(node.last, scope):
                ends.append(scope.copy())
        del self._again[node.index]
        if outer is not None:
            self._again[node.index] = outer
        self._ends_loop = around
        return _meet(scope, ends)

    def _node(self, node: AnyNode, scope: Scope) -> None:
        for branch in lanes_of(node):
            if not branch.startswith("$") and branch not in scope.branches:
                self._error(node, f"there is no branch {branch!r} here")
        for owner, name in reads_of(node):
            self._reads.add((owner, name))
            if (owner, name) not in scope.values:
                what = f"tool call {name!r}" if owner == TOOLS else f"variable {name!r} of {owner}"
                self._error(node, f"there is no {what} here")
        self._arguments(node)
        if isinstance(node, Generate | Choose):
            self._call(node, scope)
        elif isinstance(node, Fork):
            self._fork(node.branch, node.children, node, scope)
        elif isinstance(node, Best):
            self._best(node, scope)
        elif isinstance(node, Give):
            scope.values.add((node.branch, node.name))
        elif isinstance(node, CallTool):
            scope.values.add((TOOLS, node.id))
        elif isinstance(node, Join):
            for path in node.branches:
                if path not in scope.branches:
                    self._error(node, f"there is no branch {path!r} here")
        elif isinstance(node, Decide):
            self._outcomes_of(node)

    def _call(self, node: Generate | Choose, scope: Scope) -> None:
        key = (node.branch, node.name or "")
        if node.name is not None and key in scope.values:
            self._error(node, f"the variable {node.name!r} of {node.branch} exists already")
        scope.values.add(key)
        self._note_outcomes(node, key)
        if node.name is not None:
            self._named.setdefault(key, node)
        if isinstance(node, Generate):
            options = {**self._graph.defaults, **node.options}
            if options.get("ignore_eos") and options.get("max_tokens", 1) is None:
                self._warn(node, f"gen({node.name!r}) cannot end before the context is full")

    def _fork(self, branch: str, children: tuple[str, ...], node: AnyNode, scope: Scope) -> None:
        prefix = branch + "/"
        for child in children:
            if child in scope.branches or not child.startswith(prefix):
                self._error(node, f"{child!r} is no new branch below {branch!r}")
            scope.branches.add(child)

    def _best(self, node: Best, scope: Scope) -> None:
        if len(node.scores) != len(node.candidates) or len(node.children) > len(node.candidates):
            self._error(node, "best needs a score for each candidate, and no more children")
        if node.branch not in scope.branches:
            self._error(node, f"there is no branch {node.branch!r} here")
        for name in node.names:
            for candidate in node.candidates:
                owner = _owner(candidate, name, scope.values)
                if owner is None:
                    self._error(node, f"there is no variable {name!r} of {candidate} here")
                else:
                    self._reads.add(owner)
            scope.values.update((child, inherited(name)) for child in node.children)
        self._fork(node.branch, node.children, node, scope)

    def _arguments(self, node: AnyNode) -> None:
        parts = [part for parts in templates_of(node) for part in parts]
        if isinstance(node, Decide):
            parts.append(node.subject)
        for part in parts:
            if isinstance(part, Arg) and (
                not part.path or part.path[0] not in self._graph.parameters
            ):
                self._error(node, f"there is no parameter for the argument {part.path!r}")

    def _outcomes_of(self, node: Decide) -> None:
        known = self._known(node.subject)
        if known is None:
            return
        for outcome in (outcome for arm in node.arms for outcome in arm.outcomes):
            if outcome not in known:
                accepted = ", ".join(map(repr, sorted(known)[:8]))
                self._warn(node, f"it can never be {outcome!r}; it is one of {accepted}")

    def _known(self, subject: Ref | Arg) -> set[str] | None:
        """The texts that the subject can be, as far as a choice list says so."""
        if not isinstance(subject, Ref) or subject.probability_of is not None:
            return None
        texts = self._outcomes.get((subject.branch, subject.name))
        if texts is None:
            return None
        try:
            return {apply_ops(text, subject.ops) for text in texts}
        except NoValue:
            return None

    def _note_outcomes(self, node: Generate | Choose, key: Value) -> None:
        texts: set[str] | None = None
        if isinstance(node, Generate) and node.options.get("choices"):
            texts = set(node.options["choices"])
        elif isinstance(node, Choose) and all(
            isinstance(part, str) for parts in node.choices for part in parts
        ):
            texts = {"".join(str(part) for part in parts) for parts in node.choices}
        if texts is None:
            return
        # Ways that exclude each other may use one name.
        self._outcomes[key] = texts | self._outcomes.get(key, set())

    def _error(self, node: AnyNode, message: str) -> None:
        self._problems.setdefault(Problem(self._site(node), message, is_error=True))

    def _warn(self, node: AnyNode, message: str) -> None:
        self._problems.setdefault(Problem(self._site(node), message))

    def _site(self, node: AnyNode) -> Site:
        files = self._graph.files
        return Site(files[node.file] if node.file < len(files) else self._graph.name, node.line)


def _owner(branch: str, name: str, values: set[Value]) -> Value | None:
    """The branch on the way up from `branch` that has a value `name`."""
    while branch:
        for known in (name, inherited(name)):
            if (branch, known) in values:
                return (branch, known)
        branch = branch.rpartition("/")[0]
    return None


def _meet(scope: Scope, ends: list[Scope]) -> bool:
    """Make `scope` what is there at all `ends`. Whether there are any."""
    if not ends:
        return False
    scope.branches = set.intersection(*(end.branches for end in ends))
    scope.values = set.intersection(*(end.values for end in ends))
    scope.is_possible = any(end.is_possible for end in ends)
    return True
