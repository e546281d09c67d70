"""Runs batches: their lines through the engine beside everybody else's requests, their outcomes
to disk as they come. After a restart it goes on with what is not done.

A batch gives way: it leaves a quarter of the engine's places free, and begins no line while
requests wait. Each batch has one task, the only one that writes its state.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from umbel.server.batches_lines import (
    LinesStopped,
    answer_line,
    decode_stored,
    encode_line,
    input_lines,
    is_success,
    read_lines,
    refused_line,
)
from umbel.server.protocol.batches import BatchFaults, BatchObject, FileObject, OutputLine
from umbel.server.service import Service
from umbel.server.store import Database
from umbel.server.store_batches import BatchTable, DoneLine, OpenLine, Outcome
from umbel.server.store_files import FileTable

logger = logging.getLogger(__name__)

_PAGE_LINES = 256
_GIVE_WAY_S = 0.02
_ENDINGS = {
    "cancelled": ("batch_cancelled", "the batch was cancelled before this line was done"),
    "expired": ("batch_expired", "the batch expired before this line was done"),
}


@dataclass(slots=True, eq=False)
class _RunningBatch:
    """A batch and its task."""

    batch: BatchObject
    tenant: str | None
    left: asyncio.Event = field(default_factory=asyncio.Event)  # its lines are to end
    is_cancelled: bool = False
    is_stopped: bool = False  # lines were given up that the next server is to do
    task: "asyncio.Task[None] | None" = None


class BatchRunner:
    """Belongs to the loop's thread. `start` goes on with what an earlier server left."""

    def __init__(self, service: Service, database: Database) -> None:
        self._service = service
        self._database = database
        self.files = FileTable(database)
        self.batches = BatchTable(database)
        self._places = asyncio.Semaphore(max(1, service.engine.config.max_running * 3 // 4))
        self._running: dict[str, _RunningBatch] = {}
        self._done: list[tuple[DoneLine, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    @property
    def num_running(self) -> int:
        return len(self._running)

    async def start(self) -> None:
        """Take up what is open on disk. Raises `InvalidRequest` when another server has it."""
        if self._database.is_there:
            for tenant, batch in await self.batches.open():
                self._launch(tenant, batch)

    async def add(self, tenant: str | None, batch: BatchObject) -> None:
        """Take a new batch: it is on disk when this returns."""
        await self.batches.add(tenant, batch)
        self._launch(tenant, batch)

    async def cancel(self, tenant: str | None, batch_id: str) -> bool:
        """End a batch's lines; those that are done stay. False if it has ended already."""
        running = self._running.get(batch_id)
        if running is None or running.tenant != tenant or running.batch.status == "finalizing":
            return False
        if not running.is_cancelled:
            running.is_cancelled = True
            running.batch.status, running.batch.cancelling_at = "cancelling", _now()
            await self.batches.update(running.batch)
            running.left.set()
        return True

    async def close(self) -> None:
        """Leave everything as it is on disk, and close that. Lines that run are given up."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        for running in self._running.values():
            running.left.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._writer is not None:
            await asyncio.wait([self._writer])
        await asyncio.get_running_loop().run_in_executor(None, self._database.close)

    def _launch(self, tenant: str | None, batch: BatchObject) -> None:
        running = _RunningBatch(batch, tenant)
        if batch.status == "cancelling":
            running.is_cancelled = True
            running.left.set()
        self._running[batch.id] = running
        running.task = asyncio.get_running_loop().create_task(self._run(running))

    async def _run(self, running: _RunningBatch) -> None:
        batch = running.batch
        try:
            if batch.status == "validating" and not await self._begin(running):
                return
            timer = asyncio.get_running_loop().call_later(
                max(0.0, batch.expires_at - time.time()), running.left.set
            )
            try:
                await self._do_lines(running)
            finally:
                timer.cancel()
            if not running.is_stopped and not self._service.is_draining:
                await self._end(running)
        except Exception:  # it stays open: a restart takes it up again
            logger.exception("batch %s cannot go on", batch.id)
        finally:
            del self._running[batch.id]

    async def _begin(self, running: _RunningBatch) -> bool:
        """Read the input file. False if it cannot be used: the batch has failed."""
        batch = running.batch
        parts = [part async for part in self.files.content(batch.input_file_id)]
        max_lines = self._service.settings.max_batch_lines
        read = await asyncio.to_thread(
            read_lines, b"".join(parts), max_lines=max_lines, endpoint=batch.endpoint
        )
        if read.faults:
            batch.status, batch.failed_at = "failed", _now()
            batch.errors = BatchFaults(data=read.faults)
            await self.batches.update(batch)
            return False
        lines = await asyncio.to_thread(input_lines, read.lines)
        if not running.is_cancelled:
            batch.status = "in_progress"
        batch.in_progress_at = _now()
        batch.request_counts.total = len(lines)
        await self.batches.update(batch, lines=lines)
        return True

    async def _do_lines(self, running: _RunningBatch) -> None:
        """Every open line until none is left, or the batch is to end."""
        async with asyncio.TaskGroup() as group:
            async for line in self._open_lines(running):
                await self._places.acquire()
                try:
                    await self._give_way(running)
                except BaseException:
                    self._places.release()
                    raise
                group.create_task(self._do_line(running, line))

    async def _open_lines(self, running: _RunningBatch) -> AsyncIterator[OpenLine]:
        after = 0
        while not self._must_stop(running):
            page = await self.batches.open_lines(running.batch.id, after=after, limit=_PAGE_LINES)
            if not page:
                return
            for line in page:
                if self._must_stop(running):
                    return
                yield line
            after = page[-1].number

    def _must_stop(self, running: _RunningBatch) -> bool:
        is_stopped = running.is_stopped or self._service.is_draining
        return is_stopped or running.left.is_set()

    async def _give_way(self, running: _RunningBatch) -> None:
        while self._service.engine.stats().num_waiting and not self._must_stop(running):
            await asyncio.sleep(_GIVE_WAY_S)

    async def _do_line(self, running: _RunningBatch, line: OpenLine) -> None:
        try:
            output = await answer_line(
                self._service, decode_stored(line.input), tenant=running.tenant, left=running.left
            )
            await self._put(_done(running.batch, line, output))
        except LinesStopped:  # the end of the batch, or the next server, sees to it
            running.is_stopped = not running.left.is_set()
        finally:
            self._places.release()

    async def _put(self, done: DoneLine) -> None:
        """Returns when it is on disk; those that come together are written together."""
        written = asyncio.get_running_loop().create_future()
        self._done.append((done, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write())
        await written

    async def _write(self) -> None:
        while self._done:
            together, self._done = self._done, []
            error: Exception | None = None
            try:
                await self.batches.finish_lines([done for done, _ in together])
            except Exception as exc:  # the disk is full, say
                error = exc
            for _, written in together:
                _tell(written, error)

    async def _end(self, running: _RunningBatch) -> None:
        """All lines get an outcome, then the batch its files and its last state, at once."""
        batch = running.batch
        status = "completed"
        if running.left.is_set():
            status = "cancelled" if running.is_cancelled else "expired"
        if status in _ENDINGS:
            await self._close_lines(batch, *_ENDINGS[status])
        else:
            batch.status, batch.finalizing_at = "finalizing", _now()
            await self.batches.update(batch)
        counts = batch.request_counts = await self.batches.counts(batch.id)
        assert counts.completed + counts.failed == counts.total
        files: list[tuple[str | None, FileObject, Outcome]] = []
        if counts.completed:
            files.append((running.tenant, _file(batch, "output"), "completed"))
            batch.output_file_id = files[-1][1].id
        if counts.failed:
            files.append((running.tenant, _file(batch, "error"), "failed"))
            batch.error_file_id = files[-1][1].id
        batch.status = status  # type: ignore[assignment]  # one of its values
        setattr(batch, f"{status}_at", _now())
        await self.batches.update(batch, files=files)

    async def _close_lines(self, batch: BatchObject, code: str, message: str) -> None:
        while page := await self.batches.open_lines(batch.id, after=0, limit=_PAGE_LINES):
            await self.batches.finish_lines(
                [
                    _done(batch, line, refused_line(decode_stored(line.input), code, message))
                    for line in page
                ]
            )


def _done(batch: BatchObject, line: OpenLine, output: OutputLine) -> DoneLine:
    outcome: Outcome = "completed" if is_success(output) else "failed"
    return DoneLine(batch.id, line.number, outcome, encode_line(output))


def _tell(written: "asyncio.Future[None]", error: Exception | None) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):  # its waiter was cancelled
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)


def _file(batch: BatchObject, what: str) -> FileObject:
    return FileObject(
        id=f"file-{secrets.token_hex(12)}",
        bytes=0,
        created_at=_now(),
        filename=f"{batch.id}_{what}.jsonl",
        purpose="batch_output",
    )


def _now() -> int:
    return int(time.time())
