"""The processes of the ranks other than 0, as rank 0 sees them: started, sent steps, watched.

When one ends, all end: a group with a rank missing can compute nothing. Every step from then on
fails with what that rank said.
"""

import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

import umbel
from umbel.runtime.config import EngineConfig
from umbel.runtime.device.frames import read_frame, write_frame
from umbel.runtime.device.step_input import StepInput, pack_step
from umbel.runtime.device.worker import Report, StartMessage
from umbel.runtime.errors import EngineError, ModelError

logger = logging.getLogger(__name__)

_REASON_S = 5.0  # for the watchers to learn why a rank ended
_CLOSE_S = 5.0


@dataclass(slots=True)
class _Worker:
    rank: int
    process: "subprocess.Popen[bytes]"
    watcher: threading.Thread | None = None


class Workers:
    """Used by the engine's thread; each worker has a thread that watches it."""

    def __init__(
        self, config: EngineConfig, device: str, port: int, on_failure: Callable[[], None]
    ) -> None:
        """Start ranks 1 .. tensor_parallel - 1. on_failure: called once by a watching thread."""
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._has_failed = threading.Event()
        self._is_closing = False
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        for rank in range(1, config.tensor_parallel):
            worker = _Worker(rank, _start_process())
            self._workers.append(worker)
            worker.watcher = threading.Thread(
                target=self._watch, args=(worker,), name=f"umbel-rank-{rank}", daemon=True
            )
            worker.watcher.start()
            message = StartMessage(asdict(config), device, rank, port)
            self._write(worker, msgspec.json.encode(message))

    @property
    def processes(self) -> "list[subprocess.Popen[bytes]]":
        return [worker.process for worker in self._workers]

    def wait_until_loaded(self) -> int:
        """The blocks that all of them have room for. Raises `ModelError` if one cannot load."""
        fewest: int | None = None
        for _ in self._workers:
            report = self._reports.get()
            if report.num_blocks is None:
                self.close()
                raise ModelError(f"a rank could not load the model: {report.error}")
            fewest = report.num_blocks if fewest is None else min(fewest, report.num_blocks)
        assert fewest is not None, "there are two ranks or more"
        return fewest

    def begin(self, num_blocks: int) -> None:
        """Tell them the size of the pool; then they connect, and wait for steps."""
        for worker in self._workers:
            self._write(worker, msgspec.json.encode(num_blocks))

    def send(self, step: StepInput) -> None:
        """Raises `EngineError` once a rank has ended."""
        if self._failure is not None:
            raise EngineError(self._failure)
        data = pack_step(step).tobytes()
        for worker in self._workers:
            self._write(worker, data)

    def ended(self, exc: BaseException) -> EngineError:
        """After a step failed on rank 0: nothing can go on. The error that tells why."""
        self._has_failed.wait(_REASON_S)
        self._fail(f"rank 0 failed: {type(exc).__name__}: {exc}")
        return EngineError(self._failure or "")

    def close(self) -> None:
        """End all ranks. Idempotent."""
        self._is_closing = True
        for worker in self._workers:
            stdin = worker.process.stdin
            assert stdin is not None
            with suppress(OSError):
                stdin.close()
        for worker in self._workers:
            try:
                worker.process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            if worker.watcher is not None and worker.watcher is not threading.current_thread():
                worker.watcher.join()

    def _write(self, worker: _Worker, data: bytes) -> None:
        assert worker.process.stdin is not None
        try:
            write_frame(worker.process.stdin, data)
        except (OSError, ValueError) as exc:
            raise self.ended(exc) from exc

    def _watch(self, worker: _Worker) -> None:
        """Until the worker's output ends."""
        assert worker.process.stdout is not None
        reason = None
        with worker.process.stdout as stream:
            while (data := read_frame(stream)) is not None:
                report = msgspec.json.decode(data, type=Report)
                reason = report.error
                self._reports.put(report)
        status = worker.process.wait()
        if self._is_closing:
            return
        if reason is None:
            reason = f"its process ended with status {status}"
            self._reports.put(Report(error=f"rank {worker.rank}: {reason}"))
        self._fail(f"rank {worker.rank} of the tensor-parallel group failed: {reason}")

    def _fail(self, reason: str) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = f"{reason}; the engine cannot compute any more: start it again"
        logger.error("%s", self._failure)
        self._has_failed.set()
        self._is_closing = True
        for worker in self._workers:
            worker.process.kill()
        self._on_failure()


def _start_process() -> "subprocess.Popen[bytes]":
    root = str(Path(umbel.__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", "umbel.runtime.device.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
