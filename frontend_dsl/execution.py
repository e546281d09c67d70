"""One execution of a program: its branches, its greenlet, and how it ends."""

import contextvars
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]  # ships none

from umbel.frontend_dsl.branch import Branch, Signal, Waiter, with_descendants
from umbel.frontend_dsl.errors import ProgramError, Site
from umbel.frontend_dsl.events import Event, TextDelta, VariableDone, VariableFailed
from umbel.frontend_dsl.fibers import Fiber
from umbel.frontend_dsl.operations import Mark, Race
from umbel.frontend_dsl.tools import CURRENT, ToolCall
from umbel.runtime.errors import DeadlineExceeded, InvalidRequest, RequestCancelled

if TYPE_CHECKING:
    from umbel.frontend_dsl.client import Client
    from umbel.frontend_dsl.driver import Driver
    from umbel.frontend_dsl.pending import PendingCall


@dataclass(frozen=True, slots=True)
class RunLimits:
    """`deadline_s`: how long a run may take. `retries`: how often a call that fails for a reason
    that may pass (its error's class is `retryable`) is sent again.
    """

    deadline_s: float | None = None
    retries: int = 0

    def __post_init__(self) -> None:
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise InvalidRequest(
                f"deadline_s={self.deadline_s!r} is not valid: expected more than 0 seconds",
                param="deadline_s",
            )
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise InvalidRequest(
                f"retries={self.retries!r} is not valid: expected 0 or more", param="retries"
            )


@dataclass(slots=True)
class _Shown:
    """What a reader of the events knows of a branch: an attempt that starts over repeats it."""

    num_characters: int = 0  # of the program's own text
    num_calls: int = 0  # that ended


class Execution:
    """Runs `body` in a greenlet; everything it appended is settled when `is_over`.

    `error` is the failure of the whole; `fatal` something that is no `Exception`
    (KeyboardInterrupt) and must go on to the caller.
    """

    def __init__(
        self,
        name: str,
        file: str,
        body: Callable[["Execution"], object],
        driver: "Driver | None",
        *,
        defaults: Mapping[str, Any],
        keep_events: bool = False,
        limits: "RunLimits | None" = None,
    ) -> None:
        self.name = name
        self.limits = limits or RunLimits()
        self.defaults = defaults
        self.is_over = False
        self.error: ProgramError | None = None
        self.fatal: BaseException | None = None
        self.result: object = None
        # Set by who knows the rest of the program: whether calls may still come on a branch.
        self.may_go_on: Callable[[Branch], bool] | None = None
        self.branches: list[Branch] = []
        self.root = self.new_branch(None, "root")
        self._file = file
        self._body = body
        self._driver = driver
        self._events: list[Event] | None = [] if keep_events else None
        self._shown: dict[str, _Shown] = {}  # per branch, in this attempt
        self._shown_before: dict[str, _Shown] = {}  # in an earlier one
        self._failures: list[ProgramError] = []
        self._abandoned_by: ProgramError | None = None
        self._tool_calls: list[ToolCall] = []
        self._recorded: dict[tuple[str, int], PendingCall] = {}  # of an earlier attempt
        self._recorded_tools: list[ToolCall] = []
        self.fibers: dict[greenlet, Fiber] = {}  # bodies of maps that have not ended
        self._greenlet = greenlet(self._run)
        # A new greenlet has an empty context; the program must see the caller's context variables.
        self._greenlet.gr_context = contextvars.copy_context()

    @classmethod
    def ended(cls, name: str) -> "Execution":
        """One that ran elsewhere and is over; the caller fills its branches."""
        execution = cls(name, "", lambda execution: None, None, defaults={})
        execution.is_over = True
        return execution

    @property
    def driver(self) -> "Driver":
        assert self._driver is not None, "the execution is over"
        return self._driver

    @property
    def client(self) -> "Client":
        return self.driver.client

    # For states: what the program does.

    def new_branch(self, parent: Branch | None, path: str) -> Branch:
        variables = dict(parent.variables) if parent is not None else {}
        branch = Branch(self, parent, path, variables, is_started=parent is None)
        if parent is not None:
            branch.role = parent.role
            branch.role_is_inherited = parent.role is not None
            parent.children.append(branch)
        self.branches.append(branch)
        return branch

    def require_open(self, branch: Branch | None = None) -> None:
        """Refuse to append: the execution is over, this is another thread, or `branch` is not that
        of the map's body which appends.
        """
        if self._abandoned_by is not None:
            raise self._abandoned_by
        if self.is_over:
            raise InvalidRequest(
                f"the run of program {self.name!r} is over; "
                "its state can be read but not appended to"
            )
        self.driver.require_thread()
        fiber = self.fibers.get(getcurrent())
        if fiber is not None and branch is not None:
            fiber.require_own(branch)

    def wait_for_turn(self) -> None:
        """Wait until what the program has before this place cannot fail any more: only the bodies
        of a map run side by side.
        """
        fiber = self.fibers.get(getcurrent())
        if fiber is not None:
            fiber.wait_for_turn()

    def wait(self, signal: Signal) -> None:
        """Suspend the program, or the body of a map, until `signal` is set."""
        while not signal.is_set:
            self.require_open()
            current = getcurrent()
            waiter: Waiter | None = self.fibers.get(current)
            if current is self._greenlet:
                waiter = self
            if waiter is None:
                raise InvalidRequest(
                    f"this value of program {self.name!r} is not there yet, "
                    "and only the program itself can wait"
                )
            signal.waiting.append(waiter)
            assert current.parent is not None
            current.parent.switch()

    def settle(self, branch: Branch) -> None:
        """Wait until everything appended to `branch` so far is done."""
        if not self.is_over:
            self.require_open()
            mark = Mark(Site.here())
            branch.add(mark)
            self.wait(mark.reached)

    def settle_first(self, branches: Sequence[Branch], count: int) -> list[Branch]:
        """Wait until `count` of `branches` are done without an error, or all have ended; cancel the
        others. The first ones, in the order of `branches`.
        """
        self.require_open()
        race = Race(branches, count, Site.here())
        self.wait(race)
        cause = RequestCancelled(f"{len(race.winners)} other branches were done first")
        for branch in branches:
            if branch not in race.winners:
                error = ProgramError(
                    cause,
                    program=self.name,
                    branch=branch.path,
                    call="join(first=...)",
                    site=race.site,
                )
                error.was_seen = True  # it was asked for
                for below in with_descendants(branch):
                    below.abort(error)
        return race.winners

    def start_over(self) -> None:
        """Forget what was appended, but not what the calls gave: the program appends the same again
        and goes on from where the attempt had come. Waits for what is outstanding.
        """
        for branch in list(self.branches):
            self.settle(branch)
        for tool_call in self._tool_calls:
            self.wait(tool_call)
        for branch in self.branches:
            calls = {(branch.path, idx): call for idx, call in enumerate(branch.calls)}
            self._recorded.update(calls)
        self._recorded_tools, self._tool_calls = self._tool_calls, []
        self._shown_before, self._shown = self._shown, {}
        self._failures.clear()
        self.branches = [self.root]
        self.root.start_over()

    # For branches and calls.

    def recorded(self, branch: str, index: int) -> "PendingCall | None":
        return self._recorded.get((branch, index))

    def note_tool(self, call: ToolCall) -> ToolCall | None:
        """Take on a tool call; what it gave in an earlier attempt, if it was made there."""
        index = len(self._tool_calls)
        self._tool_calls.append(call)
        return self._recorded_tools[index] if index < len(self._recorded_tools) else None

    def failure(
        self, cause: BaseException, branch: str, call: str | None, site: Site | None
    ) -> ProgramError:
        """The error of a call that failed; raised at the end if the program never meets it."""
        error = ProgramError(cause, program=self.name, branch=branch, call=call, site=site)
        self._failures.append(error)
        return error

    @property
    def is_streaming(self) -> bool:
        return self._events is not None

    def wake(self) -> None:
        if not self.is_over:
            self.driver.wake(self)

    def emit(self, event: Event) -> None:
        if self._events is not None:
            self._events.append(event)

    def emit_text(self, branch: str, text: str) -> None:
        """The program's own text was appended."""
        if self._events is None:
            return
        shown = self._shown.setdefault(branch, _Shown())
        before = self._shown_before.get(branch, _Shown()).num_characters
        unseen = text[max(before - shown.num_characters, 0) :]
        shown.num_characters += len(text)
        if unseen:
            self._events.append(TextDelta(branch, None, unseen))

    def emit_end(self, event: VariableDone | VariableFailed) -> None:
        """A call ended."""
        if self._events is None:
            return
        shown = self._shown.setdefault(event.branch, _Shown())
        shown.num_calls += 1
        if shown.num_calls > self._shown_before.get(event.branch, _Shown()).num_calls:
            self._events.append(event)

    # For the driver and its session.

    def take_events(self) -> list[Event]:
        events = self._events or []
        if events:
            self._events = []
        return events

    def resume(self) -> None:
        """Run the program until it waits or ends."""
        if self.is_over:
            return
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()

    def abandon(self, cause: BaseException) -> None:
        """End it from outside: cancel its calls, unwind the program."""
        if self.is_over:
            return
        self.error = self._wrap(cause)
        self._abandoned_by = self.error
        self._abort(self.error)
        if self.driver.is_own_thread:
            for fiber in list(self.fibers.values()):
                fiber.stop()
        if self._greenlet and self.driver.is_own_thread:
            self._greenlet.parent = getcurrent()
            self._greenlet.throw(GreenletExit)
        self._end()

    def expire(self) -> None:
        """Its deadline has come: end it with an error that names what it was waiting for."""
        if self.is_over:
            return
        calls = [call for branch in self.branches for call in branch.calls]
        waiting = [call for call in (*calls, *self._tool_calls) if not call.is_set]
        cause = DeadlineExceeded(
            f"the run took longer than its deadline_s={self.limits.deadline_s:g}; "
            f"{len(waiting)} calls were not done"
        )
        first = next(iter(waiting), None)
        self.abandon(
            ProgramError(
                cause,
                program=self.name,
                branch=first.branch.path if first is not None else "root",
                call=str(first) if first is not None else None,
                site=first.site if first is not None else None,
            )
        )

    def _run(self) -> None:
        CURRENT.set(self)  # the greenlet has a context of its own
        try:
            self.result = self._body(self)
            for branch in list(self.branches):
                self.settle(branch)
            self._raise_unseen()
        except GreenletExit:
            pass  # thrown by `abandon`, which has noted the reason
        except Exception as error:
            self.error = self.error or self._wrap(error)
        except BaseException as error:
            self.fatal = error
            self.error = self._wrap(error)
        if not self.is_over and self._abandoned_by is None:
            if self.error is not None:
                self._abort(self.error)
            self._end()

    def _raise_unseen(self) -> None:
        for error in self._failures:
            if not error.was_seen:
                raise error

    def _wrap(self, error: BaseException) -> ProgramError:
        if isinstance(error, ProgramError):
            return error
        site = Site.of_error(error, self._file)
        return ProgramError(error, program=self.name, branch="root", call=None, site=site)

    def _abort(self, error: ProgramError) -> None:
        for branch in self.branches:
            branch.abort(error)
        for call in self._tool_calls:
            if not call.is_set:
                call.fail(call.branch, error)

    def _end(self) -> None:
        self.is_over = True
        self.driver.keeper.forget(self)
        self._driver = None  # a state that is kept must not keep the engine
