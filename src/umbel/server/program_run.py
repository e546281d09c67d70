"""One run of a program's graph, in a thread of its own, and its events for the loop.

The thread tokenizes, renders templates and moves branches on; it waits in its inbox, where the
engine's thread leaves what came. Text that nobody took yet is joined, so that a client that reads
slowly costs no more memory than its output.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from umbel.frontend_dsl.client import Client
from umbel.frontend_dsl.driver import Delivery, Driver
from umbel.frontend_dsl.events import Event, TextDelta, VariableDone, VariableFailed
from umbel.frontend_dsl.execution import Execution
from umbel.frontend_dsl.graph_program import GraphProgram
from umbel.frontend_dsl.record import sum_usage
from umbel.frontend_dsl.report_wire import (
    BranchStarted,
    FailureReport,
    RunDone,
    RunEvent,
    RunFailed,
    TextAppended,
    VariableSet,
    call_of,
    failure_of,
    report_of,
)
from umbel.frontend_dsl.session import Inbox, drive, run_one
from umbel.runtime.errors import EngineError, UmbelError
from umbel.server.trace_client import CancellableClient

logger = logging.getLogger(__name__)


class ProgramRun:
    """Start it, then take its events on the loop; `stop` it in any case."""

    def __init__(
        self,
        program: GraphProgram,
        arguments: Mapping[str, Any],
        client: Client,
        *,
        threads: Executor,
    ) -> None:
        self._program = program
        self._arguments = arguments
        self._client = CancellableClient(client)
        self._threads = threads
        self._inbox = _StoppableInbox()
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._num_branches = 0  # that were told; the run's thread alone uses it
        self._lock = threading.Lock()  # guards all below
        self._unread: list[RunEvent] = []
        self._open_texts: dict[tuple[str, str | None], TextAppended] = {}  # unread, may grow
        self._failure: UmbelError | None = None

    async def start(self) -> None:
        """As all calls start (`service.Running`); here there is nothing to wait for."""
        self._threads.submit(self._work)

    async def events(self) -> AsyncIterator[list[RunEvent]]:
        """What came since the last look, until the last event. Raises the error of `fail`."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            with self._lock:
                if self._failure is not None:
                    raise self._failure
                events, self._unread = self._unread, []
                self._open_texts.clear()
            if events:
                yield events
                if is_last(events[-1]):
                    return

    def fail(self, error: UmbelError) -> None:
        """End the run with an error: a deadline, a client that left. On the loop."""
        with self._lock:
            self._failure = self._failure or error
        self.stop()
        self._ready.set()

    def stop(self) -> None:
        """Cancel all its calls at once, and end its thread soon. Idempotent; any thread."""
        self._client.cancel_all()
        self._inbox.stop()

    # -- in the run's thread

    def _work(self) -> None:
        try:
            driver = Driver(self._client, self._inbox.post)
            execution = self._program.execution(driver, self._arguments, keep_events=True)
            for event in drive(driver, self._inbox, run_one(driver, execution)):
                self._tell(execution, _as_json(event))
            self._tell(execution, _ending(execution))
        except _Stopped:
            pass  # who stopped it knows why
        except Exception as exc:  # a bug: the client must hear of it
            logger.exception("the run of program %r failed", self._program.name)
            error = EngineError(f"the run failed: {type(exc).__name__}")
            failure = FailureReport(message=str(error), code=error.code, branch="root")
            self._put([RunFailed(error=failure, is_last=True)])

    def _tell(self, execution: Execution, event: RunEvent | None) -> None:
        new = execution.branches[self._num_branches :]
        self._num_branches += len(new)
        events: list[RunEvent] = [
            BranchStarted(
                branch=branch.path, parent=None if branch.parent is None else branch.parent.path
            )
            for branch in new
        ]
        self._put(events if event is None else [*events, event])

    def _put(self, events: list[RunEvent]) -> None:
        with self._lock:
            was_empty = not self._unread
            for event in events:
                self._add(event)
        if was_empty and events:  # otherwise the loop was told already
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._ready.set)

    def _add(self, event: RunEvent) -> None:
        if isinstance(event, TextAppended):
            key = (event.branch, event.variable)
            known = self._open_texts.get(key)
            if known is not None:
                known.text += event.text
                return
            self._end_texts(event.branch)  # texts of one branch keep their order
            self._open_texts[key] = event
        elif isinstance(event, VariableSet):
            self._end_texts(event.branch)
        self._unread.append(event)

    def _end_texts(self, branch: str) -> None:
        for key in [key for key in self._open_texts if key[0] == branch]:
            del self._open_texts[key]


class _Stopped(Exception):
    """The run is not wanted any more."""


class _StoppableInbox(Inbox):
    """An inbox whose reader another thread can stop."""

    def __init__(self) -> None:
        super().__init__()
        self._stopped = threading.Event()

    def stop(self) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._queue.put(None)  # type: ignore[arg-type]  # only to wake the reader

    def take(self, timeout_s: float | None = None) -> list[Delivery]:
        deliveries = super().take(timeout_s)
        if self._stopped.is_set():
            raise _Stopped
        return deliveries


def is_last(event: RunEvent) -> bool:
    return isinstance(event, RunDone) or (isinstance(event, RunFailed) and event.is_last)


def _as_json(event: Event) -> RunEvent | None:
    match event:
        case TextDelta(branch, variable, text):
            return TextAppended(branch=branch, variable=variable, text=text)
        case VariableDone(branch, variable, value, record):
            call = call_of(record)
            return VariableSet(branch=branch, variable=variable, value=value, call=call)
        case VariableFailed(branch, variable, error):
            return RunFailed(error=failure_of(error), branch=branch, variable=variable)
    return None  # the end is told by `_ending`


def _ending(execution: Execution) -> RunEvent:
    if execution.error is not None:
        return RunFailed(error=failure_of(execution.error), is_last=True)
    try:
        report = report_of(execution)
    except UmbelError as error:
        failure = FailureReport(message=str(error), code=error.code, branch="root")
        return RunFailed(error=failure, is_last=True)
    calls = [call for branch in report.branches for call in branch.calls]
    return RunDone(report=report, usage=sum_usage(call.usage for call in calls))
