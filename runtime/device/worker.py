"""The process of a rank other than 0: loads its part, then runs each step that rank 0 sends.

`python -m umbel.runtime.device.worker`, started by `workers`: messages come by standard input and
go by standard output. The end of the input is the end of the process.
"""

import json
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import IO

import msgspec
import numpy as np

from umbel.kernels.native.threads import use_threads
from umbel.runtime.config import EngineConfig
from umbel.runtime.device.collectives import Ranks, join_store
from umbel.runtime.device.executor import StepExecutor
from umbel.runtime.device.frames import read_frame, write_frame
from umbel.runtime.device.machine import make_machine
from umbel.runtime.device.rank import load_rank
from umbel.runtime.device.step_input import unpack_step
from umbel.runtime.loading.source import find_model

_EXIT_S = 10.0  # for what is under way when rank 0 is gone


class StartMessage(msgspec.Struct, forbid_unknown_fields=True):
    """What a worker is told first."""

    config: dict[str, str | int | float | bool | None]  # of `EngineConfig`
    device: str  # "cpu" or "cuda"
    rank: int
    port: int  # of the store


class Report(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a worker says: that it is loaded, or why it ends."""

    num_blocks: int | None = None  # there is room for
    error: str | None = None


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with messages
    messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, messages), daemon=True).start()
    try:
        _serve(messages, answers)
    except Exception as exc:
        report = Report(error=f"{type(exc).__name__}: {exc}")
        with suppress(OSError):  # rank 0 is gone as well
            write_frame(answers, msgspec.json.encode(report))
        sys.exit(1)


def _receive(stream: IO[bytes], messages: "queue.SimpleQueue[bytes | None]") -> None:
    while (data := read_frame(stream)) is not None:
        messages.put(data)
    messages.put(None)
    time.sleep(_EXIT_S)
    os._exit(1)  # the main thread waits for a rank that is gone


def _serve(messages: "queue.SimpleQueue[bytes | None]", answers: IO[bytes]) -> None:
    data = messages.get()
    if data is None:
        return
    start = msgspec.json.decode(data, type=StartMessage)
    executor = _load(start, messages, answers)
    if executor is None:
        return
    while (data := messages.get()) is not None:
        executor.execute(unpack_step(np.frombuffer(data, dtype=np.int32)))


def _load(
    start: StartMessage, messages: "queue.SimpleQueue[bytes | None]", answers: IO[bytes]
) -> StepExecutor | None:
    """None if rank 0 ended meanwhile."""
    config = replace(EngineConfig(), **start.config)  # type: ignore[arg-type]  # checked there
    if config.num_threads is not None:
        use_threads(config.num_threads)
    machine = make_machine(start.device, start.rank)
    group = Ranks(start.rank, config.tensor_parallel, machine.device)
    rank = load_rank(config, find_model(config.model), machine, group)
    write_frame(answers, msgspec.json.encode(Report(num_blocks=rank.num_blocks())))
    data = messages.get()
    if data is None:
        return None
    group.connect(join_store(start.port))
    return rank.executor(json.loads(data))


if __name__ == "__main__":
    main()
