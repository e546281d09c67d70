"""The state machine of one branch: a queue of operations, each run when the one before is done.

A branch never blocks and owns no thread. Operations that need the engine say so and resume the
branch later.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from umbel.frontend_dsl.errors import ProgramError, Site
from umbel.frontend_dsl.segments import Segment, text_between

if TYPE_CHECKING:
    from umbel.frontend_dsl.execution import Execution
    from umbel.frontend_dsl.pending import PendingCall


class Operation(Protocol):
    """One entry of a branch's queue."""

    site: Site

    def start(self, branch: "Branch") -> bool:
        """Do it; False if it is not done yet and will call `branch.resume()`. May raise."""

    def fail(self, branch: "Branch", error: ProgramError) -> None:
        """The branch failed before or in this operation; called once, instead of finishing."""


class Waiter(Protocol):
    """Who waits for a signal: a suspended program, or a graph's nodes."""

    def wake(self) -> None: ...


class Signal:
    """Something that a program can wait for."""

    __slots__ = ("is_set", "waiting")

    def __init__(self) -> None:
        self.is_set = False
        self.waiting: list[Waiter] = []

    def set(self) -> None:
        self.is_set = True
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            waiter.wake()


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """The message that is being written: its content starts after `start`."""

    role: str
    start: Segment | None


@dataclass(slots=True, eq=False)
class Branch:
    """Tokens and text of one branch, and what is still to be appended to them."""

    execution: "Execution"
    parent: "Branch | None"
    path: str
    variables: dict[str, "PendingCall"]  # by name, the parent's at the fork included
    is_started: bool  # False: the parent has not reached the fork yet
    role: str | None = None  # in program order: what is open where the program stands
    role_is_inherited: bool = False
    end: Segment | None = None  # the rest is set by operations, in queue order
    messages: tuple[tuple[str, str], ...] = ()
    open_message: OpenMessage | None = None
    error: ProgramError | None = None
    children: list["Branch"] = field(default_factory=list)
    num_forks: int = 0
    calls: list["PendingCall"] = field(default_factory=list)
    _queue: deque[Operation] = field(default_factory=deque)
    _current: Operation | None = None

    def add(self, operation: Operation) -> None:
        self._queue.append(operation)
        self.advance()

    def advance(self) -> None:
        """Run queued operations until one has to wait."""
        while self.is_started and self._current is None and self._queue:
            operation = self._queue.popleft()
            if self.error is not None:
                operation.fail(self, self.error)
                continue
            self._current = operation
            try:
                is_done = operation.start(self)
            except Exception as error:  # whatever it is, it belongs to this branch alone
                self.fail_current(error)
                continue
            if is_done:
                self._current = None

    def resume(self) -> None:
        """The current operation is done."""
        self._current = None
        self.advance()

    def fail_current(self, cause: BaseException) -> None:
        """The current operation failed with `cause`: the branch ends here."""
        operation = self._current
        assert operation is not None
        error = self.execution.failure(cause, self.path, str(operation), operation.site)
        self._end_with(error)

    def start_over(self) -> None:
        """Forget everything; nothing may be outstanding. Only for the root."""
        assert not self.is_busy
        assert self.parent is None
        self.variables, self.children, self.calls = {}, [], []
        self.role, self.role_is_inherited, self.num_forks = None, False, 0
        self.end, self.messages, self.open_message, self.error = None, (), None, None

    def abort(self, error: ProgramError) -> None:
        """Give up all that is outstanding; nothing happens if nothing is."""
        if self._current is not None or self._queue:
            self.is_started = True
            self._end_with(error)

    @property
    def is_busy(self) -> bool:
        """Whether something that was appended is still to be done."""
        return self._current is not None or bool(self._queue)

    def extend(self, token_ids: list[int] | tuple[int, ...], text: str) -> None:
        self.end = Segment(self.end, token_ids, text)

    def text(self) -> str:
        return text_between(None, self.end)

    def all_messages(self) -> list[dict[str, str]]:
        """Complete messages, then the open one with its content so far."""
        messages = [{"role": role, "content": content} for role, content in self.messages]
        if self.open_message is not None:
            content = text_between(self.open_message.start, self.end)
            messages.append({"role": self.open_message.role, "content": content})
        return messages

    def _end_with(self, error: ProgramError) -> None:
        self.error = error
        operation, self._current = self._current, None
        if operation is not None:
            operation.fail(self, error)
        self.advance()


def with_descendants(branch: Branch) -> list[Branch]:
    """`branch` and all that was forked from it."""
    found = [branch]
    for one in found:
        found += one.children
    return found
