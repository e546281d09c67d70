"""`umbel batch requests.jsonl -o out.jsonl`: OpenAI's batch files without a server.

The output is the state: a line is appended when its request is done, so that after a kill
`--resume` does what is missing, and nothing twice.
"""

import argparse
import asyncio
import fcntl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from umbel.cli.engine_options import start_engine
from umbel.runtime.errors import InvalidRequest
from umbel.server.protocol.batches import InputLine, OutputLine
from umbel.server.settings import ServerSettings

if TYPE_CHECKING:
    from umbel.server.service import Service

_MAX_LINES = 10_000_000
_decode_output = msgspec.json.Decoder(OutputLine).decode
_encode = msgspec.json.Encoder().encode


def is_requests_file(target: str) -> bool:
    """Whether the target of `umbel batch` is a file of requests, and no program."""
    return target.endswith(".jsonl")


def run(args: argparse.Namespace) -> int:
    """Do the requests of `args.target`. The exit code is 1 if some failed."""
    if args.input is not None:
        raise InvalidRequest(f"{args.target} holds whole requests, so there is no {args.input!r}")
    output, errors = Path(args.output), Path(args.errors or _errors_path(args.output))
    lines = _read(Path(args.target))
    with _results(output, resume=args.resume) as done, _results(errors, resume=args.resume) as bad:
        left = _left(lines, {**done.seen, **bad.seen}, output)
        console = Console(stderr=True, quiet=args.quiet)
        if left:
            _run_left(args, left, len(lines), done, bad, console)
        num_failed = len(bad.seen)
        if not num_failed:
            errors.unlink()
    if num_failed:
        print(f"{num_failed} of {len(lines)} requests failed: see {errors}", file=sys.stderr)
    return 1 if num_failed else 0


def _errors_path(output: str) -> str:
    return f"{output.removesuffix('.jsonl')}.errors.jsonl"


class _Results:
    """A file of results, open for more."""

    def __init__(self, file: IO[bytes], seen: dict[str, int]) -> None:
        self._file = file
        self.seen = seen  # custom ids, and the line of each

    def add(self, line: OutputLine) -> None:
        self._file.write(_encode(line) + b"\n")  # unbuffered: one write
        self.seen[line.custom_id] = len(self.seen) + 1


@contextmanager
def _results(path: Path, *, resume: bool) -> Iterator[_Results]:
    """Raises `InvalidRequest` if the file is there and is not to be gone on with, or is no file of
    results, or another process writes it.
    """
    if not resume and path.exists():
        raise InvalidRequest(f"{path} is there already; give --resume to go on with it")
    try:
        file = path.open("a+b", buffering=0)
    except OSError as exc:
        raise InvalidRequest(f"cannot write {str(path)!r}: {exc}") from exc
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise InvalidRequest(f"another process writes {path}; wait for it") from exc
        yield _Results(file, _seen(file, path))


def _seen(file: IO[bytes], path: Path) -> dict[str, int]:
    """What was done before. A last line that was cut by a kill is taken away."""
    file.seek(0)
    data = file.read()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        file.truncate(whole)
    seen: dict[str, int] = {}
    for number, text in enumerate(data[:whole].splitlines(), 1):
        try:
            custom_id = _decode_output(text).custom_id
        except msgspec.DecodeError as exc:
            raise InvalidRequest(f"{path}:{number} is no result of a request: {exc}") from exc
        if custom_id in seen:
            raise InvalidRequest(f"{path}:{number} has {custom_id!r} again: see {seen[custom_id]}")
        seen[custom_id] = number
    return seen


def _read(path: Path) -> list[InputLine]:
    """The requests of a file. Raises `InvalidRequest` naming the first line that is none."""
    from umbel.server.batches_lines import read_lines  # here: it needs torch, which takes seconds

    try:
        data = path.read_bytes()
    except OSError as exc:
        raise InvalidRequest(f"cannot read {str(path)!r}: {exc}") from exc
    read = read_lines(data, max_lines=_MAX_LINES)
    if read.faults:
        first = read.faults[0]
        place = f"{path}:{first.line}" if first.line is not None else str(path)
        raise InvalidRequest(f"{place}: {first.message}")
    return [line for _, line in read.lines]


def _left(lines: Sequence[InputLine], seen: dict[str, int], output: Path) -> list[InputLine]:
    strange = sorted(seen.keys() - {line.custom_id for line in lines})
    if strange:
        raise InvalidRequest(f"{output} belongs to other requests: it has {strange[0]!r}")
    return [line for line in lines if line.custom_id not in seen]


def _run_left(
    args: argparse.Namespace,
    left: Sequence[InputLine],
    total: int,
    done: _Results,
    bad: _Results,
    console: Console,
) -> None:
    from umbel.server.service import Service

    with _progress(console) as progress, start_engine(args) as engine:
        bar = progress.add_task("requests", total=total, completed=total - len(left), failed="")
        service = Service(engine, ServerSettings(model_name=args.served_model_name))
        try:
            work = _do_all(service, left, args.max_in_flight, done, bad, progress, bar)
            asyncio.run(work)
        finally:
            service.close()


async def _do_all(
    service: "Service",
    left: Sequence[InputLine],
    num_at_once: int,
    done: _Results,
    bad: _Results,
    progress: Progress,
    bar: TaskID,
) -> None:
    from umbel.server.batches_lines import answer_line, is_success

    waiting = iter(left)
    never = asyncio.Event()

    async def work() -> None:
        for line in waiting:
            output = await answer_line(service, line, tenant=None, left=never)
            (done if is_success(output) else bad).add(output)
            failed = f"{len(bad.seen)} failed" if bad.seen else ""
            progress.update(bar, advance=1, failed=failed)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(max(1, num_at_once)):
                group.create_task(work())
    except ExceptionGroup as exc:  # all of them say the same
        raise exc.exceptions[0] from exc


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}"),
        console=console,
        disable=console.quiet,
    )
