"""`umbel replay FILE --url URL`: sends the requests of a dump (`umbel serve --dump`) again."""

import argparse
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from umbel.runtime.errors import InvalidRequest
from umbel.server.dump import DumpedRequest


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back: `status` 0 means that there was no answer."""

    path: str
    status: int
    seconds: float
    problem: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="a dump: lines of JSON")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    parser.add_argument("--api-key", metavar="KEY")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="at the same time")
    parser.add_argument(
        "--paced", action="store_true", help="keep the times between the requests as they were"
    )
    parser.add_argument("--timeout-s", type=float, default=600.0, metavar="S")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")


def run(args: argparse.Namespace) -> int:
    requests = list(read_dump(args.file))
    started_s = time.perf_counter()
    outcomes = _send_all(args, requests)
    wall_s = time.perf_counter() - started_s
    failed = [outcome for outcome in outcomes if outcome.status != 200]
    if args.json:
        print(msgspec.json.encode(_summary(outcomes, wall_s)).decode())
    else:
        for outcome in failed:
            print(f"{outcome.status} {outcome.path}: {outcome.problem}", file=sys.stderr)
        print(f"{len(outcomes)} requests in {wall_s:.2f} s, {len(failed)} failed")
    return 1 if failed else 0


def read_dump(path: Path) -> Iterator[DumpedRequest]:
    """The requests of a dump. Raises `InvalidRequest` naming the line that is none."""
    decoder = msgspec.json.Decoder(DumpedRequest)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        raise InvalidRequest(f"cannot read {str(path)!r}: {exc}") from exc
    for number, line in enumerate(lines, 1):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as exc:
            raise InvalidRequest(f"{path}:{number} is no dumped request: {exc}") from exc


def _send_all(args: argparse.Namespace, requests: Sequence[DumpedRequest]) -> list[Outcome]:
    with ThreadPoolExecutor(max(1, args.concurrency)) as senders:
        futures = []
        first_s, started_s = requests[0].time_s if requests else 0.0, time.monotonic()
        for request in requests:
            if args.paced:
                due_s = started_s + request.time_s - first_s
                time.sleep(max(0.0, due_s - time.monotonic()))
            futures.append(senders.submit(_send, args, request))
        return [future.result() for future in futures]


def _send(args: argparse.Namespace, dumped: DumpedRequest) -> Outcome:
    headers = {"content-type": "application/json"}
    if args.api_key is not None:
        headers["authorization"] = f"Bearer {args.api_key}"
    request = urllib.request.Request(
        args.url.rstrip("/") + dumped.path,
        data=bytes(dumped.body),
        headers=headers,
        method=dumped.method,
    )
    started_s = time.perf_counter()
    status, problem = 0, None
    try:
        with urllib.request.urlopen(request, timeout=args.timeout_s) as response:
            status = response.status
            response.read()
    except urllib.error.HTTPError as exc:
        with exc:
            status, problem = exc.code, exc.read().decode(errors="replace")
    except OSError as exc:
        problem = str(exc)
    return Outcome(dumped.path, status, time.perf_counter() - started_s, problem)


def _summary(outcomes: Sequence[Outcome], wall_s: float) -> dict[str, object]:
    seconds = sorted(outcome.seconds for outcome in outcomes)
    return {
        "requests": len(outcomes),
        "statuses": {str(k): n for k, n in Counter(one.status for one in outcomes).items()},
        "wall_s": wall_s,
        "median_s": seconds[len(seconds) // 2] if seconds else None,
        "max_s": seconds[-1] if seconds else None,
    }
