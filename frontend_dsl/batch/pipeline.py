"""Runs a program over a stream of items with a journal: bounded memory, resumable, exact.

Items are taken in windows; each window is sorted by the text that comes first in the prompt, so
that instances that share a prefix run next to each other and meet in the cache.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from umbel.frontend_dsl.batch.costs import CostReport, costs_of
from umbel.frontend_dsl.batch.journal import Header, Journal, Record
from umbel.frontend_dsl.client import Client
from umbel.frontend_dsl.driver import Driver
from umbel.frontend_dsl.errors import ProgramError
from umbel.frontend_dsl.execution import Execution
from umbel.frontend_dsl.session import Inbox, drive, run_many
from umbel.frontend_dsl.state import State
from umbel.runtime.errors import EngineClosed, UmbelError

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
    item: Item
    attempts: int = 1


class BatchPipeline:
    """One batch. `retries`: how often an item is run again after an error that may pass (those
    whose class is `retryable`). `window`: items that are held at a time, to be sorted.
    """

    def __init__(
        self,
        name: str,
        make: MakeExecution,
        sort_key: SortKey,
        *,
        max_in_flight: int,
        window: int,
        retries: int,
        on_progress: OnProgress | None,
    ) -> None:
        self._name = name
        self._make = make
        self._sort_key = sort_key
        self._max_in_flight = max_in_flight
        self._window = window
        self._retries = retries
        self._on_progress = on_progress
        self._jobs: dict[Execution, _Job] = {}
        self._again: deque[_Job] = deque()
        self._pending: deque[_Job] = deque()
        self._report = BatchReport()

    def run(
        self, engine: Client, items: Iterable[Item], path: Path, *, source: str | None = None,
        redo_errors: bool = False,
    ) -> BatchReport:  # fmt: skip
        """Run all items that the journal at `path` does not have. Its records are complete when
        this returns; whatever raises leaves it ready to go on.
        """
        header = Header(self._name, source)
        with Journal(path, header, redo_errors=redo_errors) as journal:
            self._journal = journal
            self._report.num_resumed = journal.num_done
            self._report.costs = journal.costs
            self._note_progress()
            self._stream = enumerate(items)
            inbox = Inbox()
            self._driver = Driver(engine, inbox.post)
            session = run_many(self._driver, self._executions(), self._max_in_flight, self._ended)
            for _ in drive(self._driver, inbox, session):
                pass
        return self._report

    def _executions(self) -> Iterator[Execution]:
        return _Executions(self._next)

    def _next(self) -> Execution | None:
        job = self._again.popleft() if self._again else self._next_job()
        if job is None:
            return None
        execution = self._make(self._driver, job.item)
        self._jobs[execution] = job
        return execution

    def _next_job(self) -> _Job | None:
        if not self._pending:
            fresh = (_Job(i, item) for i, item in self._stream if not self._journal.is_done(i))
            self._pending.extend(
                sorted(islice(fresh, self._window), key=lambda job: self._sort_key(job.item))
            )
        return self._pending.popleft() if self._pending else None

    def _ended(self, execution: Execution) -> None:
        job = self._jobs.pop(execution)
        error = execution.error
        if error is not None:
            if isinstance(error.cause, EngineClosed):
                raise error  # the others would fail the same way; all of them are run next time
            if job.attempts <= self._retries and _may_pass(error):
                self._again.append(_Job(job.index, job.item, job.attempts + 1))
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
