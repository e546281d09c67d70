"""Compiled forms of one program: a graph per shape of arguments, made on first use and kept.

What cannot be compiled runs eagerly. Nothing here changes what a run means; `explain` says what was
done and what was not, with file and line.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from umbel.frontend_dsl.client import Client
from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.graph.nodes import Graph, walk
from umbel.frontend_dsl.passes.pipeline import BY_ENGINE, NAMES, PassReport, optimized
from umbel.frontend_dsl.passes.tokenize import tokenized
from umbel.frontend_dsl.tracing.arguments import ArgPath, Unshaped, shape
from umbel.frontend_dsl.tracing.leaving import LeaveTrace
from umbel.frontend_dsl.tracing.trace import Traced, trace

MAX_VARIANTS = 16  # graphs of one program; with more the arguments steer too much
MAX_FIXED = 8  # strings among the arguments that may be part of a graph


@dataclass(frozen=True, slots=True)
class Compiled:
    """One shape of arguments. `graph` None: it runs eagerly, because of `reasons`.

    With a graph, `reasons` say where single paths leave it and go on in Python.
    """

    graph: Graph | None
    reasons: tuple[LeaveTrace, ...]
    reports: tuple[PassReport, ...] = ()
    traced: Traced | None = None
    fixed: frozenset[ArgPath] = frozenset()

    def __str__(self) -> str:
        if self.graph is None:
            return "runs eagerly:\n" + "".join(f"  {reason}\n" for reason in self.reasons)
        assert self.traced is not None
        num_nodes = sum(1 for _ in walk(self.graph.body))
        lines = [f"compiled: {num_nodes} nodes, traced in {self.traced.num_runs} runs"]
        if self.fixed:
            names = sorted({str(path[0]) for path in self.fixed})
            lines.append(f"  for the given values of: {', '.join(names)}")
        lines += [f"  goes on in Python at {reason}" for reason in self.reasons]
        lines += [f"  {report.name}: {report.message}" for report in self.reports]
        lines += [f"  look: {finding.site}: {finding.message}" for finding in self.traced.findings]
        return "\n".join(lines) + "\n"


class Compiler:
    """The variants of one program. Thread-safe."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._lock = threading.RLock()
        self._variants: OrderedDict[Hashable, Compiled] = OrderedDict()
        self._looks: dict[ArgPath, LeaveTrace] = {}  # strings that have to be part, and why
        self._gave_up: LeaveTrace | None = None
        self._last: Compiled | None = None
        self._bound: weakref.WeakKeyDictionary[Any, dict[int, tuple[Graph, Graph]]] = (
            weakref.WeakKeyDictionary()  # per client: graphs with their tokenized form
        )

    def compiled(
        self,
        arguments: Mapping[str, Any],
        *,
        passes: Collection[str] = NAMES,
        fixed: Collection[ArgPath] = (),
        reads_result_only: bool = False,
        stand_ins: Collection[str] = (),
    ) -> Compiled:
        """The compiled form for arguments of this shape; made now if it is not there.

        `stand_ins`: arguments that nobody gave. A program that looks into one has no graph yet.
        """
        with self._lock:
            if self._gave_up is not None:
                return Compiled(None, (self._gave_up,))
            options = (tuple(sorted(passes)), reads_result_only)
            try:
                made = self._find(arguments, frozenset(fixed), options, stand_ins)
            except Unshaped as error:
                made = Compiled(None, (LeaveTrace(str(error), self._start()),))
            self._last = made
            return made

    def explain(self) -> str:
        """What became of the program when it was last compiled or run."""
        with self._lock:
            if self._last is None:
                return f"{self._program.name} was neither compiled nor run yet"
            return f"{self._program.name} {self._last}".rstrip()

    def bound(self, compiled: Compiled, client: Client) -> Graph:
        """The graph with its constant texts in the tokens of `client`."""
        graph = compiled.graph
        assert graph is not None
        if BY_ENGINE not in graph.passes:
            return graph
        with self._lock:
            graphs = self._bound.setdefault(client, {})
            known = graphs.get(id(graph))
            if known is not None and known[0] is graph:
                return known[1]
            made, message = tokenized(graph, client.encode)
            if len(graphs) > MAX_VARIANTS:
                graphs.clear()
            graphs[id(graph)] = (graph, made)
            self._note(compiled, PassReport(BY_ENGINE, message))
            return made

    def _find(
        self,
        arguments: Mapping[str, Any],
        fixed: frozenset[ArgPath],
        options: Any,
        stand_ins: Collection[str],
    ) -> Compiled:
        while True:
            missing = [why for path, why in self._looks.items() if path[0] in stand_ins]
            if missing:
                return Compiled(None, tuple(missing))
            wanted = fixed.union(self._looks)
            key = (shape(arguments, wanted), options)
            known = self._variants.get(key)
            if known is not None and (known.traced is None or known.traced.holds()):
                self._variants.move_to_end(key)
                return known
            if len(self._variants) >= MAX_VARIANTS:
                self._gave_up = LeaveTrace(
                    f"it would need more than {MAX_VARIANTS} graphs: the arguments steer it too "
                    "much", self._start()
                )  # fmt: skip
                self._variants.clear()
                return Compiled(None, (self._gave_up,))
            made, look = self._make(arguments, wanted, options)
            if look is None or look.argument is None or len(self._looks) >= MAX_FIXED:
                self._variants[key] = made
                return made
            self._looks[look.argument] = look

    def _make(
        self, arguments: Mapping[str, Any], fixed: frozenset[ArgPath], options: Any
    ) -> tuple[Compiled, LeaveTrace | None]:
        """A new variant; and where it looks into an argument that has to be part of it."""
        try:
            traced = trace(self._program, arguments, fixed)
        except LeaveTrace as error:
            return Compiled(None, (error,)), error if error.argument is not None else None
        look = next((leave for leave in traced.leaves if leave.argument is not None), None)
        passes, reads_result_only = options
        graph, reports = optimized(traced.graph, passes, reads_result_only=reads_result_only)
        made = Compiled(graph, traced.leaves, tuple(reports), traced, fixed)
        return made, look

    def _note(self, compiled: Compiled, report: PassReport) -> None:
        others = [r for r in compiled.reports if r.name != report.name]
        noted = replace(compiled, reports=(*others, report))
        for key, known in self._variants.items():
            if known is compiled:
                self._variants[key] = noted
        if self._last is compiled:
            self._last = noted

    def _start(self) -> Site:
        code = getattr(self._program.function, "__code__", None)
        return Site(code.co_filename, code.co_firstlineno) if code else Site("<unknown>", 0)
