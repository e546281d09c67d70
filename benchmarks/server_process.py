"""A server as a process, and a client of its streams that can leave, dawdle and send nonsense.

Used by `server_load.py`. The client reads lines from a socket: each event is a line, and what
chunked encoding puts between them is skipped.
"""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DONE = b"data: [DONE]"


class Server:
    """A running `umbel serve`."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port

    def rss_mib(self) -> float:
        """Memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def metric(self, name: str) -> float:
        """The value of a metric, named with its labels as in the text."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name):
                    return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def post(self, path: str, body: Any = None) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"content-type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read())

    def stop(self) -> int:
        """Drain; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextmanager
def served(options: Sequence[str]) -> Iterator[Server]:
    """A server on a port of its own, which is killed in the end if it still runs."""
    command = [sys.executable, "-m", "umbel.cli.main", "serve", "--port", "0", "--no-access-log"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start")
        yield Server(process, found[0])
    finally:
        process.kill()
        process.communicate()


@dataclass(slots=True)
class Stream:
    """An answer that is being read."""

    status: int
    sent_s: float  # when the request was sent
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_done: bool = False

    async def events(self) -> AsyncIterator[float]:
        """The time of each event but the last, until the server ends the answer."""
        while line := await self.reader.readline():
            if line.startswith(DONE):
                self.is_done = True
                return
            if line.startswith(b"data: "):
                yield time.perf_counter()

    async def body(self) -> bytes:
        return await self.reader.read()

    def leave(self) -> None:
        """Break the connection in the middle."""
        self.writer.transport.abort()


@asynccontextmanager
async def streamed(
    server: Server, path: str, body: bytes, *, buffer_bytes: int = 1 << 16
) -> AsyncIterator[Stream]:
    """Send a request on a connection of its own and read the head of its answer."""
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=buffer_bytes)
    try:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {server.host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        sent_s = time.perf_counter()
        writer.write(head.encode() + body)
        await writer.drain()
        status = await reader.readline()
        while (await reader.readline()).strip():
            pass
        code = int(status.split(b" ")[1]) if status else 0
        yield Stream(code, sent_s, reader, writer)
    finally:
        writer.close()
