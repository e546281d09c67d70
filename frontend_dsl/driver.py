"""Moves programs and branches on: resumes programs, submits what became ready, hands out the
engine's events.

Everything here happens on the caller's thread. Engine events arrive through an inbox; a program
that reads a value that is not there yet is a suspended greenlet. Nothing in this file knows how the
inbox waits.
"""

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol

from umbel.frontend_dsl.keeping import Keeper
from umbel.frontend_dsl.pending import EngineEvent, PendingCall, Ticket
from umbel.runtime.errors import EngineError, InvalidRequest, UmbelError
from umbel.runtime.outputs import Chunk

if TYPE_CHECKING:
    from umbel.frontend_dsl.client import Client
    from umbel.frontend_dsl.execution import Execution

Delivery = tuple[Ticket, EngineEvent]


class Advancing(Protocol):
    """A branch, or a lane of a graph."""

    def advance(self) -> None: ...


_ENCODED_TEXTS = 1024  # texts kept: the instances of a batch repeat their constant parts


class Driver:
    """One per `run`, `run_batch` or `stream`; `post` takes deliveries from the engine's thread.
    `is_batch`: the executions are instances of one program, whose prefixes are worth keeping.
    """

    def __init__(
        self, client: "Client", post: Callable[[Delivery], None], *, is_batch: bool = False
    ) -> None:
        self.client = client
        self.is_closed = False
        self.keeper = Keeper(client, is_batch=is_batch)
        self.encode = lru_cache(_ENCODED_TEXTS)(self._encode)
        self._post = post
        self._thread_id = threading.get_ident()
        self._live: dict[Execution, None] = {}
        self._runnable: deque[Execution] = deque()
        self._branches: deque[Advancing] = deque()
        self._ready: list[PendingCall] = []
        self._num_open_tickets = 0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []  # a heap, by time
        self._timer_ids = itertools.count()

    def start(self, execution: "Execution") -> None:
        """Take on a program; it begins with the next `work()`."""
        self._live[execution] = None
        self._runnable.append(execution)
        if execution.limits.deadline_s is not None:
            self.after(execution.limits.deadline_s, partial(self._expire, execution))

    def work(self) -> None:
        """Do everything that needs no further event. What became ready together is submitted
        together.
        """
        self.require_thread()
        self._run_timers()
        while True:
            if self._branches:
                self._branches.popleft().advance()
            elif self._runnable:
                self._resume(self._runnable.popleft())
            elif self._ready:
                self._submit_ready()
            else:
                break
        self.keeper.settle()

    def feed(self, deliveries: Iterable[Delivery]) -> None:
        """Hand events to their calls; those nobody waits for any more are dropped."""
        for ticket, event in deliveries:
            if ticket.is_settled:
                continue
            error = event.error if isinstance(event, Chunk) else event
            if isinstance(error, UmbelError):
                self.settle(ticket)
                ticket.call.refuse(error)
            else:
                ticket.call.on_event(ticket, event)

    def require_progress(self) -> None:
        """Waiting now would be for ever unless the engine still owes an event."""
        if self._num_open_tickets == 0 and not self._timers:
            names = ", ".join(execution.name for execution in self._live)
            raise EngineError(
                f"nothing is outstanding but {names or 'the session'} still waits: "
                "this is a fault in umbel"
            )

    def close(self, error: BaseException) -> None:
        """Cancel all that is outstanding and end all programs, because of `error`. Idempotent."""
        self.is_closed = True
        for execution in list(self._live):
            execution.abandon(error)
        self._live.clear()
        self.keeper.close()

    # Called by branches, calls and executions.

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do `action` in `delay_s`, in the driver's thread. It has to see for itself whether it is
        still wanted.
        """
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._timer_ids), action))

    def seconds_to_timer(self) -> float | None:
        """How long to wait for the engine at most; None: as long as it takes."""
        return max(self._timers[0][0] - time.monotonic(), 0.0) if self._timers else None

    def wake(self, execution: "Execution") -> None:
        self._runnable.append(execution)

    def advance_later(self, branch: Advancing) -> None:
        self._branches.append(branch)

    def enqueue(self, call: PendingCall) -> None:
        self._ready.append(call)

    def issue(self, call: PendingCall, key: object) -> Ticket:
        self._num_open_tickets += 1
        return Ticket(call, key, self._post)

    def settle(self, ticket: Ticket) -> None:
        assert not ticket.is_settled
        ticket.is_settled = True
        self._num_open_tickets -= 1

    def require_thread(self) -> None:
        if threading.get_ident() != self._thread_id:
            raise InvalidRequest(
                "a program and its stream belong to the thread that started them; "
                "this is another one. Use the async faces (arun, astream) to move between threads"
            )

    @property
    def is_own_thread(self) -> bool:
        return threading.get_ident() == self._thread_id

    def _encode(self, text: str, special: bool) -> tuple[int, ...]:
        return tuple(self.client.encode(text, special=special))

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def _expire(self, execution: "Execution") -> None:
        execution.expire()
        self._live.pop(execution, None)

    def _resume(self, execution: "Execution") -> None:
        execution.resume()
        if execution.is_over:
            self._live.pop(execution, None)

    def _submit_ready(self) -> None:
        calls = [call for call in self._ready if not call.is_set]  # set: given up meanwhile
        self._ready = []
        calls.sort(key=lambda call: -call.rank)  # stable: siblings stay together
        failed: dict[PendingCall, Exception] = {}
        try:
            with self.client.hold():
                for call in calls:
                    try:
                        call.submit(self)
                    except Exception as error:  # whatever it is, it belongs to this call alone
                        failed[call] = error
        except UmbelError as error:  # the end of `hold` was refused: none of them has begun
            failed = {call: failed.get(call, error) for call in calls}
        for call, cause in failed.items():
            call.refuse(cause)
