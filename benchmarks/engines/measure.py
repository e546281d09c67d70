"""Runs workloads on one engine, inside that engine's own Python, and writes one record for each.

Used by the scripts beside it, which are started by `benchmarks/compare.py`. Standard library only.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import workloads  # found through the line above, in any Python

WARM_UP_TOKENS = 8  # of each answer that does not count: every kind of step is met by then


@dataclass
class Answer:
    num_tokens: int
    text: str = ""  # where the prompt was a text


class Adapter(Protocol):
    """An engine that was started."""

    def generate(
        self, prompts: list[Any], max_tokens: list[int], schemas: list[Any]
    ) -> list[Answer]:
        """Serve all at once, greedily."""
        ...

    def can_do(self, name: str) -> bool: ...

    def watch(self) -> Callable[[], dict[str, Any]]:
        """Begin to measure what only this engine knows of itself; the result ends it."""
        ...


def main(
    engine: str,
    start: Callable[[argparse.Namespace], Any],
    agent: Callable[[Any, workloads.AgentWork], int] | None = None,
) -> None:
    """Start the engine, run what the command line asks for, write records after each workload.

    agent: runs the agent's calls in this process; the number of generated tokens.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--workloads", default=",".join(workloads.NAMES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", help="what the engine loads")
    parser.add_argument("--started", type=float, default=time.time(), help="when, in epoch seconds")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    adapter: Adapter = start(args)
    adapter.generate([workloads.token_ids(8, "start")], [1], [])
    start_s = time.time() - args.started
    records: list[dict[str, Any]] = []
    lengths: list[int] = []
    for name in args.workloads.split(","):
        if not adapter.can_do(name):
            continue
        if name.startswith("agent"):
            assert agent is not None, "an engine that can do the agent says how"
            record = _measure_agent(adapter, agent, args.repeats)
        else:
            if name == "json_unconstrained" and not lengths:
                work = workloads.constrained()
                found = adapter.generate(work.prompts, work.max_tokens, work.schemas)
                lengths = [answer.num_tokens for answer in found]
            record = _measure(adapter, name, args.repeats, lengths)
        if name == "json_constrained":
            lengths = record["lengths"]
        record |= {"engine": engine, "workload": name, "start_s": start_s}
        record["peak_rss_mb"] = peak_rss_mb(os.getpid())
        records.append(record)
        args.out.write_text(json.dumps(records, indent=1))


def _measure(adapter: Adapter, name: str, repeats: int, lengths: list[int]) -> dict[str, Any]:
    """Medians over `repeats` runs, after a short one that does not count."""
    work = workloads.make(name, "warm-up", lengths)
    work.max_tokens = [min(count, WARM_UP_TOKENS) for count in work.max_tokens]
    _serve(adapter, work)
    walls, answers = [], []
    watched = adapter.watch()
    for repetition in range(repeats):
        work = workloads.make(name, repetition, lengths)
        if work.warm_up:
            adapter.generate(work.warm_up, [1] * len(work.warm_up), [])
        begin_s = time.perf_counter()
        answers = _serve(adapter, work)
        walls.append(time.perf_counter() - begin_s)
    counts = [answer.num_tokens for answer in answers]
    num_tokens = sum(map(len, work.prompts)) if work.counts_prompt else sum(counts)
    return rates(walls, num_tokens) | {"lengths": counts} | watched()


def _measure_agent(
    adapter: Adapter, agent: Callable[[Any, workloads.AgentWork], int], repeats: int
) -> dict[str, Any]:
    agent(adapter, workloads.agent("warm-up"))
    walls, num_tokens = [], 0
    watched = adapter.watch()
    for repetition in range(repeats):
        work = workloads.agent(repetition)
        begin_s = time.perf_counter()
        num_tokens = agent(adapter, work)
        walls.append(time.perf_counter() - begin_s)
    return rates(walls, num_tokens) | watched()


def rates(walls_s: list[float], num_tokens: int) -> dict[str, Any]:
    """The part of a record that is the same for all: the median of some runs of equal work."""
    wall_s = statistics.median(walls_s)
    return {
        "tok_s": num_tokens / wall_s, "wall_s": wall_s, "walls_s": walls_s, "tokens": num_tokens,
    }  # fmt: skip


def _serve(adapter: Adapter, work: workloads.Work) -> list[Answer]:
    if not work.one_by_one:
        return adapter.generate(work.prompts, work.max_tokens, work.schemas)
    answers: list[Answer] = []
    for prompt, count, schema in zip(work.prompts, work.max_tokens, work.schemas, strict=True):
        answers += adapter.generate([prompt], [count], [schema])
    return answers


def torch_dtype() -> str:
    """What an engine over torch's products is fastest with here: without instructions for bfloat16
    torch computes that one element at a time."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        flags = []
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(flags) else "float32"


def peak_rss_mb(process_id: int) -> float:
    """Peak resident memory of a process and of all below it, added up (Linux)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue  # it ended
            children.setdefault(parent, []).append(int(entry.name))
    total_kib, open_ids = 0, [process_id]
    while open_ids:
        process_id = open_ids.pop()
        open_ids += children.get(process_id, [])
        try:
            lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
        except OSError:
            continue
        total_kib += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total_kib / 1024
