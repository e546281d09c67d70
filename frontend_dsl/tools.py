"""`@umbel.tool`: a Python function that programs may call, with checked arguments, a time limit and
retries.

Inside a program a tool runs in a worker thread while the program waits and others go on. Declaring
it tells the tracer that it is called once per run, in program order, and not for its text.
"""

import asyncio
import contextvars
import functools
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, get_type_hints, overload

import msgspec

from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.pending import PendingCall, Ticket
from umbel.runtime.errors import DeadlineExceeded, InvalidRequest, UmbelError

if TYPE_CHECKING:
    from umbel.frontend_dsl.branch import Branch
    from umbel.frontend_dsl.driver import Driver
    from umbel.frontend_dsl.execution import Execution

MAX_WORKERS = 64
CURRENT: contextvars.ContextVar["Execution | None"] = contextvars.ContextVar(
    "umbel_execution", default=None
)


class ToolFailed(UmbelError):
    """A tool raised; `__cause__` is what it raised."""

    code = "tool_failed"


class Tool:
    """A function with a contract. Calling it outside a program calls the function, checked."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        timeout_s: float | None = None,
        retries: int = 0,
        pure: bool = False,
    ) -> None:
        if not callable(function):
            raise InvalidRequest(f"@tool takes a function, not {function!r}")
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidRequest(f"timeout_s={timeout_s!r} is not valid: expected more than 0")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise InvalidRequest(f"retries={retries!r} is not valid: expected 0 or more")
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.timeout_s = timeout_s
        self.retries = retries
        self.is_pure = pure
        self.__doc__ = function.__doc__
        self.signature = inspect.signature(function)
        self._hints: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Tool {self.name}{self.signature}>"

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call it. In a program the failure is a `ProgramError` that names the line."""
        execution = CURRENT.get()
        if execution is None:
            return self.invoke(self.bind(args, options))
        call = ToolCall(execution, self, self.bind(args, options), Site.here())
        if not self.is_pure:
            execution.wait_for_turn()
        call.begin()
        execution.wait(call)
        if call.error is not None:
            call.error.was_seen = True
            raise call.error
        return call.result

    @property
    def takes_any_number(self) -> bool:
        """Whether it has *args or **options."""
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return any(p.kind in variable for p in self.signature.parameters.values())

    @property
    def result_type(self) -> Any:
        return self._types().get("return", Any)

    def bind(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, converted to their annotations; text becomes numbers where the
        annotation wants one. Raises `InvalidRequest`.
        """
        try:
            bound = self.signature.bind(*args, **options)
        except TypeError as error:
            raise InvalidRequest(
                f"tool {self.name!r}: {error}; it is {self.name}{self.signature}"
            ) from error
        return {name: self._converted(name, value) for name, value in bound.arguments.items()}

    def invoke(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function with bound arguments, up to `retries` more times when it raises. The
        error of the last time has those before as notes.
        """
        reasons: list[str] = []
        while True:
            try:
                return self._once(arguments)
            except Exception as error:
                if len(reasons) == self.retries:
                    for number, reason in enumerate(reasons, 1):
                        error.add_note(f"attempt {number}: {reason}")
                    raise
                reasons.append(f"{type(error).__name__}: {error}")

    def _once(self, arguments: Mapping[str, Any]) -> Any:
        args, options = self._split(arguments)
        if not inspect.iscoroutinefunction(self.function):
            return self.function(*args, **options)
        return asyncio.run(asyncio.wait_for(self.function(*args, **options), self.timeout_s))

    def _split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = inspect.BoundArguments(self.signature, OrderedDict(arguments))
        return bound.args, bound.kwargs

    def _converted(self, name: str, value: Any) -> Any:
        hint = self._types().get(name, Any)
        kind = self.signature.parameters[name].kind
        if hint is Any or kind in (kind.VAR_POSITIONAL, kind.VAR_KEYWORD):
            return value
        try:
            return msgspec.convert(value, hint, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"tool {self.name!r}: {name}={value!r} is not valid: {error}", param=name
            ) from error

    def _types(self) -> dict[str, Any]:
        if self._hints is None:  # late: annotations may name what is defined further down
            self._hints = get_type_hints(self.function)
        return self._hints


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, timeout_s: float | None = None, retries: int = 0, pure: bool = False
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    timeout_s: float | None = None,
    retries: int = 0,
    pure: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a sync or async function. `pure`: it has no effects, so a call whose result
    nobody reads may be left out, and calls need not keep their order.
    """
    make = functools.partial(Tool, timeout_s=timeout_s, retries=retries, pure=pure)
    return make(function) if function is not None else make


@dataclass(frozen=True, slots=True)
class ToolDone:
    """The event that ends a tool call well."""

    result: Any


class ToolCall(PendingCall):
    """One call of a tool by a run; `result` is there when it is set without an error."""

    kind = "tool"

    def __init__(
        self, execution: "Execution", tool: Tool, arguments: dict[str, Any], site: Site
    ) -> None:
        super().__init__(execution.root, None, site, f"{tool.name}(...)")
        self.result: Any = None
        self._tool = tool
        self._arguments = arguments

    def begin(self) -> None:
        """Start it, or take over what an earlier attempt of the run has done already."""
        execution = self.branch.execution
        recorded = execution.note_tool(self)
        if recorded is None:
            execution.driver.enqueue(self)
        elif recorded.error is not None:
            self.refuse(recorded.error.cause)
        else:
            self.result, self.value = recorded.result, recorded.value
            self.set()

    def submit(self, driver: "Driver") -> None:
        ticket = driver.issue(self, None)
        self._tickets.append(ticket)
        context = contextvars.copy_context()
        context.run(CURRENT.set, None)  # a tool that runs a program runs it by itself
        work = functools.partial(_work, self._tool, self._arguments, ticket)
        _WORKERS.submit(functools.partial(context.run, work))
        limit_s = self._tool.timeout_s
        if limit_s is not None:
            timer = threading.Timer(limit_s, ticket, [_too_long(self._tool)])
            timer.daemon = True
            timer.start()

    def on_event(self, ticket: Ticket, event: Any) -> None:
        assert isinstance(event, ToolDone)
        self.branch.execution.driver.settle(ticket)
        self._tickets.clear()
        self.result, self.value = event.result, str(event.result)
        self.set()

    def refuse(self, cause: BaseException) -> None:
        execution = self.branch.execution
        self.fail(self.branch, execution.failure(cause, "root", str(self), self.site))

    def fail(self, branch: "Branch", error: Any) -> None:
        self._drop_tickets()
        self.error = error
        self.set()


def _work(tool: Tool, arguments: Mapping[str, Any], ticket: Ticket) -> None:
    try:
        result = tool.invoke(arguments)
    except TimeoutError:
        ticket(_too_long(tool))
    except BaseException as error:
        before = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
        failure = ToolFailed(f"tool {tool.name!r} raised {type(error).__name__}: {error}{before}")
        failure.__cause__ = error
        ticket(failure)
    else:
        ticket(ToolDone(result))


def _too_long(tool: Tool) -> DeadlineExceeded:
    return DeadlineExceeded(f"tool {tool.name!r} took longer than its {tool.timeout_s} s")


class _Workers:
    """Threads that are made when there is none to spare, and never keep the process from ending:
    a tool that is past its time limit may still be running.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._num_threads = 0

    def submit(self, work: Callable[[], None]) -> None:
        self._work.put(work)
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if self._num_threads >= MAX_WORKERS:
                return
            self._num_threads += 1
            name = f"umbel-tool-{self._num_threads}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._work.get()()
            self._idle.release()


_WORKERS = _Workers()
