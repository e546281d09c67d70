"""The server under load: what breaks, what leaks, and what HTTP costs.

    python benchmarks/server_load.py --seconds 60 --json server_load.json

* `load`: streaming clients, some of which leave in the middle, read slowly or send malformed
  bodies. No 5xx; every accepted request ends; afterwards no block is leased; memory does not grow
  after the first third (20 of 60 seconds).
* `overhead`: time per output token of 16 clients over HTTP against 16 callers in process, in turns.
* `first_token`: time to the first token for a cached prompt of 1,000 tokens, in steps of one row.
Loopback only. Exits with 1 if `load` breaks a rule.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server_process import Server, served, streamed

from umbel.runtime.engine import Engine
from umbel.runtime.outputs import Chunk
from umbel.runtime.params import SamplingParams

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
MALFORMED_SHARE, LEAVING_SHARE, SLOW_SHARE = 0.05, 0.15, 0.15
SYSTEM = "You answer questions about gardens, umbellifers and bees, in short sentences. " * 6
TOPICS = ("dill", "fennel", "carrots", "hogweed", "angelica", "lovage", "chervil", "cumin")
MALFORMED = (
    b"{", b"[]", b'{"messages": 3}', b'{"messages": [{"role": "user"}], "nonsense": 1}',
    b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": -4}',
    b'{"messages": [{"role": "user", "content": "a"}], "regex": "("}',
    b'{"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}',
    b'{"messages": []}', b"\xff\xfe\x00", b'{"messages": [' + b"[" * 5000,
)  # fmt: skip
OVERHEAD_CLIENTS, OVERHEAD_REQUESTS, OVERHEAD_TOKENS = 16, 2, 48
FIRST_TOKEN_PROMPT, FIRST_TOKEN_TRIES = 1000, 25
MEMORY_SLACK = (1.02, 8.0)  # growth that counts as none: ratio, MiB


@dataclass(slots=True)
class Tally:
    """What the clients saw."""

    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    num_finished: int = 0
    num_left: int = 0
    problems: list[str] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)


# -- load


def load_part(args: argparse.Namespace) -> dict[str, Any]:
    """Run the clients and look for what is left behind."""
    tally, memory = Tally(), []
    options = ["--max-running", str(args.clients), "--num-blocks", str(args.blocks)]
    with served([*engine_options(args), *options]) as server:
        fill_cache(server)
        asyncio.run(see_all_sizes(server, args.clients))
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.5):
                memory.append((time.perf_counter(), server.rss_mib()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        started_s = time.perf_counter()
        try:
            asyncio.run(run_clients(server, args, tally))
        finally:
            stop.set()
            watcher.join()
        left = what_is_left(server)
        exit_code = server.stop()
    points = [(at - started_s, mib) for at, mib in memory]
    grown = memory_growth(points, args.seconds)
    rules = {
        "no_5xx": not any(status >= 500 for status in tally.statuses),
        "malformed_refused": not tally.problems,
        "accepted_requests_end": tally.num_finished + tally.num_left == tally.statuses[200],
        "no_leaked_block": left["leased_blocks"] == 0 and left["running"] == 0,
        "memory_flat": grown["is_flat"],
        "drained": exit_code == 0,
    }
    return {
        "seconds": args.seconds, "clients": args.clients, "rules": rules, "ok": all(rules.values()),
        "requests": sum(tally.kinds.values()), "kinds": dict(tally.kinds),
        "statuses": {str(status): n for status, n in sorted(tally.statuses.items())},
        "finished": tally.num_finished, "left_by_client": tally.num_left,
        "problems": tally.problems[:10], "memory": grown, "after": left,
        "first_token_s": quantiles(tally.first_token_s), "inter_token_s": quantiles(tally.gaps_s),
    }  # fmt: skip


def fill_cache(server: Server) -> None:
    """Use every block once: memory that is only touched late would look like a leak."""
    free = 'umbel_cache_blocks{state="free"}'
    for number in range(1000):
        if server.metric(free) < 8:
            return
        words = " ".join(str((number + 1) * 7919 + at) for at in range(150))
        server.post(PATH, {"prompt": words, "max_tokens": 1})
    raise SystemExit("the cache does not fill")


async def see_all_sizes(server: Server, num_clients: int) -> None:
    """Steps of each number of rows: libraries keep something for each shape that they meet."""

    async def call(number: int) -> None:
        body = completion_body([100 + number] * 16, 4 + number)
        async with streamed(server, PATH, body) as stream:
            await stream.body()

    async with asyncio.TaskGroup() as group:
        for number in range(num_clients):
            group.create_task(call(number))


async def run_clients(server: Server, args: argparse.Namespace, tally: Tally) -> None:
    end_s = time.perf_counter() + args.seconds
    async with asyncio.TaskGroup() as group:
        for number in range(args.clients):
            group.create_task(one_client(server, random.Random(number), end_s, tally))


async def one_client(server: Server, draw: random.Random, end_s: float, tally: Tally) -> None:
    """Requests one after the other until the time is over; the last one is read to its end."""
    while time.perf_counter() < end_s:
        kind = draw_kind(draw)
        tally.kinds[kind] += 1
        body = draw.choice(MALFORMED) if kind == "malformed" else make_body(draw)
        buffer_bytes = 2048 if kind == "slow" else 1 << 16
        async with streamed(server, CHAT, body, buffer_bytes=buffer_bytes) as stream:
            tally.statuses[stream.status] += 1
            if kind == "malformed":
                await stream.body()
                if not 400 <= stream.status < 500:
                    tally.problems.append(f"{body[:80]!r} got {stream.status}")
            elif stream.status == 200:
                await read_stream(stream, kind, draw, tally)
            else:
                problem = await stream.body()
                if stream.status != 429:
                    tally.problems.append(f"{stream.status}: {problem[-200:]!r}")
                await asyncio.sleep(0.2)


def draw_kind(draw: random.Random) -> str:
    at = draw.random()
    for kind, share in (
        ("malformed", MALFORMED_SHARE), ("leaving", LEAVING_SHARE), ("slow", SLOW_SHARE),
    ):  # fmt: skip
        if at < share:
            return kind
        at -= share
    return "plain"


def make_body(draw: random.Random) -> bytes:
    """A stream that shares its beginning with all others; some are constrained."""
    question = f"Tell me about {draw.choice(TOPICS)}, number {draw.randrange(1000)}."
    body: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question},
        ],
        "max_tokens": draw.choice((8, 24, 64)),
        "temperature": 0.8,
        "stream": True,
    }
    if draw.random() < 0.2:
        body["regex"] = draw.choice((r"(yes|no), [a-z ]{3,40}\.", r"[0-9]{4}-[0-9]{2}"))
    return json.dumps(body).encode()


async def read_stream(stream: Any, kind: str, draw: random.Random, tally: Tally) -> None:
    leave_after = draw.randrange(1, 20) if kind == "leaving" else None
    last_s = None
    num_events = 0
    async for at_s in stream.events():
        num_events += 1
        if num_events == leave_after:
            stream.leave()
            tally.num_left += 1
            return
        if last_s is None:
            tally.first_token_s.append(at_s - stream.sent_s)
        elif kind == "plain":
            tally.gaps_s.append(at_s - last_s)
        last_s = at_s
        if kind == "slow":
            await asyncio.sleep(0.1)
    tally.num_finished += stream.is_done


def what_is_left(server: Server) -> dict[str, float]:
    """After the last client: aborts are through within moments, or never."""
    for _ in range(50):
        if server.metric("umbel_running_requests") + server.metric("umbel_queue_requests") == 0:
            break
        time.sleep(0.2)
    return {
        "running": server.metric("umbel_running_requests"),
        "waiting": server.metric("umbel_queue_requests"),
        "leased_blocks": server.metric('umbel_cache_blocks{state="leased"}'),
        "preemptions": server.metric("umbel_preemptions_total"),
        "failed_steps": server.metric("umbel_failed_steps_total"),
    }


def memory_growth(points: list[tuple[float, float]], seconds: float) -> dict[str, Any]:
    """The memory right after the first third against that of the last sixth."""
    after = [mib for at, mib in points if seconds / 3 <= at < seconds / 2]
    end = [mib for at, mib in points if seconds * 5 / 6 <= at]
    before_mib, end_mib = statistics.median(after), statistics.median(end)
    ratio, mib = MEMORY_SLACK
    return {
        "start_mib": round(points[0][1], 1),
        "after_first_third_mib": round(before_mib, 1),
        "end_mib": round(end_mib, 1),
        "curve_mib": [round(mib) for _, mib in points[:: max(1, len(points) // 24)]],
        "is_flat": end_mib <= max(before_mib * ratio, before_mib + mib),
    }


# -- overhead


def overhead_part(args: argparse.Namespace) -> dict[str, Any]:
    """The same requests in process and over HTTP, in turns on an otherwise idle machine."""
    in_process, over_http = [], []
    with served(engine_options(args)) as server, make_engine(args) as engine:
        prompts = list(overhead_prompts(engine))
        for round_ in range(args.rounds + 1):  # the first warms up
            direct_s = time_in_process(engine, prompts)
            http_s = asyncio.run(time_over_http(server, prompts))
            if round_:
                in_process.append(direct_s)
                over_http.append(http_s)
    ratios = [http / direct for http, direct in zip(over_http, in_process, strict=True)]
    return {
        "clients": OVERHEAD_CLIENTS,
        "tokens": OVERHEAD_CLIENTS * OVERHEAD_REQUESTS * OVERHEAD_TOKENS,
        "in_process_s_per_token": statistics.median(in_process),
        "http_s_per_token": statistics.median(over_http),
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


def overhead_prompts(engine: Engine) -> Iterator[list[int]]:
    for number in range(OVERHEAD_CLIENTS):
        text = f"{SYSTEM} {TOPICS[number % len(TOPICS)]} {number}:"
        yield [*engine.bos_ids(), *engine.encode(text)]


def time_in_process(engine: Engine, prompts: list[list[int]]) -> float:
    """Seconds per output token; each caller submits its next request when one has ended."""
    params = SamplingParams(max_tokens=OVERHEAD_TOKENS, temperature=0, ignore_eos=True)

    def call(prompt: list[int]) -> None:
        for _ in range(OVERHEAD_REQUESTS):
            done = threading.Event()

            def listen(chunk: Chunk, done: threading.Event = done) -> None:
                if chunk.completion is not None or chunk.error is not None:
                    done.set()

            engine.submit(prompt, params, listen)
            done.wait()

    callers = [threading.Thread(target=call, args=(prompt,)) for prompt in prompts]
    started_s = time.perf_counter()
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return per_token(time.perf_counter() - started_s)


async def time_over_http(server: Server, prompts: list[list[int]]) -> float:
    async def call(prompt: list[int]) -> None:
        body = completion_body(prompt, OVERHEAD_TOKENS)
        for _ in range(OVERHEAD_REQUESTS):
            async with streamed(server, PATH, body) as stream:
                assert stream.status == 200, await stream.body()
                async for _ in stream.events():
                    pass

    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for prompt in prompts:
            group.create_task(call(prompt))
    return per_token(time.perf_counter() - started_s)


def per_token(seconds: float) -> float:
    return seconds / (OVERHEAD_CLIENTS * OVERHEAD_REQUESTS * OVERHEAD_TOKENS)


# -- first token


def first_token_part(args: argparse.Namespace) -> dict[str, Any]:
    """How long a cached prompt takes to its first token, and a step with one row."""
    with served(engine_options(args)) as server:
        ids = server.post("/tokenize", {"prompt": SYSTEM * 40})["tokens"][:FIRST_TOKEN_PROMPT]
        assert len(ids) == FIRST_TOKEN_PROMPT
        first_s, step_s = asyncio.run(first_tokens(server, ids))
    step = statistics.median(step_s)
    first = statistics.median(first_s)
    return {
        "prompt_tokens": FIRST_TOKEN_PROMPT,
        "first_token_s": quantiles(first_s),
        "step_s": step,
        "p50_in_steps": round(first / step, 3),
    }


async def first_tokens(server: Server, ids: list[int]) -> tuple[list[float], list[float]]:
    first_s, step_s = [], []
    for number in range(FIRST_TOKEN_TRIES + 2):  # the first two fill the cache and warm up
        started_s, last_s = time.perf_counter(), None
        async with streamed(server, PATH, completion_body(ids, 12)) as stream:
            async for at_s in stream.events():
                if number > 1:
                    if last_s is None:
                        first_s.append(at_s - started_s)
                    else:
                        step_s.append(at_s - last_s)
                last_s = at_s
    return first_s, step_s


# -- both


def completion_body(ids: list[int], max_tokens: int) -> bytes:
    return json.dumps(
        {
            "prompt": ids, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "stream": True,
        }
    ).encode()  # fmt: skip


def engine_options(args: argparse.Namespace) -> list[str]:
    options = ["--context-len", "2048", "--threads", str(args.threads)]
    return options if args.model is None else [*options, "--model", args.model]


def make_engine(args: argparse.Namespace) -> Engine:
    return Engine(args.model, context_len=2048, num_threads=args.threads)


def quantiles(values: list[float]) -> dict[str, float | int | None]:
    values = sorted(values)
    at = {name: int(share * (len(values) - 1)) for name, share in (("p50", 0.5), ("p99", 0.99))}
    found = {name: round(values[index], 5) if values else None for name, index in at.items()}
    return {**found, "count": len(values)}


PARTS = {"load": load_part, "overhead": overhead_part, "first_token": first_token_part}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of the load")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=768, help="of KV under load")
    parser.add_argument("--rounds", type=int, default=3, help="of the overhead")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the engine")
    parser.add_argument("--model", help="folder or .gguf file (default: the embedded model)")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, separated by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here, too")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "machine": platform.machine(), "cores": os.cpu_count(), "threads": args.threads,
        "model": args.model or "embedded",
    }  # fmt: skip
    with suppress(KeyboardInterrupt):
        for name in args.parts.split(","):
            result[name] = PARTS[name](args)
            print(json.dumps({name: result[name]}, indent=2), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result.get("load", {}).get("ok", True) else 1


if __name__ == "__main__":
    sys.exit(main())
