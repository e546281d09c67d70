"""What the memory of a process consists of, from the imports to the last workload of `compare.py`.

    python benchmarks/memory.py [--workloads decode_b1,prefill_4096 | all] [--repeats N]

Prints a line for each stage, in MiB: the peak of resident memory within it, and at its end resident
memory in all, mapped files (shared with others, and with what is on disk), pages of the KV pool
that were written, weights, what the C heap has handed out, and the rest: Python's own heap, stacks,
compiled code, and what the C heap keeps free. The last column is the most that this can be. Linux
with glibc.
"""

import argparse
import ctypes
import mmap
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import workloads

if TYPE_CHECKING:
    from umbel.runtime.engine import Engine

sys.path.insert(0, str(Path(__file__).resolve().parent / "engines"))

_MIB = 2**20
_IN_PROCESS = tuple(name for name in workloads.NAMES if "http" not in name)
_JSON_TOKENS = 100  # of each answer that `json_unconstrained` repeats
_IDLE_S = 2.0  # for what is put off until there is nothing to do
_COLUMNS = ("peak", "resident", "files", "KV pool", "weights", "heap", "rest", "heap free")


class _MallocInfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


_libc = ctypes.CDLL(None)
_libc.mallinfo2.restype = _MallocInfo
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class Ledger:
    """Prints lines. `pieces` are known once there is an engine: (address, bytes) of the pool."""

    def __init__(self) -> None:
        self.pool: list[tuple[int, int]] = []
        self.weight_bytes = 0
        self.peak_bytes = 0
        print("".join([f"{'MiB':24}", *(f"{name:>10}" for name in _COLUMNS)]))
        _forget_peak()

    def add(self, stage: str) -> None:
        """A line on what happened since the last one."""
        status = _status()
        info = _libc.mallinfo2()
        pool = sum(_resident_bytes(address, size) for address, size in self.pool)
        reserved = sum(size for _, size in self.pool)
        heap = info.uordblks + info.hblkhd - reserved
        resident, files = status["VmRSS"], status["RssFile"] + status["RssShmem"]
        rest = resident - files - pool - self.weight_bytes - heap
        self.peak_bytes = max(self.peak_bytes, status["VmHWM"])
        values = (
            status["VmHWM"], resident, files, pool, self.weight_bytes, heap, rest, info.fordblks,
        )  # fmt: skip
        print("".join([f"{stage:24}", *(f"{v / _MIB:10,.0f}" for v in values)]), flush=True)
        _forget_peak()


def _status() -> dict[str, int]:
    """The process's own figures, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = (line.split() for line in lines if line.endswith("kB"))
    return {name.rstrip(":"): 1024 * int(value) for name, value, _ in fields}


def _forget_peak() -> None:
    """The peak is of what comes from now on: see proc_pid_clear_refs(5)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _resident_bytes(address: int, size: int) -> int:
    """How much of a piece of memory was ever written."""
    page = mmap.PAGESIZE
    start, stop = address // page * page, -(-(address + size) // page) * page
    states = (ctypes.c_ubyte * ((stop - start) // page))()
    if _libc.mincore(start, stop - start, states):
        raise OSError("mincore failed")
    return page * sum(state & 1 for state in states)


def _serve(engine: "Engine", name: str, repetition: int) -> None:
    """A workload of `compare.py`, as its adapter of this engine serves it."""
    from umbel_engine import UmbelAdapter, think

    if name == "agent_program":
        think.run(engine, work=workloads.agent(repetition))
        return
    work = workloads.make(name, repetition, [_JSON_TOKENS] * len(workloads.constrained().prompts))
    adapter = UmbelAdapter(engine)
    if work.warm_up:
        adapter.generate(work.warm_up, [1] * len(work.warm_up), [])
    adapter.generate(work.prompts, work.max_tokens, work.schemas)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workloads", default="all", help=f"of {', '.join(_IN_PROCESS)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kv-cache-bytes", type=int)
    args = parser.parse_args()
    names = _IN_PROCESS if args.workloads == "all" else args.workloads.split(",")
    ledger = Ledger()
    ledger.add("python")

    from umbel.runtime.config import EngineConfig  # imports are one of the stages
    from umbel.runtime.engine import Engine
    from umbel.runtime.params import SamplingParams
    from umbel.runtime.parts import load_apart
    from umbel.runtime.runner import ModelRunner

    ledger.add("imports")
    parts = load_apart(EngineConfig(kv_cache_bytes=args.kv_cache_bytes))
    assert isinstance(parts.runner, ModelRunner), "a model on the CPU"
    cache, model = parts.runner.cache, parts.runner.model
    ledger.pool = [(pool.data_ptr(), pool.nbytes) for pool in (cache.k, cache.v)]
    ledger.weight_bytes = model.weight_bytes + model.embedding_bytes
    ledger.add("model")
    with Engine.from_parts(parts) as engine:
        engine.generate(workloads.token_ids(8, "start"), SamplingParams(max_tokens=1))
        ledger.add("first token")
        time.sleep(_IDLE_S)
        ledger.add("idle")
        engine.gauge()
        ledger.add("gauge")
        for name in names:
            for repetition in range(args.repeats):
                _serve(engine, name, repetition)
            ledger.add(name)
        time.sleep(_IDLE_S)
        ledger.add("idle")
    print(f"peak of all: {ledger.peak_bytes / _MIB:,.0f} MiB")


if __name__ == "__main__":
    main()
