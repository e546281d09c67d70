"""One program, one shape of arguments, one graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.graph.nodes import Graph
from umbel.frontend_dsl.graph.values import argument
from umbel.frontend_dsl.tools import Tool
from umbel.frontend_dsl.tracing.arguments import ArgPath, is_string_at, symbols
from umbel.frontend_dsl.tracing.explore import Explorer
from umbel.frontend_dsl.tracing.hooks import Hooks
from umbel.frontend_dsl.tracing.leaving import LeaveTrace, NotTraceable
from umbel.frontend_dsl.tracing.path import Finding
from umbel.frontend_dsl.tracing.recorder import Recording
from umbel.frontend_dsl.tracing.snapshot import freeze
from umbel.frontend_dsl.tracing.waits import without_redundant_waits
from umbel.frontend_dsl.tracing.world import Guard


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph with what it needs of this process.

    `types`: Python types given as `json_schema`, by branch and name. `leaves`: where paths go on in
    Python only. The graph holds while all `guards` hold.
    """

    graph: Graph
    types: dict[tuple[str, str], Any]
    tools: dict[str, Tool]
    findings: tuple[Finding, ...]
    leaves: tuple[LeaveTrace, ...]
    guards: tuple[Guard, ...]
    num_runs: int

    def holds(self) -> bool:
        return all(guard.holds() for guard in self.guards)


def trace(program: Any, arguments: Mapping[str, Any], fixed: frozenset[ArgPath]) -> Traced:
    """The graph of `program` (a `Program`) for arguments of this shape.

    Raises `LeaveTrace` if it can be followed on no path at all, and says why.
    """
    function = program.function
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        raise LeaveTrace("it is no plain function", Site("<unknown>", 0))
    code = function.__code__
    start = Site(code.co_filename, code.co_firstlineno)
    guards: dict[tuple[int, str], Guard] = {}

    def run(recording: Recording) -> Any:
        hooks = Hooks(recording, type(program), guards)
        values = symbols(arguments, fixed, recording.path)
        before = freeze(values)
        try:
            return _call(hooks, function, recording, values)
        finally:
            # Also on a path that meets another, which would not make the change. (One that leaves
            # makes it in Python, but then other paths may have seen it.)
            changed = hooks.changed()
            if changed is not None or freeze(values) != before:
                what = changed if changed is not None else "an argument"
                raise NotTraceable(LeaveTrace(f"it changes {what}, which lives outside", start))

    explorer = Explorer(run, program.defaults, start)
    try:
        block = explorer.explore()
    except NotTraceable as error:
        raise error.error from None
    graph = Graph(
        name=program.name,
        parameters=tuple(arguments),
        files=tuple(explorer.files),
        defaults=dict(program.defaults),
        body=without_redundant_waits(block),
        made_for=tuple(
            (path, argument(arguments, path))
            for path in sorted(fixed, key=repr)
            if is_string_at(arguments, path)
        ),
    )
    return Traced(
        graph=graph,
        types=explorer.types,
        tools=explorer.tools,
        findings=tuple(explorer.findings),
        leaves=tuple({(e.site, e.reason): e for e in explorer.leaves}.values()),
        guards=tuple(guards.values()),
        num_runs=explorer.num_runs,
    )


def _call(
    hooks: Hooks, function: FunctionType, recording: Recording, values: dict[str, Any]
) -> Any:
    try:
        return hooks.follow(function, with_points=True)(recording.state("root"), **values)
    except Exception as error:
        site = Site.of_error(error, function.__code__.co_filename)
        reason = f"raises {type(error).__name__}: {error}"
        raise LeaveTrace(reason, site or recording.path.site()) from error
