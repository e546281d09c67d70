"""Graphs that run by themselves: stored, or sent by somebody else."""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from typing import Any

from umbel.frontend_dsl.batch.pipeline import SortKey, prefix_key
from umbel.frontend_dsl.client import Client
from umbel.frontend_dsl.connection import Sendable
from umbel.frontend_dsl.driver import Driver
from umbel.frontend_dsl.errors import ProgramError, Site
from umbel.frontend_dsl.events import Event
from umbel.frontend_dsl.execution import Execution, RunLimits
from umbel.frontend_dsl.faces import Runnable
from umbel.frontend_dsl.graph.nodes import Graph
from umbel.frontend_dsl.graph.serial import content_hash
from umbel.frontend_dsl.graph.values import argument
from umbel.frontend_dsl.graph.verify import require_sound
from umbel.frontend_dsl.lowering import GraphRun
from umbel.frontend_dsl.tools import Tool
from umbel.runtime.errors import InvalidRequest


class GraphProgram(Runnable):
    """A graph with the faces of a program (`run`, `stream`, `run_batch`, ...).

    `tools` are the ones the graph may call. Raises `InvalidRequest` for a graph that cannot run;
    its bounds are those of `graph.serial.check`, which `from_json` has checked, and `max_chars`:
    how much text one run may put together. `deadline_s` and `retries`: see `Program.with_limits`.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        tools: Collection[Tool] = (),
        max_chars: int | None = None,
        deadline_s: float | None = None,
        retries: int = 0,
    ) -> None:
        require_sound(graph)
        self.graph = graph
        self.name = graph.name
        self._max_chars = max_chars
        self._limits = RunLimits(deadline_s, retries)
        self._tools = {tool.name: tool for tool in tools}

    def __repr__(self) -> str:
        return f"<GraphProgram {self.name}({', '.join(self.graph.parameters)})>"

    def execution(
        self, driver: Driver, arguments: Mapping[str, Any], *, keep_events: bool
    ) -> Execution:
        """One execution, not started. Wrong arguments are its failure."""
        graph = self.graph

        def body(execution: Execution) -> object:
            _check_arguments(graph, arguments)
            run = GraphRun(execution, graph, arguments, {}, self._tools, max_chars=self._max_chars)
            run.start()
            execution.wait(run.finished)
            if run.error is not None:
                run.error.was_seen = True
                raise run.error
            if run.left is not None:
                raise self._ended(run)
            return run.result()

        file = graph.files[0] if graph.files else ""
        return Execution(
            self.name, file, body, driver, defaults=graph.defaults, keep_events=keep_events,
            limits=self._limits,
        )  # fmt: skip

    def sendable(self, arguments: Mapping[str, Any]) -> Sendable:
        """The graph as it is."""
        return Sendable(self.graph, arguments, deadline_s=self._limits.deadline_s)

    @property
    def keeps_shared(self) -> bool:
        return "hoist" in self.graph.passes

    @property
    def identity(self) -> str:
        """Name and content hash."""
        return f"{self.name}-{content_hash(self.graph)}"

    def sort_key(self) -> SortKey:
        """By the arguments in the order in which the text has them."""
        return prefix_key(self.graph.order_by or [(name,) for name in self.graph.parameters])

    def _ended(self, run: GraphRun) -> ProgramError:
        left = run.left
        assert left is not None
        files = self.graph.files
        cause = InvalidRequest(
            f"the graph ends here, the rest is only in the program's Python code: {left.reason}"
        )
        site = Site(files[left.file] if left.file < len(files) else self.name, left.line)
        return ProgramError(cause, program=self.name, branch="root", call=None, site=site)


def run_graph(
    graph: Graph, arguments: Mapping[str, Any], engine: Client, *, tools: Collection[Tool] = ()
) -> Iterator[Event]:
    """Run `graph` (from `graph.serial.from_json`, which checks its bounds) and yield what happens:
    `TextDelta`, `VariableDone`, `VariableFailed`, and last `ProgramDone` (its state has `result`)
    or `ProgramFailed`, after which its error is raised.

    Raises `InvalidRequest` at once for a graph that cannot run. Closing the iterator cancels the
    run; it must stay in the thread that began it.
    """
    return GraphProgram(graph, tools=tools).stream(engine, **arguments)


def arun_graph(
    graph: Graph, arguments: Mapping[str, Any], engine: Client, *, tools: Collection[Tool] = ()
) -> AsyncIterator[Event]:
    """`run_graph` for a coroutine: what a server's request handler iterates over."""
    return GraphProgram(graph, tools=tools).astream(engine, **arguments)


def _check_arguments(graph: Graph, arguments: Mapping[str, Any]) -> None:
    wanted, given = set(graph.parameters), set(arguments)
    if wanted != given:
        names = ", ".join(graph.parameters) or "none"
        missing, unknown = sorted(wanted - given), sorted(given - wanted)
        raise InvalidRequest(
            f"arguments of graph {graph.name!r} are {names}; missing: {missing}, unknown: {unknown}"
        )
    for path, text in graph.made_for:
        found = argument(arguments, path)
        if found != text:
            raise InvalidRequest(
                f"the program looks into its argument {path[0]!r}, so this graph was made for "
                f"{text[:40]!r} alone, not {found[:40]!r}; compile it for that: "
                f"compile({path[0]}=...)"
            )
