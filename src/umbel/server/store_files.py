"""Uploaded files, and those that are made of a batch's lines when they are read."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from functools import partial

import msgspec

from umbel.server.protocol.batches import FileObject
from umbel.server.store import Database

_PAGE_BYTES = 1 << 20
_PAGE_LINES = 256
_decode = msgspec.json.Decoder(FileObject).decode
_encode = msgspec.json.Encoder().encode


class FileTable:
    """Files by tenant: None where there are no keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, tenant: str | None, file: FileObject, content: bytes) -> None:
        """Keep an uploaded file."""

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO files (id, tenant, object, content) VALUES (?, ?, ?, ?)",
                (file.id, tenant or "", _encode(file), content),
            )

        await self._database.run(insert, writes=True)

    async def find(self, tenant: str | None, file_id: str) -> FileObject | None:
        def select(connection: sqlite3.Connection) -> FileObject | None:
            found = connection.execute(
                "SELECT object FROM files WHERE id = ? AND tenant = ?", (file_id, tenant or "")
            ).fetchone()
            return None if found is None else _decode(found[0])

        return await self._database.run(select)

    async def page(
        self, tenant: str | None, *, after: str | None, limit: int, is_ascending: bool
    ) -> list[FileObject]:
        """At most `limit` files, the newest first or last."""
        select = partial(
            select_page, table="files", tenant=tenant, after=after, limit=limit,
            is_ascending=is_ascending,
        )  # fmt: skip
        return [_decode(data) for data in await self._database.run(select)]

    async def delete(self, tenant: str | None, file_id: str) -> bool:
        """Forget a file; the output lines of a batch go with it. False if there is none."""

        def delete(connection: sqlite3.Connection) -> bool:
            found = connection.execute(
                "DELETE FROM files WHERE id = ? AND tenant = ? RETURNING batch_id, outcome",
                (file_id, tenant or ""),
            ).fetchone()
            if found is not None and found[0] is not None:
                connection.execute(
                    "UPDATE lines SET output = NULL WHERE batch_id = ? AND outcome = ?", found
                )
            return found is not None

        return await self._database.run(delete, writes=True)

    async def content(self, file_id: str) -> AsyncIterator[bytes]:
        """The bytes of a file, part by part."""
        row = await self._database.run(partial(_source, file_id=file_id))
        if row is None:
            return
        number, batch_id, outcome = row
        at = 0
        while True:
            if batch_id is None:
                part = await self._database.run(partial(_bytes, number=number, at=at))
                at += len(part)
            else:
                at, part = await self._database.run(
                    partial(_lines, batch_id=batch_id, outcome=outcome, after=at)
                )
            if not part:
                return
            yield part

    async def stored_bytes(self) -> int:
        """The size of the database, whoever's."""

        def measure(connection: sqlite3.Connection) -> int:
            (num_pages,) = connection.execute("PRAGMA page_count").fetchone()
            (num_free,) = connection.execute("PRAGMA freelist_count").fetchone()
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
            return int((num_pages - num_free) * page_size)

        return await self._database.run(measure)


def select_page(
    connection: sqlite3.Connection,
    *,
    table: str,
    tenant: str | None,
    after: str | None,
    limit: int,
    is_ascending: bool,
) -> Sequence[bytes]:
    """Objects of a tenant after the one with the id `after`."""
    direction, sign = ("ASC", ">") if is_ascending else ("DESC", "<")
    where, values = "tenant = ?", [tenant or ""]
    if after is not None:
        where += f" AND number {sign} (SELECT number FROM {table} WHERE id = ?)"
        values.append(after)
    rows = connection.execute(
        f"SELECT object FROM {table} WHERE {where} ORDER BY number {direction} LIMIT ?",
        (*values, limit),
    )
    return [row[0] for row in rows]


def _source(connection: sqlite3.Connection, file_id: str) -> tuple[int, str | None, str] | None:
    row: tuple[int, str | None, str] | None = connection.execute(
        "SELECT number, batch_id, outcome FROM files WHERE id = ?", (file_id,)
    ).fetchone()
    return row


def _bytes(connection: sqlite3.Connection, number: int, at: int) -> bytes:
    try:
        with connection.blobopen("files", "content", number, readonly=True) as blob:
            blob.seek(at)
            return blob.read(_PAGE_BYTES)
    except sqlite3.OperationalError:  # it was deleted meanwhile
        return b""


def _lines(
    connection: sqlite3.Connection, batch_id: str, outcome: str, after: int
) -> tuple[int, bytes]:
    """The next lines as text, and the number of the last."""
    rows = connection.execute(
        "SELECT number, output FROM lines WHERE batch_id = ? AND outcome = ? AND number > ? "
        "AND output IS NOT NULL ORDER BY number LIMIT ?",
        (batch_id, outcome, after, _PAGE_LINES),
    ).fetchall()
    last = rows[-1][0] if rows else after
    return last, b"".join(row[1] + b"\n" for row in rows)
