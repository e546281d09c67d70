"""Items from files, one after another: JSON lines, CSV, Parquet. Nothing is read ahead."""

import csv
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from umbel.runtime.errors import InvalidRequest

SUFFIXES = (".jsonl", ".csv", ".parquet")
SourceItem = Mapping[str, Any] | InvalidRequest
_HEAD = 1 << 16  # bytes at the start that go into the fingerprint
_PARQUET_ROWS = 1024


def read_items(path: Path, types: Mapping[str, Any] | None = None) -> Iterator[SourceItem]:
    """The items of `path`, each a mapping of argument names; a line that is none is the
    `InvalidRequest` that names it, so that it fails alone.

    `types`: annotations by name. A column of CSV is text; one whose annotation is not `str` is read
    as JSON. Raises `InvalidRequest` for a file that cannot be read at all.
    """
    if path.suffix not in SUFFIXES:
        raise InvalidRequest(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise InvalidRequest(f"no such file: {path}")
    if path.suffix == ".csv":
        return _csv(path, types or {})
    return _jsonl(path) if path.suffix == ".jsonl" else _parquet(path)


def count_items(path: Path) -> int:
    """How many items there are; reads the file once, but for Parquet, which says it."""
    if path.suffix == ".parquet":
        return int(_parquet_file(path).metadata.num_rows)
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return sum(1 for row in csv.reader(file) if row) - 1
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def fingerprint(path: Path) -> str:
    """Tells a changed input from the one that a run was begun with."""
    with path.open("rb") as file:
        head = hashlib.blake2b(file.read(_HEAD), digest_size=8).hexdigest()
    return f"{path.stat().st_size}-{head}"


def _jsonl(path: Path) -> Iterator[SourceItem]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                yield InvalidRequest(f"{path}:{number}: no JSON object: {error}")


def _csv(path: Path, types: Mapping[str, Any]) -> Iterator[SourceItem]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for row in reader:
            place = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                yield InvalidRequest(f"{place}: the row has not as many fields as the header")
            else:
                yield _typed(row, types, place)


def _typed(row: Mapping[str, str], types: Mapping[str, Any], place: str) -> SourceItem:
    item: dict[str, Any] = {}
    for name, text in row.items():
        hint = types.get(name, str)
        try:
            item[name] = text if hint is str else msgspec.json.decode(text, type=hint)
        except msgspec.DecodeError as error:
            return InvalidRequest(f"{place}: {name}={text!r} is not JSON for {hint}: {error}")
    return item


def _parquet(path: Path) -> Iterator[SourceItem]:
    for batch in _parquet_file(path).iter_batches(batch_size=_PARQUET_ROWS):
        yield from batch.to_pylist()


def _parquet_file(path: Path) -> Any:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InvalidRequest(
            f"{path}: Parquet needs pyarrow; install it (pip install pyarrow) or give .jsonl"
        ) from None
    return parquet.ParquetFile(path)
