"""The server's memory on disk: one SQLite database, used by one thread of its own.

Write-ahead log, every transaction synced: what was answered survives a kill and a power cut, and
what was not is as if it had never been. A lock beside the file keeps a second server out.
"""

import asyncio
import fcntl
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from umbel.runtime.errors import InvalidRequest

Answer = TypeVar("Answer")

DATABASE_NAME = "server.sqlite"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY,         -- order of arrival
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,               -- '': no keys
    object BLOB NOT NULL,               -- FileObject as JSON
    content BLOB,                       -- of an uploaded file
    batch_id TEXT,                      -- of a file that is made of the lines of a batch
    outcome TEXT                        -- of those lines
);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    is_open INTEGER NOT NULL,
    object BLOB NOT NULL                -- BatchObject as JSON
);
CREATE TABLE IF NOT EXISTS lines (
    batch_id TEXT NOT NULL,
    number INTEGER NOT NULL,            -- of the line in the input file, from 1
    input BLOB,                         -- until it is done
    outcome TEXT,                       -- NULL, then 'completed' or 'failed'
    output BLOB,                        -- OutputLine as JSON
    PRIMARY KEY (batch_id, number)
);
CREATE INDEX IF NOT EXISTS lines_by_outcome ON lines (batch_id, outcome, number);
"""


class Database:
    """Opened by its first use. `run` is the only way in, so that transactions never mix."""

    def __init__(self, folder: Path | None) -> None:
        """None: in memory, lost with the process."""
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="umbel-store")
        self._connection: sqlite3.Connection | None = None
        self._lock_file: IO[bytes] | None = None
        self._guard = threading.Lock()

    @property
    def is_there(self) -> bool:
        """Whether an earlier server left something."""
        return self._folder is not None and (self._folder / DATABASE_NAME).exists()

    async def run(
        self, function: Callable[[sqlite3.Connection], Answer], *, writes: bool = False
    ) -> Answer:
        """`function` in the database's thread; with `writes`, in a transaction."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._run, function, writes
        )

    def close(self) -> None:
        """After what was asked for before. Idempotent."""
        self._thread.shutdown(wait=True)
        with self._guard:
            connection, self._connection = self._connection, None
            lock_file, self._lock_file = self._lock_file, None
        if connection is not None:
            connection.close()
        if lock_file is not None:
            lock_file.close()

    def _run(self, function: Callable[[sqlite3.Connection], Answer], writes: bool) -> Answer:
        connection = self._open()
        if not writes:
            return function(connection)
        with _transaction(connection):
            return function(connection)

    def _open(self) -> sqlite3.Connection:
        with self._guard:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection

    def _connect(self) -> sqlite3.Connection:
        place = ":memory:"
        if self._folder is not None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = _locked(self._folder / "lock")
            place = str(self._folder / DATABASE_NAME)
        connection = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        return connection


def _locked(path: Path) -> IO[bytes]:
    """The lock ends with the process, however that ends."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        file.close()
        raise InvalidRequest(
            f"another server uses {str(path.parent)!r}; stop it, or give --state FOLDER"
        ) from exc
    return file


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
