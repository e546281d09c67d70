"""What is done, on disk: one line per item, in the order in which items ended.

A line is written whole or it does not count, so a run that was killed at any moment goes on from
here. When all is done the lines are copied to the output in the order of the items.
"""

import os
from array import array
from pathlib import Path
from typing import Any

import msgspec

from umbel.frontend_dsl.batch.costs import CostReport, CostTuple
from umbel.runtime.errors import InvalidRequest

_NONE = -1  # no line yet


class Header(msgspec.Struct, frozen=True):
    """First line: what the journal belongs to."""

    program: str  # name and content
    source: str | None  # a fingerprint of the input


class Record(msgspec.Struct, omit_defaults=True):
    """One item that ended. `cost`: per call site, see `costs.Cost`."""

    index: int
    result: Any = None
    variables: dict[str, str] = {}
    error: str | None = None
    attempts: int = 1
    cost: dict[str, CostTuple] = {}


class Journal:
    """The file at `path`; made if it is not there. Raises `InvalidRequest` if it belongs to another
    program or input. `redo_errors`: items that failed count as not done.
    """

    def __init__(self, path: Path, header: Header, *, redo_errors: bool = False) -> None:
        self._path = path
        self._offsets = array("q")  # per item where its line starts
        self._failed: set[int] = set()
        self.costs = CostReport()  # of all attempts that are in the journal
        self.num_done = 0
        self._decoder = msgspec.json.Decoder(Record)
        size = self._read(header, redo_errors) if path.exists() else 0
        self._file = path.open("ab")
        if size == 0:
            self._end = 0
            self._file.truncate(0)
            self._write(msgspec.json.encode(header, enc_hook=str) + b"\n")
        else:
            self._file.truncate(size)  # the rest is a line that was cut off
            self._end = size

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def num_failed(self) -> int:
        return len(self._failed)

    def is_done(self, index: int) -> bool:
        return index < len(self._offsets) and self._offsets[index] != _NONE

    def add(self, record: Record) -> None:
        """Note that an item ended; on return the line is with the operating system."""
        assert not self.is_done(record.index), "an item ended twice"
        try:
            line = msgspec.json.encode(record, enc_hook=str)
        except (TypeError, ValueError) as error:
            record = Record(record.index, error=f"the result is no JSON: {error}")
            line = msgspec.json.encode(record)
        self._note(record, self._end)
        self.costs.add(record.cost)
        self._write(line + b"\n")

    def records(self) -> "list[Record]":
        """All records in the order of the items. For small runs and tests."""
        with self._path.open("rb") as file:
            return [self._at(file, offset) for offset in self._offsets if offset != _NONE]

    def write_output(self, output: Path) -> None:
        """Copy the records to `output` in the order of the items, without costs; all or nothing."""
        part = output.with_name(output.name + ".part")
        with self._path.open("rb") as file, part.open("wb") as out:
            for offset in self._offsets:
                if offset != _NONE:
                    record = self._at(file, offset)
                    record.cost = {}
                    out.write(msgspec.json.encode(record) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        part.replace(output)

    def _at(self, file: Any, offset: int) -> Record:
        file.seek(offset)
        return self._decoder.decode(file.readline())

    def _read(self, header: Header, redo_errors: bool) -> int:
        """The length of the file up to its last whole line."""
        with self._path.open("rb") as file:
            first = file.readline()
            if not first.endswith(b"\n"):
                return 0
            self._check_header(first, header)
            end = len(first)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                record = self._decoder.decode(line)
                self.costs.add(record.cost)
                if record.error is None or not redo_errors:
                    self._note(record, end)
                end += len(line)
        return end

    def _check_header(self, line: bytes, header: Header) -> None:
        try:
            found = msgspec.json.decode(line, type=Header)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"{self._path} is no journal of a batch: {error}") from error
        if found != header:
            raise InvalidRequest(
                f"{self._path} belongs to another run: it has {found}, this is {header}; "
                "give another file, or delete it to begin anew"
            )

    def _note(self, record: Record, offset: int) -> None:
        missing = record.index + 1 - len(self._offsets)
        if missing > 0:
            self._offsets.extend([_NONE] * missing)
        if self._offsets[record.index] == _NONE:
            self.num_done += 1
        self._failed.discard(record.index)
        if record.error is not None:
            self._failed.add(record.index)
        self._offsets[record.index] = offset

    def _write(self, line: bytes) -> None:
        self._file.write(line)
        self._file.flush()
        self._end += len(line)
