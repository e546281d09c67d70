"""Calls on their way: what a branch waits for, and how the engine's events end it."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from umbel.frontend_dsl.branch import Branch, Signal
from umbel.frontend_dsl.errors import ProgramError, Site
from umbel.frontend_dsl.events import TextDelta, VariableDone, VariableFailed
from umbel.frontend_dsl.operations import start_sequence
from umbel.frontend_dsl.record import CallRecord
from umbel.runtime.errors import UmbelError
from umbel.runtime.outputs import Chunk

if TYPE_CHECKING:
    from umbel.frontend_dsl.client import CallHandle
    from umbel.frontend_dsl.driver import Driver

_FIRST_DELAY_S, _MAX_DELAY_S = 0.05, 5.0  # before a call is sent again
EngineEvent = Any  # Chunk, Score or UmbelError; of a tool: its ToolDone or UmbelError


class Ticket:
    """One engine call of a pending call; as a listener it hands events to the driver's inbox."""

    __slots__ = ("call", "handle", "is_settled", "key", "post", "wants_pieces")

    def __init__(
        self, call: "PendingCall", key: object, post: "Callable[[tuple[Ticket, EngineEvent]], None]"
    ) -> None:
        self.call = call
        self.wants_pieces = call.branch.execution.is_streaming
        self.key = key
        self.post = post
        self.handle: CallHandle | None = None
        self.is_settled = False  # its last event came, or nobody wants it any more

    def __call__(self, event: EngineEvent) -> None:
        is_piece = isinstance(event, Chunk) and event.completion is None and event.error is None
        # A run that nobody streams would be woken for every token of every branch.
        if self.wants_pieces or not is_piece:
            self.post((self, event))


class PendingCall(Signal):
    """A `gen` or `select` of a branch; set when it has a value or an error."""

    kind = ""

    def __init__(self, branch: Branch, name: str | None, site: Site, description: str) -> None:
        super().__init__()
        self.branch = branch
        self.name = name
        self.site = site
        self.value: str | None = None
        self.error: ProgramError | None = None
        self.record: CallRecord | None = None  # there when the call is set
        self.recorded: PendingCall | None = None  # the same call of an earlier attempt, done
        self.rank = 0
        self.number = 0  # set by the driver's `Keeper`
        self.text_token_ids: tuple[int, ...] = ()
        self.retries: list[str] = []  # why it was sent again, each time
        self._description = description
        self._has_output = False
        self._tickets: list[Ticket] = []

    def __str__(self) -> str:
        return self._description

    def start(self, branch: Branch) -> bool:
        if self.recorded is not None:
            self._repeat(self.recorded)
            return True
        branch.execution.driver.enqueue(self)
        return False

    def submit(self, driver: "Driver") -> None:
        """Submit the engine calls, each through `self._send`. Runs inside the client's `hold()`."""
        raise NotImplementedError

    def on_event(self, ticket: Ticket, event: Any) -> None:
        """One engine event that is not an error."""
        raise NotImplementedError

    def refuse(self, cause: BaseException) -> None:
        """It failed with `cause`: it is sent again if that may pass, or its branch ends."""
        execution = self.branch.execution
        may_pass = isinstance(cause, UmbelError) and cause.retryable and not self._has_output
        if not may_pass or len(self.retries) >= execution.limits.retries:
            self.branch.fail_current(cause)
            return
        self._drop_tickets()
        self.forget()
        delay_s = min(_FIRST_DELAY_S * 2 ** len(self.retries), _MAX_DELAY_S)
        self.retries.append(f"{type(cause).__name__}: {cause}")
        execution.driver.after(delay_s, self._send_again)

    def forget(self) -> None:
        """Drop what an attempt gave so far."""

    def _send_again(self) -> None:
        if not self.is_set:
            self.branch.execution.driver.enqueue(self)

    def fail(self, branch: Branch, error: ProgramError) -> None:
        """End with `error`; whatever still runs in the engine is cancelled."""
        self._drop_tickets()
        self.error = error
        self.record = CallRecord(
            kind=self.kind, name=self.name, branch=branch.path, site=self.site, error=error
        )
        branch.execution.emit_end(VariableFailed(branch.path, self.name, error))
        self.set()

    def _send(
        self, driver: "Driver", key: object, submit: "Callable[[Ticket], CallHandle]"
    ) -> None:
        ticket = driver.issue(self, key)
        self._tickets.append(ticket)
        ticket.handle = submit(ticket)

    def _drop_tickets(self) -> None:
        for ticket in self._tickets:
            if not ticket.is_settled:
                self.branch.execution.driver.settle(ticket)
                if ticket.handle is not None:
                    ticket.handle.cancel()
        self._tickets.clear()

    def _finish(self, record: CallRecord, token_ids: tuple[int, ...]) -> None:
        self._tickets.clear()  # their handles would keep the engine alive
        if self.retries:
            record = replace(record, retries=tuple(self.retries))
        self._end(record, token_ids)
        self.branch.resume()

    def _repeat(self, recorded: "PendingCall") -> None:
        if recorded.error is not None:
            raise recorded.error.cause
        assert recorded.record is not None
        start_sequence(self.branch)
        self._end(recorded.record, recorded.text_token_ids)

    def _end(self, record: CallRecord, token_ids: tuple[int, ...]) -> None:
        assert record.text is not None
        branch = self.branch
        branch.extend(token_ids, record.text)
        self.text_token_ids = token_ids
        self.value = record.text
        self.record = record
        branch.execution.driver.keeper.ended(self)
        branch.execution.emit_end(VariableDone(branch.path, self.name, record.text, record))
        self.set()

    def _emit_text(self, text: str) -> None:
        if text:
            self._has_output = True
            self.branch.execution.emit(TextDelta(self.branch.path, self.name, text))
