"""The faces of everything that runs on an engine: run, stream, batch, and the same in asyncio."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from umbel.frontend_dsl.batch.pipeline import (
    BatchPipeline,
    BatchReport,
    OnProgress,
    SortKey,
)
from umbel.frontend_dsl.batch.sources import SourceItem
from umbel.frontend_dsl.client import Client
from umbel.frontend_dsl.connection import Connection, Sendable
from umbel.frontend_dsl.driver import Driver
from umbel.frontend_dsl.events import Event, ProgramDone, ProgramFailed
from umbel.frontend_dsl.execution import Execution
from umbel.frontend_dsl.session import AsyncInbox, Inbox, drive, drive_async, run_many, run_one
from umbel.frontend_dsl.state import State
from umbel.runtime.errors import InvalidRequest

OnDone = Callable[[int, State], None]


class CheckpointOptions(TypedDict, total=False):
    """What `run_batch(checkpoint=...)` takes besides.

    `source` names the input, so that a checkpoint is not used for another. `window`: items that are
    held, to be sorted by the prefix of their prompts. Items that fail with an error that may pass
    are run `retries` more times (2), after `retry_delay_s` (0.1), twice that, and so on; what fails
    in the end is its record. `redo_errors` runs those again.
    """

    source: str | None
    window: int
    retries: int
    retry_delay_s: float
    redo_errors: bool
    on_progress: OnProgress | None


class Runnable:
    """Base of programs and graphs: what can make an `Execution` from arguments can be run."""

    name: str

    def execution(
        self, driver: Driver, arguments: Mapping[str, Any], *, keep_events: bool
    ) -> Execution:
        """One execution, not started. Wrong arguments are its failure, so that a batch item fails
        alone.
        """
        raise NotImplementedError

    def sendable(self, arguments: Mapping[str, Any]) -> Sendable:
        """What a server is sent. Raises `InvalidRequest` for a program that has no graph."""
        raise NotImplementedError

    def run(self, engine: Client | Connection, /, **arguments: Any) -> State:
        """Run to the end. Raises `ProgramError` when the program, or a call whose error it never
        met, failed.
        """
        if isinstance(engine, Connection):
            return engine.run(self.sendable(arguments))
        out: list[Execution] = []
        for _ in self._drive(engine, arguments, keep_events=False, into=out):
            pass
        return _ended(out[0])

    def stream(self, engine: Client | Connection, /, **arguments: Any) -> Iterator[Event]:
        """Run and yield what happens. Closing the iterator cancels the run.

        The last event is `ProgramDone` or `ProgramFailed`; after the latter the error is raised.
        The iterator must stay in the thread that started it.
        """
        if isinstance(engine, Connection):
            yield from engine.stream(self.sendable(arguments))
            return
        out: list[Execution] = []
        yield from self._drive(engine, arguments, keep_events=True, into=out)
        yield _last_event(out[0])
        _ended(out[0])

    @overload
    def run_batch(
        self,
        engine: Client | Connection,
        items: Iterable[Mapping[str, Any]],
        *,
        max_in_flight: int = 64,
        on_done: OnDone | None = None,
    ) -> list[State]: ...
    @overload
    def run_batch(
        self,
        engine: Client,
        items: Iterable[SourceItem],
        *,
        checkpoint: str | PathLike[str],
        max_in_flight: int = 64,
        **options: Unpack[CheckpointOptions],
    ) -> BatchReport: ...
    def run_batch(
        self,
        engine: Client | Connection,
        items: Iterable[Any],
        *,
        max_in_flight: int = 64,
        on_done: OnDone | None = None,
        checkpoint: str | PathLike[str] | None = None,
        **options: Unpack[CheckpointOptions],
    ) -> list[State] | BatchReport:
        """Run once per item (its arguments), up to `max_in_flight` at a time; states in the order
        of the items. `items` is read as room becomes free.

        An item that fails fails alone: its state has `.error`. `on_done(index, state)` is called as
        each one ends.

        With `checkpoint` there may be any number of items, and only what is under way is kept in
        memory: each item that ended is a line of that file (`batch.journal.Record`); a run that was
        ended by anything goes on where it was, with each item exactly once. Gives a report.
        """
        _check_in_flight(max_in_flight)
        if checkpoint is not None:
            if isinstance(engine, Connection):
                raise InvalidRequest("a checkpoint needs an Engine or a Remote, no connection")
            if on_done is not None:
                raise InvalidRequest("with checkpoint=... states are not kept; use on_progress")
            return self._run_checkpointed(engine, items, Path(checkpoint), max_in_flight, options)
        if options:
            raise InvalidRequest(f"{sorted(options)[0]}=... needs checkpoint=...")
        if isinstance(engine, Connection):
            states = engine.run_batch(map(self.sendable, items), max_in_flight=max_in_flight)
            for index, state in enumerate(states if on_done is not None else ()):
                on_done(index, state)  # type: ignore[misc]  # it is not None
            return states
        inbox = Inbox()
        driver = Driver(engine, inbox.post, is_batch=self.keeps_shared)
        batch = _Batch(self, driver, items, on_done)
        session = run_many(driver, batch.executions(), max_in_flight, batch.note)
        for _ in drive(driver, inbox, session):
            pass
        return batch.states()

    def _run_checkpointed(
        self,
        engine: Client,
        items: Iterable[SourceItem],
        checkpoint: Path,
        max_in_flight: int,
        options: CheckpointOptions,
    ) -> BatchReport:
        pipeline = BatchPipeline(
            self.identity,
            lambda driver, item: self.execution(driver, item, keep_events=False),
            self.sort_key(),
            keeps_shared=self.keeps_shared,
            max_in_flight=max_in_flight,
            window=max(options.get("window", 2048), 1),
            retries=options.get("retries", 2),
            retry_delay_s=options.get("retry_delay_s", 0.1),
            on_progress=options.get("on_progress"),
        )
        return pipeline.run(
            engine,
            items,
            checkpoint,
            source=options.get("source"),
            redo_errors=options.get("redo_errors", False),
        )

    @property
    def keeps_shared(self) -> bool:
        """Whether a batch pins what its instances share (pass "hoist")."""
        return True

    @property
    def identity(self) -> str:
        """Name and content: the same as long as a run means the same."""
        raise NotImplementedError

    def sort_key(self) -> SortKey:
        """Sorts items so that those with a common prefix are neighbours."""
        raise NotImplementedError

    async def arun(self, engine: Client, /, **arguments: Any) -> State:
        """`run` for a coroutine; cancelling the task cancels the run."""
        out: list[Execution] = []
        async with aclosing(self._drive_async(engine, arguments, False, out)) as events:
            async for _ in events:
                pass
        return _ended(out[0])

    async def astream(self, engine: Client, /, **arguments: Any) -> AsyncIterator[Event]:
        """`stream` for a coroutine."""
        out: list[Execution] = []
        async with aclosing(self._drive_async(engine, arguments, True, out)) as events:
            async for event in events:
                yield event
        yield _last_event(out[0])
        _ended(out[0])

    async def arun_batch(
        self,
        engine: Client,
        items: Iterable[Mapping[str, Any]],
        *,
        max_in_flight: int = 64,
        on_done: OnDone | None = None,
    ) -> list[State]:
        """`run_batch` for a coroutine."""
        _check_in_flight(max_in_flight)
        inbox = AsyncInbox()
        driver = _async_driver(engine, inbox, is_batch=self.keeps_shared)
        batch = _Batch(self, driver, items, on_done)
        session = run_many(driver, batch.executions(), max_in_flight, batch.note)
        async with aclosing(drive_async(driver, inbox, session)) as events:
            async for _ in events:
                pass
        return batch.states()

    def _drive(
        self,
        engine: Client,
        arguments: Mapping[str, Any],
        *,
        keep_events: bool,
        into: list[Execution],
    ) -> Iterator[Event]:
        inbox = Inbox()
        driver = Driver(engine, inbox.post)
        execution = self.execution(driver, arguments, keep_events=keep_events)
        into.append(execution)
        return drive(driver, inbox, run_one(driver, execution))

    def _drive_async(
        self,
        engine: Client,
        arguments: Mapping[str, Any],
        keep_events: bool,
        into: list[Execution],
    ) -> AsyncGenerator[Event, None]:
        inbox = AsyncInbox()
        driver = _async_driver(engine, inbox)
        execution = self.execution(driver, arguments, keep_events=keep_events)
        into.append(execution)
        return drive_async(driver, inbox, run_one(driver, execution))


class _Batch:
    """The states of a batch in the order of its items, though they end in another."""

    def __init__(
        self,
        program: Runnable,
        driver: Driver,
        items: Iterable[Mapping[str, Any]],
        on_done: OnDone | None,
    ) -> None:
        self._program = program
        self._driver = driver
        self._items = items
        self._on_done = on_done
        self._states: list[State] = []
        self._index: dict[Execution, int] = {}

    def executions(self) -> Iterator[Execution]:
        for item in self._items:
            execution = self._program.execution(self._driver, item, keep_events=False)
            self._index[execution] = len(self._states)
            self._states.append(State(execution.root))
            yield execution

    def note(self, execution: Execution) -> None:
        index = self._index.pop(execution)
        if self._on_done is not None:
            self._on_done(index, self._states[index])

    def states(self) -> list[State]:
        return self._states


def _async_driver(engine: Client, inbox: AsyncInbox, *, is_batch: bool = False) -> Driver:
    if isinstance(engine, Connection):
        raise InvalidRequest(
            "a connection has no asynchronous calls: use run, stream or run_batch, in a coroutine "
            "by asyncio.to_thread(program.run, connection, ...)"
        )
    return Driver(engine, inbox.post, is_batch=is_batch)


def _check_in_flight(max_in_flight: object) -> None:
    if isinstance(max_in_flight, bool) or not isinstance(max_in_flight, int) or max_in_flight < 1:
        raise InvalidRequest(
            f"max_in_flight={max_in_flight!r} is not valid: expected an integer of at least 1",
            param="max_in_flight",
        )


def _ended(execution: Execution) -> State:
    if execution.fatal is not None:
        raise execution.fatal
    if execution.error is not None:
        raise execution.error
    return State(execution.root)


def _last_event(execution: Execution) -> Event:
    state = State(execution.root)
    if execution.error is not None:
        return ProgramFailed(state, execution.error)
    return ProgramDone(state)
