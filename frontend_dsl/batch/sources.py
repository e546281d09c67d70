"""Items from files, one after another: JSON lines, CSV, Parquet. Nothing is read ahead."""

import csv
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from umbel.runtime.errors import InvalidRequest

SUFFIXES = (".jsonl", ".csv", ".parquet")
_HEAD = 1 << 16  # bytes at the start that go into the fingerprint
_PARQUET_ROWS = 1024


def read_items(path: Path) -> Iterator[Mapping[str, Any]]:
    """The items of `path`, each a mapping of argument names. Raises `InvalidRequest` with the line.

    Columns of CSV are strings.
    """
    readers = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix)
    if reader is None:
        raise InvalidRequest(f"{path}: expected a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise InvalidRequest(f"no such file: {path}")
    return reader(path)


def count_items(path: Path) -> int | None:
    """How many items there are, if that is cheap to know."""
    if path.suffix == ".jsonl":
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    return None


def fingerprint(path: Path) -> str:
    """Tells a changed input from the one that a run was begun with."""
    with path.open("rb") as file:
        head = hashlib.blake2b(file.read(_HEAD), digest_size=8).hexdigest()
    return f"{path.stat().st_size}-{head}"


def _jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise InvalidRequest(f"{path}:{number}: no JSON object: {error}") from error


def _csv(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        for row in reader:
            if None in row or None in row.values():
                raise InvalidRequest(
                    f"{path}:{reader.line_num}: the row has not as many fields as the header"
                )
            yield row


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise InvalidRequest(
            f"{path}: Parquet needs pyarrow; install it (pip install pyarrow) or give .jsonl"
        ) from None
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=_PARQUET_ROWS):
        yield from batch.to_pylist()
