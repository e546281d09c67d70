"""The request dump: what came in, as lines of JSON that `umbel replay` sends again."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import msgspec

logger = logging.getLogger(__name__)


class DumpedRequest(msgspec.Struct, kw_only=True):
    """One line. `time_s` is a Unix time; headers and keys are not kept."""

    time_s: float
    method: str
    path: str
    body: msgspec.Raw


class RequestDump:
    """Appends to a file from a thread of its own, in order of arrival."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="umbel-dump")
        self._encoder = msgspec.json.Encoder()

    def add(self, method: str, path: str, body: bytes) -> None:
        """Keep a request whose body is JSON."""
        self._writer.submit(self._write, time.time(), method, path, body)

    def close(self) -> None:
        """Write what is left. Idempotent."""
        self._writer.shutdown(wait=True)
        self._file.close()

    def _write(self, time_s: float, method: str, path: str, body: bytes) -> None:
        raw = msgspec.Raw(msgspec.json.format(body, indent=-1))  # a line holds no line break
        line = DumpedRequest(time_s=time_s, method=method, path=path, body=raw)
        try:
            self._file.write(self._encoder.encode(line) + b"\n")
            self._file.flush()
        except OSError:
            logger.exception("a request could not be written to the dump")
