"""Batches and their lines on disk. A line is done once: an outcome is never written over."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec

from umbel.server.protocol.batches import BatchObject, FileObject, RequestCounts
from umbel.server.store import Database
from umbel.server.store_files import select_page

OPEN = ("validating", "in_progress", "finalizing", "cancelling")
Outcome = Literal["completed", "failed"]

_decode = msgspec.json.Decoder(BatchObject).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class OpenLine:
    """A line that is still to be done."""

    number: int
    input: bytes


@dataclass(frozen=True, slots=True)
class DoneLine:
    """What came of one."""

    batch_id: str
    number: int
    outcome: Outcome
    output: bytes


class BatchTable:
    """Batches by tenant: None where there are no keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, tenant: str | None, batch: BatchObject) -> None:
        def insert(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO batches (id, tenant, is_open, object) VALUES (?, ?, 1, ?)",
                (batch.id, tenant or "", _encode(batch)),
            )

        await self._database.run(insert, writes=True)

    async def find(self, tenant: str | None, batch_id: str) -> BatchObject | None:
        def select(connection: sqlite3.Connection) -> BatchObject | None:
            row = connection.execute(
                "SELECT object FROM batches WHERE id = ? AND tenant = ?", (batch_id, tenant or "")
            ).fetchone()
            return None if row is None else _with_counts(connection, _decode(row[0]))

        return await self._database.run(select)

    async def page(self, tenant: str | None, *, after: str | None, limit: int) -> list[BatchObject]:
        """At most `limit` batches, the newest first."""

        def select(connection: sqlite3.Connection) -> list[BatchObject]:
            page = select_page(
                connection, table="batches", tenant=tenant, after=after, limit=limit,
                is_ascending=False,
            )  # fmt: skip
            return [_with_counts(connection, _decode(data)) for data in page]

        return await self._database.run(select)

    async def open(self) -> list[tuple[str | None, BatchObject]]:
        """Those that are not at their end, the oldest first, with their tenants."""

        def select(connection: sqlite3.Connection) -> list[tuple[str | None, BatchObject]]:
            rows = connection.execute(
                "SELECT tenant, object FROM batches WHERE is_open ORDER BY number"
            )
            return [(row[0] or None, _decode(row[1])) for row in rows]

        return await self._database.run(select)

    async def update(
        self,
        batch: BatchObject,
        *,
        lines: Sequence[bytes] = (),
        files: Sequence[tuple[str | None, FileObject, Outcome]] = (),
    ) -> None:
        """Write a batch's new state. With it, and at once: its lines when it begins, the files
        that its lines make when it ends.
        """

        def write(connection: sqlite3.Connection) -> None:
            _save(connection, batch)
            connection.executemany(
                "INSERT INTO lines (batch_id, number, input) VALUES (?, ?, ?)",
                ((batch.id, number, line) for number, line in enumerate(lines, 1)),
            )
            for tenant, file, outcome in files:
                file.bytes = _size(connection, batch.id, outcome)
                connection.execute(
                    "INSERT INTO files (id, tenant, object, batch_id, outcome) "
                    "VALUES (?, ?, ?, ?, ?)",
                    (file.id, tenant or "", _encode(file), batch.id, outcome),
                )

        await self._database.run(write, writes=True)

    async def open_lines(self, batch_id: str, *, after: int, limit: int) -> list[OpenLine]:
        """Lines to be done, in order."""

        def select(connection: sqlite3.Connection) -> list[OpenLine]:
            rows = connection.execute(
                "SELECT number, input FROM lines WHERE batch_id = ? AND outcome IS NULL "
                "AND number > ? ORDER BY number LIMIT ?",
                (batch_id, after, limit),
            )
            return [OpenLine(number, data) for number, data in rows]

        return await self._database.run(select)

    async def finish_lines(self, done: Sequence[DoneLine]) -> None:
        """Write outcomes, all at once."""

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "UPDATE lines SET outcome = ?, output = ?, input = NULL "
                "WHERE batch_id = ? AND number = ? AND outcome IS NULL",
                ((one.outcome, one.output, one.batch_id, one.number) for one in done),
            )

        await self._database.run(write, writes=True)

    async def counts(self, batch_id: str) -> RequestCounts:
        return await self._database.run(partial(_counts, batch_id=batch_id))


def _save(connection: sqlite3.Connection, batch: BatchObject) -> None:
    connection.execute(
        "UPDATE batches SET object = ?, is_open = ? WHERE id = ?",
        (_encode(batch), batch.status in OPEN, batch.id),
    )


def _with_counts(connection: sqlite3.Connection, batch: BatchObject) -> BatchObject:
    if batch.status in OPEN:  # of the others they were written with the end
        batch.request_counts = _counts(connection, batch.id)
    return batch


def _counts(connection: sqlite3.Connection, batch_id: str) -> RequestCounts:
    rows = connection.execute(
        "SELECT outcome, count(*) FROM lines WHERE batch_id = ? GROUP BY outcome", (batch_id,)
    )
    by_outcome = dict(rows.fetchall())
    return RequestCounts(
        total=sum(by_outcome.values()),
        completed=by_outcome.get("completed", 0),
        failed=by_outcome.get("failed", 0),
    )


def _size(connection: sqlite3.Connection, batch_id: str, outcome: Outcome) -> int:
    (size,) = connection.execute(
        "SELECT coalesce(sum(length(output) + 1), 0) FROM lines WHERE batch_id = ? AND outcome = ?",
        (batch_id, outcome),
    ).fetchone()
    return int(size)
