"""Runs a program over a stream of items with a journal: bounded memory, resumable, exact.

Items are taken in windows; each window is sorted by the text that comes first in the prompt, so
that instances that share a prefix run next to each other and meet in the cache.
"""

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from umbel.frontend_dsl.batch.costs import CostReport, costs_of
from umbel.frontend_dsl.batch.journal import Header, Journal, Record
from umbel.frontend_dsl.batch.sources import SourceItem
from umbel.frontend_dsl.client import Client
from umbel.frontend_dsl.driver import Driver
from umbel.frontend_dsl.errors import ProgramError
from umbel.frontend_dsl.execution import Execution
from umbel.frontend_dsl.session import Inbox, drive, run_many
from umbel.frontend_dsl.state import State
from umbel.runtime.errors import EngineClosed, InvalidRequest, UmbelError

Item = Mapping[str, Any]
SortKey = Callable[[Item], Any]
MakeExecution = Callable[[Driver, Item], Execution]
_KEY_LEN = 4096  # characters of each argument that are compared


@dataclass(slots=True)
class BatchReport:
    """How a batch stands; items and costs of earlier runs that it goes on from count, too."""

    num_done: int = 0
    num_failed: int = 0
    num_resumed: int = 0  # done before this run
    costs: CostReport = field(default_factory=CostReport)


OnProgress = Callable[[BatchReport], None]


@dataclass(slots=True, eq=False)
class _Job:
    index: int
    item: SourceItem
    attempts: int = 1
    due_s: float = 0.0  # on the monotonic clock: not run again before


class BatchPipeline:
    """One batch. `retries`: how often an item is run again after an error that may pass (those
    whose class is `retryable`), the first time after `retry_delay_s`, then after twice that, and so
    on. `window`: items that are held at a time, to be sorted.
    """

    def __init__(
        self,
        name: str,
        make: MakeExecution,
        sort_key: SortKey,
        *,
        keeps_shared: bool = True,
        max_in_flight: int,
        window: int,
        retries: int,
        retry_delay_s: float,
        on_progress: OnProgress | None,
    ) -> None:
        self._name = name
        self._make = make
        self._sort_key = sort_key
        self._keeps_shared = keeps_shared
        self._max_in_flight = max_in_flight
        self._window = window
        self._retries = retries
        self._retry_delay_s = retry_delay_s
        self._on_progress = on_progress
        self._jobs: dict[Execution, _Job] = {}
        self._again: deque[_Job] = deque()  # by the time when they are due
        self._pending: deque[_Job] = deque()
        self._report = BatchReport()

    def run(
        self, engine: Client, items: Iterable[SourceItem], path: Path, *,
        source: str | None = None, redo_errors: bool = False,
    ) -> BatchReport:  # fmt: skip
        """Run all items that the journal at `path` does not have. Its records are complete when
        this returns; whatever raises leaves it ready to go on.

        An item that is an `InvalidRequest` could not be read: it has failed.
        """
        header = Header(self._name, source)
        with Journal(path, header, redo_errors=redo_errors) as journal:
            self._journal = journal
            self._report.num_resumed = journal.num_done
            self._report.costs = journal.costs
            self._note_progress()
            self._stream = enumerate(items)
            inbox = Inbox()
            self._driver = Driver(engine, inbox.post, is_batch=self._keeps_shared)
            session = run_many(self._driver, self._executions(), self._max_in_flight, self._ended)
            for _ in drive(self._driver, inbox, session):
                pass
        return self._report

    def _executions(self) -> Iterator[Execution]:
        return _Executions(self._next)

    def _next(self) -> Execution | None:
        while (job := self._next_job()) is not None:
            if not isinstance(job.item, InvalidRequest):
                execution = self._make(self._driver, job.item)
                self._jobs[execution] = job
                return execution
            self._add(Record(job.index, error=str(job.item)))
        return None

    def _next_job(self) -> _Job | None:
        if self._again and self._again[0].due_s <= time.monotonic():
            return self._again.popleft()
        if not self._pending:
            fresh = (_Job(i, item) for i, item in self._stream if not self._journal.is_done(i))
            self._pending.extend(sorted(islice(fresh, self._window), key=self._key))
        if self._pending:
            return self._pending.popleft()
        if self._again and not self._jobs:  # else it is asked for when one of them ends
            time.sleep(max(0.0, self._again[0].due_s - time.monotonic()))
            return self._again.popleft()
        return None

    def _key(self, job: _Job) -> tuple[bool, Any]:
        """Items that could not be read come first, and are not looked into."""
        if isinstance(job.item, InvalidRequest):
            return (False, job.index)
        return (True, self._sort_key(job.item))

    def _ended(self, execution: Execution) -> None:
        job = self._jobs.pop(execution)
        error = execution.error
        if error is not None:
            if isinstance(error.cause, EngineClosed):
                raise error  # the others would fail the same way; all of them are run next time
            if job.attempts <= self._retries and _may_pass(error):
                self._run_again(job)
                return
        state = State(execution.root)
        record = Record(
            index=job.index,
            result=execution.result if error is None else None,
            variables=state.variables(),
            error=str(error) if error is not None else None,
            attempts=job.attempts,
            cost=costs_of(state),
        )
        self._add(record)

    def _run_again(self, job: _Job) -> None:
        due_s = time.monotonic() + self._retry_delay_s * 2 ** (job.attempts - 1)
        again = _Job(job.index, job.item, job.attempts + 1, due_s)
        insort(self._again, again, key=lambda one: one.due_s)

    def _add(self, record: Record) -> None:
        self._journal.add(record)
        self._note_progress()

    def _note_progress(self) -> None:
        self._report.num_done = self._journal.num_done
        self._report.num_failed = self._journal.num_failed
        if self._on_progress is not None:
            self._on_progress(self._report)


class _Executions(Iterator[Execution]):
    """Unlike a generator it may go on after it had nothing: an item may have to be run again."""

    def __init__(self, take: Callable[[], Execution | None]) -> None:
        self._take = take

    def __next__(self) -> Execution:
        execution = self._take()
        if execution is None:
            raise StopIteration
        return execution


def prefix_key(paths: Iterable[tuple[str | int, ...]]) -> SortKey:
    """Sorts items by the strings at `paths`, in that order: depth-first over their prefix tree."""
    order = tuple(paths)

    def key(item: Item) -> tuple[str, ...]:
        return tuple(_text(item, path) for path in order)

    return key


def _text(item: Item, path: tuple[str | int, ...]) -> str:
    value: Any = item
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return ""
    return value[:_KEY_LEN] if isinstance(value, str) else str(value)[:_KEY_LEN]


def _may_pass(error: ProgramError) -> bool:
    cause = error.cause
    return isinstance(cause, UmbelError) and cause.retryable
