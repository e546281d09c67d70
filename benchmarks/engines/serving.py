"""Servers of the engines, and the comparison's clients: the same bytes for each. Used by
`benchmarks/compare.py`, in its own process.

A request has a connection of its own; what came is looked at after the last byte, so that the
client takes little of the cores that it shares with the server.
"""

import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import measure  # found through the line above
import workloads

NAMES = ("http_c1", "http_c16", "agent_http")
MODEL = "compared"
_START_TIMEOUT_S = 600


@dataclass
class Endpoint:
    host: str
    port: int
    process: "subprocess.Popen[bytes]"
    start_s: float = 0.0  # until the first token


@dataclass
class Heard:
    """One answer."""

    text: str = ""
    num_tokens: int = 0
    sent_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)  # when each chunk with text came


def command(
    engine: str, python: str, model: str | None, port: int, threads: int, options: Sequence[str]
) -> list[str]:
    """What starts a server; raises `KeyError` for an engine that has none here."""
    place = ["--host", "127.0.0.1", "--port", str(port)]
    if engine == "umbel":
        own = [python, "-m", "umbel.cli.main", "serve", "--no-access-log", "--threads"]
        loaded = [] if model is None else ["--model", model]
        return [*own, str(threads), "--served-model-name", MODEL, *place, *loaded, *options]
    assert model is not None, "a peer's model was asked for before"
    return {
        "vllm": [
            python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--dtype",
            measure.torch_dtype(), "--max-model-len", "8192", "--served-model-name", MODEL,
            "--disable-uvicorn-access-log", "--distributed-executor-backend", "uni", *place,
        ],
        "llama.cpp": [  # llama-cpp-python's server: one request at a time
            python, "-m", "llama_cpp.server", "--model", model, "--model_alias", MODEL,
            "--n_ctx", "8192", "--n_threads", str(threads), "--n_threads_batch", str(threads),
            "--interrupt_requests", "False", *place,
        ],
    }[engine]  # fmt: skip


@contextmanager
def served(
    engine: str,
    python: str,
    model: str | None,
    threads: int,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
) -> Iterator[Endpoint]:
    """A server that has answered its first request; it is stopped in the end. `options`: more of
    them for `umbel serve`.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started_s = time.perf_counter()
    process = subprocess.Popen(
        command(engine, python, model, port, threads, options),
        env=dict(environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    endpoint = Endpoint("127.0.0.1", port, process)
    try:
        _wait_until_open(endpoint, started_s)
        asyncio.run(complete(endpoint, "One", 1))
        endpoint.start_s = time.perf_counter() - started_s
        yield endpoint
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_open(endpoint: Endpoint, started_s: float) -> None:
    while time.perf_counter() - started_s < _START_TIMEOUT_S:
        if endpoint.process.poll() is not None:
            raise SystemExit(f"the server ended at its start: {endpoint.process.args}")
        try:
            socket.create_connection((endpoint.host, endpoint.port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit(f"the server did not start within {_START_TIMEOUT_S} s")


def run(endpoint: Endpoint, name: str, repeats: int) -> dict[str, Any]:
    """The record of one workload: medians over `repeats` runs after one that does not count."""
    return asyncio.run(_agent(endpoint, repeats) if name == "agent_http" else
                       _streams(endpoint, int(name.removeprefix("http_c")), repeats))  # fmt: skip


async def _streams(endpoint: Endpoint, num_clients: int, repeats: int) -> dict[str, Any]:
    async def client(prompts: list[str], count: int) -> list[Heard]:
        return [await complete(endpoint, prompt, count, is_stream=True) for prompt in prompts]

    async def wave(repetition: object, count: int) -> list[Heard]:
        clients = workloads.clients(num_clients, repetition)
        answers = await asyncio.gather(*[client(prompts, count) for prompts in clients])
        return [heard for of_client in answers for heard in of_client]

    await wave("warm-up", measure.WARM_UP_TOKENS)
    walls, heard, num_tokens = [], [], 0
    for repetition in range(repeats):
        begin_s = time.perf_counter()
        wave_heard = await wave(repetition, workloads.CLIENT_TOKENS)
        walls.append(time.perf_counter() - begin_s)
        heard += wave_heard
        num_tokens = sum(answer.num_tokens for answer in wave_heard)
    gaps_s = [b - a for h in heard for a, b in zip(h.chunk_s, h.chunk_s[1:], strict=False)]
    return measure.rates(walls, num_tokens) | {
        "ttft_p50_s": statistics.median(h.chunk_s[0] - h.sent_s for h in heard),
        "inter_token_p50_s": statistics.median(gaps_s),
    }


async def _agent(endpoint: Endpoint, repeats: int) -> dict[str, Any]:
    async def question(work: workloads.AgentWork, text: str) -> int:
        prompts = [work.branch(text, approach) for approach in workloads.APPROACHES]
        branches = await asyncio.gather(
            *[complete(endpoint, prompt, work.branch_tokens) for prompt in prompts]
        )
        judge = work.judge(text, [branch.text for branch in branches])
        verdict = await complete(endpoint, judge, work.judge_tokens)
        return sum(heard.num_tokens for heard in [*branches, verdict])

    async def run_all(repetition: object) -> int:
        work = workloads.agent(repetition)
        return sum(await asyncio.gather(*[question(work, text) for text in work.questions]))

    await run_all("warm-up")
    walls, num_tokens = [], 0
    for repetition in range(repeats):
        begin_s = time.perf_counter()
        num_tokens = await run_all(repetition)
        walls.append(time.perf_counter() - begin_s)
    return measure.rates(walls, num_tokens)


async def complete(
    endpoint: Endpoint, prompt: str, max_tokens: int, *, is_stream: bool = False
) -> Heard:
    """One greedy completion of exactly `max_tokens` tokens; raises `RuntimeError` unless it is."""
    body: dict[str, Any] = {
        "model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
        "ignore_eos": True,
    }  # fmt: skip
    if is_stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {endpoint.host}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    heard = Heard(sent_s=time.perf_counter())
    writer.write(head.encode() + data)
    lines: list[tuple[float, bytes]] = []
    try:
        while line := await reader.readline():
            lines.append((time.perf_counter(), line))
    finally:
        writer.close()
    if not lines or b" 200 " not in lines[0][1]:
        raise RuntimeError(f"a completion failed: {b''.join(line for _, line in lines)!r:.500}")
    for at_s, line in lines:
        if line.startswith((b"data: {", b"{")):  # an event, or the whole answer
            _take(heard, at_s, json.loads(line.removeprefix(b"data: ")))
    if heard.num_tokens != max_tokens:
        raise RuntimeError(f"{heard.num_tokens} tokens came, {max_tokens} were asked for")
    return heard


def _take(heard: Heard, at_s: float, event: dict[str, Any]) -> None:
    for choice in event["choices"]:
        if choice["text"]:
            heard.text += choice["text"]
            heard.chunk_s.append(at_s)
    if event.get("usage"):
        heard.num_tokens = event["usage"]["completion_tokens"]
