"""`@umbel.program`: a Python function that appends to a state, and the faces to run it."""

import hashlib
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Unpack, overload

from umbel.frontend_dsl.batch.pipeline import SortKey, prefix_key
from umbel.frontend_dsl.calls import SamplingOptions, check_options
from umbel.frontend_dsl.compiling import Compiled, Compiler
from umbel.frontend_dsl.connection import Sendable
from umbel.frontend_dsl.driver import Driver
from umbel.frontend_dsl.execution import Execution, RunLimits
from umbel.frontend_dsl.faces import Runnable
from umbel.frontend_dsl.graph.nodes import Graph
from umbel.frontend_dsl.lowering import GraphRun
from umbel.frontend_dsl.passes.pipeline import NAMES as PASS_NAMES
from umbel.frontend_dsl.state import State
from umbel.frontend_dsl.tracing.arguments import string_paths
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams


class Program(Runnable):
    """A function `f(s, **arguments)` that can be run on an engine.

    Calling it with a state, `other(s, x=...)`, runs it inline in that branch. `run` and its
    relatives take the engine and the function's own arguments, nothing else; sampling defaults are
    set by `with_defaults`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        defaults: Mapping[str, Any],
        *,
        is_eager: bool = False,
        passes: Collection[str] = PASS_NAMES,
        limits: RunLimits | None = None,
    ) -> None:
        if not callable(function):
            raise InvalidRequest(f"@program takes a function, not {function!r}")
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise InvalidRequest(
                f"program {function.__name__!r} is an async or generator function; "
                "write an ordinary one (reading a value suspends it without blocking) "
                "and run it by arun or astream"
            )
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.defaults = dict(defaults)
        self.is_eager = is_eager
        self.passes = tuple(passes)
        self.limits = limits or RunLimits()
        self._compiler = Compiler(self)
        self.__doc__ = function.__doc__
        self._signature = inspect.signature(function)
        if not self._signature.parameters:
            raise InvalidRequest(
                f"program {self.name!r} must take the state as its first parameter"
            )

    def __call__(self, state: State, /, *args: Any, **arguments: Any) -> Any:
        """Run inline on `state`: what a nested call of a program means."""
        if not isinstance(state, State):
            raise InvalidRequest(
                f"{self.name}(...) runs inside another program and takes its state first, "
                f"not {state!r}; to start it use {self.name}.run(engine, ...)"
            )
        return self.function(state, *args, **arguments)

    def __repr__(self) -> str:
        return f"<Program {self.name}{self._signature}>"

    def with_defaults(self, **options: Unpack[SamplingOptions]) -> "Program":
        """The same program with other sampling defaults, for instance
        `judge.with_defaults(temperature=0)`.
        """
        defaults = {**self.defaults, **_checked(options)}
        return self._like(defaults=defaults)

    def eager(self) -> "Program":
        """The same program, never compiled: every run calls the function on the engine."""
        return self._like(is_eager=True)

    def with_passes(self, passes: Collection[str]) -> "Program":
        """The same program, compiled with these passes only: see `passes.pipeline.NAMES`."""
        return self._like(passes=tuple(passes), is_eager=False)

    def with_limits(self, *, deadline_s: float | None = None, retries: int = 0) -> "Program":
        """The same program for runs that take `deadline_s` seconds at most (what is under way then
        is cancelled, and the `ProgramError` names it), and that send a call again, `retries` times,
        when it failed for a reason that may pass (a full queue).

        The compiled graphs are shared with this program.
        """
        other = self._like(limits=RunLimits(deadline_s, retries))
        other._compiler = self._compiler
        return other

    def _like(self, **changes: Any) -> "Program":
        same = {"defaults": self.defaults, "is_eager": self.is_eager, "passes": self.passes,
                "limits": self.limits}  # fmt: skip
        return Program(self.function, **{**same, **changes})

    def compile(
        self,
        *,
        passes: Collection[str] | None = None,
        reads_result_only: bool = False,
        **arguments: Any,
    ) -> Compiled:
        """The program as a graph. `arguments` become part of it; strings that are not given stay
        open. What has no graph says why (`reasons`), and runs eagerly with the same meaning.

        A run does this by itself when it first meets arguments of a new shape, and keeps it.
        Raises `InvalidRequest` for a parameter that is neither given, nor a string, nor has a
        default.
        """
        open_, fixed, stand_ins = {}, [], []
        for name, parameter in list(self._signature.parameters.items())[1:]:
            if name in arguments:
                open_[name] = arguments[name]
                fixed += string_paths(arguments[name], (name,))
            elif parameter.annotation in (str, "str", parameter.empty):
                if parameter.default is parameter.empty:
                    open_[name] = ""
                    stand_ins.append(name)
            elif parameter.default is parameter.empty:
                raise InvalidRequest(
                    f"compile() needs {name}=...: it is no string, so the graph depends on it"
                )
        unknown = sorted(arguments.keys() - open_.keys())
        if unknown:
            raise InvalidRequest(f"{self.name}{self._signature} has no parameter {unknown[0]!r}")
        return self._compiler.compiled(
            open_,
            passes=self.passes if passes is None else passes,
            fixed=fixed,
            reads_result_only=reads_result_only,
            stand_ins=stand_ins,
        )

    @property
    def graph(self) -> Graph:
        """`compile().graph`. Raises `InvalidRequest` with the reason if there is none."""
        compiled = self.compile()
        if compiled.graph is None:
            raise InvalidRequest(f"program {self.name!r} has no graph: it {compiled}")
        return compiled.graph

    def explain(self) -> str:
        """What was compiled, what each pass did, and what runs in Python: why, file and line."""
        if self.is_eager:
            return f"{self.name} runs eagerly: eager() was asked for"
        return self._compiler.explain()

    @property
    def keeps_shared(self) -> bool:
        return "hoist" in self.passes

    @property
    def identity(self) -> str:
        """Name, and a digest of the function's source and the defaults."""
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError):  # no source: the name has to do
            source = ""
        content = f"{source}{sorted(self.defaults.items())}".encode()
        return f"{self.name}-{hashlib.blake2b(content, digest_size=8).hexdigest()}"

    def sort_key(self) -> SortKey:
        """By the arguments in the order in which the text has them, as far as that is known."""
        paths: tuple[tuple[str | int, ...], ...] = tuple(
            (name,) for name in list(self._signature.parameters)[1:]
        )
        if not self.is_eager:
            with suppress(InvalidRequest):  # a parameter that is no string: no graph without items
                compiled = self.compile()
                if compiled.graph is not None and compiled.graph.order_by:
                    known = compiled.graph.order_by
                    paths = (*known, *(path for path in paths if path not in known))
        return prefix_key(paths)

    def execution(
        self, driver: Driver, arguments: Mapping[str, Any], *, keep_events: bool
    ) -> Execution:
        """One execution, not started. Wrong arguments are its failure, so that a batch item fails
        alone.
        """

        def body(execution: Execution) -> object:
            try:
                self._signature.bind(None, **arguments)
            except TypeError as error:
                raise InvalidRequest(
                    f"{error}; the program is {self.name}{self._signature} "
                    "(the state is given by the run)"
                ) from error
            compiled = (
                None if self.is_eager else self._compiler.compiled(arguments, passes=self.passes)
            )
            if compiled is not None and compiled.traced is not None:
                return self._run_compiled(execution, compiled, arguments)
            return self.function(State(execution.root), **arguments)

        code = getattr(inspect.unwrap(self.function), "__code__", None)
        file = code.co_filename if code is not None else ""  # a callable object has no code
        return Execution(
            self.name, file, body, driver, defaults=self.defaults, keep_events=keep_events,
            limits=self.limits,
        )  # fmt: skip

    def sendable(self, arguments: Mapping[str, Any]) -> Sendable:
        """The graph for arguments of this shape. Where a path leaves it for Python, the run ends
        with an error that says so.
        """
        try:
            bound = self._signature.bind(None, **arguments)
        except TypeError as error:
            raise InvalidRequest(f"{error}; the program is {self.name}{self._signature}") from error
        bound.apply_defaults()
        compiled = self._compiler.compiled(arguments, passes=self.passes)
        if compiled.graph is None or compiled.traced is None:
            raise InvalidRequest(
                f"program {self.name!r} cannot be sent, it has no graph: it {compiled}"
                "run it on an Engine, or call by call on umbel.Remote"
            )
        graph = compiled.graph
        given = {name: bound.arguments[name] for name in graph.parameters}
        if self.limits.retries:
            raise InvalidRequest(
                "retries are for runs on an Engine or umbel.Remote; on an Umbel server a program "
                "is one request: run it again when it was refused",
                param="retries",
            )
        return Sendable(graph, given, compiled.traced.types, self.limits.deadline_s)

    def _run_compiled(
        self, execution: Execution, compiled: Compiled, arguments: Mapping[str, Any]
    ) -> object:
        traced = compiled.traced
        assert traced is not None
        graph = self._compiler.bound(compiled, execution.client)
        run = GraphRun(execution, graph, arguments, traced.types, traced.tools)
        run.start()
        execution.wait(run.finished)
        if run.error is not None:
            run.error.was_seen = True
            raise run.error
        if run.left is None:
            return run.result()
        execution.start_over()
        return self.function(State(execution.root), **arguments)


@overload
def program(function: Callable[..., Any], /) -> Program: ...
@overload
def program(**defaults: Unpack[SamplingOptions]) -> Callable[[Callable[..., Any]], Program]: ...
def program(
    function: Callable[..., Any] | None = None, /, **defaults: Unpack[SamplingOptions]
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function; `@program(temperature=0)` also sets defaults for its calls of
    `gen`.
    """
    checked = _checked(defaults)
    if function is not None:
        return Program(function, checked)
    return lambda function: Program(function, checked)


def _checked(options: SamplingOptions) -> dict[str, Any]:
    check_options(options)
    SamplingParams(**options)
    return dict(options)
