"""What can be said of a graph before it runs: names that are not there, values that nobody reads,
ends that cannot come, outcomes that no constraint allows.
"""

from collections import Counter
from dataclasses import dataclass

from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.graph.loops import turn
from umbel.frontend_dsl.graph.nodes import (
    TOOLS,
    AnyNode,
    Arg,
    Block,
    CallTool,
    Choose,
    Decide,
    Fork,
    Generate,
    Graph,
    Join,
    Leave,
    Loop,
    Ref,
    Return,
    blocks_of,
    lane_of,
    reads_of,
    templates_of,
    walk,
)
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
    """What is surely there at a place: branches, and values by branch and name."""

    branches: set[str]
    values: set[Value]

    def copy(self) -> "Scope":
        return Scope(set(self.branches), set(self.values))


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
        self._outcomes = _known_outcomes(graph)

    def run(self) -> list[Problem]:
        self._block(self._graph.body, Scope({"root"}, set()))
        self._unread()
        return list(self._problems)

    def _block(self, block: Block, scope: Scope) -> bool:
        """Whether what comes after the block is reached."""
        for node in block:
            self._node(node, scope)
            if isinstance(node, Return | Leave):
                return False
            if isinstance(node, Loop):
                body = turn(_last_turn(node))
                self._block(body, scope)
                self._subject(node, scope)
            if isinstance(node, Decide) and not self._ways(node, scope):
                return False
        return True

    def _ways(self, node: Decide, scope: Scope) -> bool:
        ends = []
        for body in blocks_of(node):
            inner = scope.copy()
            if self._block(body, inner):
                ends.append(inner)
        if not ends:
            return False
        scope.branches = set.intersection(*(end.branches for end in ends))
        scope.values = set.intersection(*(end.values for end in ends))
        return True

    def _node(self, node: AnyNode, scope: Scope) -> None:
        branch = lane_of(node)
        if not branch.startswith("$") and branch not in scope.branches:
            self._error(node, f"there is no branch {branch!r} here")
        for owner, name in reads_of(node):
            if (owner, name) not in scope.values:
                what = f"tool call {name!r}" if owner == TOOLS else f"variable {name!r} of {owner}"
                self._error(node, f"there is no {what} here")
        self._arguments(node)
        if isinstance(node, Generate | Choose):
            self._call(node, scope)
        elif isinstance(node, Fork):
            self._fork(node, scope)
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
        if isinstance(node, Generate):
            options = {**self._graph.defaults, **node.options}
            if options.get("ignore_eos") and options.get("max_tokens", 1) is None:
                self._warn(node, f"gen({node.name!r}) cannot end before the context is full")

    def _fork(self, node: Fork, scope: Scope) -> None:
        prefix = node.branch + "/"
        for child in node.children:
            if child in scope.branches or not child.startswith(prefix):
                self._error(node, f"{child!r} is no new branch below {node.branch!r}")
            scope.branches.add(child)

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
        known = self._outcomes.get(_key(node.subject))
        if known is None or node.subject.ops:
            return
        for outcome in (outcome for arm in node.arms for outcome in arm.outcomes):
            if outcome not in known:
                accepted = ", ".join(map(repr, sorted(known)[:8]))
                self._warn(node, f"it can never be {outcome!r}; it is one of {accepted}")

    def _subject(self, node: Loop, scope: Scope) -> None:
        subject = turn(_last_turn(node, more=1))[-1]
        assert isinstance(subject, Decide)
        assert isinstance(subject.subject, Ref)
        key = (subject.subject.branch, subject.subject.name)
        if key not in scope.values:
            self._error(node, f"the loop's {node.subject.name!r} is not there after a turn")
        known = self._outcomes.get(_key(node.subject))
        if known is not None and not node.subject.ops and not known.intersection(node.until):
            self._warn(node, f"the loop cannot end before {node.max_turns} turns: "
                             f"{node.subject.name!r} is never {node.until[0]!r}")  # fmt: skip

    def _unread(self) -> None:
        reads = Counter(value for node in walk(self._graph.body) for value in reads_of(node))
        loops = {_key(n.subject) for n in walk(self._graph.body) if isinstance(n, Loop)}
        for node in walk(self._graph.body):
            if isinstance(node, Generate | Choose) and node.name is not None:
                key = (node.branch, node.name)
                if not reads[key] and key not in loops:
                    self._warn(node, f"the program does not read {node.name!r} of {node.branch}")

    def _error(self, node: AnyNode, message: str) -> None:
        self._problems.setdefault(Problem(self._site(node), message, is_error=True))

    def _warn(self, node: AnyNode, message: str) -> None:
        self._problems.setdefault(Problem(self._site(node), message))

    def _site(self, node: AnyNode) -> Site:
        files = self._graph.files
        return Site(files[node.file] if node.file < len(files) else self._graph.name, node.line)


def _known_outcomes(graph: Graph) -> dict[object, set[str]]:
    """Texts that calls can give, by branch and name, where a choice list says so."""
    found: dict[object, set[str]] = {}
    for node in walk(graph.body):
        if isinstance(node, Generate) and node.options.get("choices"):
            texts = set(node.options["choices"])
        elif isinstance(node, Choose) and all(
            isinstance(part, str) for parts in node.choices for part in parts
        ):
            texts = {"".join(str(part) for part in parts) for parts in node.choices}
        else:
            continue
        found.setdefault((node.branch, node.name or ""), set()).update(texts)
    return found


def _key(subject: Ref | Arg) -> object:
    return (subject.branch, subject.name) if isinstance(subject, Ref) else subject.path


def _last_turn(loop: Loop, *, more: int = 0) -> Loop:
    """`loop` with one turn left, and `more`."""
    return Loop(
        index=loop.index, body=loop.body, subject=loop.subject, until=loop.until,
        start=loop.start, max_turns=loop.start + 1 + more, file=loop.file, line=loop.line,
    )  # fmt: skip
