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
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import workloads  # found through the line above, in any Python


class Adapter(Protocol):
    """An engine that was started."""

    def generate(self, prompts: list[Any], max_tokens: list[int], schemas: list[Any]) -> list[int]:
        """Serve all at once, greedily; the number of tokens of each answer."""
        ...

    def can_do(self, name: str) -> bool: ...


def main(engine: str, start: Callable[[argparse.Namespace], Adapter]) -> None:
    """Start the engine, run what the command line asks for, write records after each workload."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workloads", default=",".join(workloads.NAMES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", help="what the engine loads")
    parser.add_argument("--started", type=float, default=time.time(), help="when, in epoch seconds")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    adapter = start(args)
    adapter.generate([workloads.token_ids(8, "start")], [1], [])
    start_s = time.time() - args.started
    records: list[dict[str, Any]] = []
    lengths: list[int] = []
    for name in args.workloads.split(","):
        if not adapter.can_do(name):
            continue
        if name == "json_unconstrained" and not lengths:
            work = workloads.constrained()
            lengths = adapter.generate(work.prompts, work.max_tokens, work.schemas)
        record = _measure(adapter, name, args.repeat, lengths)
        if name == "json_constrained":
            lengths = record["lengths"]
        record |= {"engine": engine, "workload": name, "start_s": start_s}
        record["peak_rss_mb"] = _peak_rss_mb()
        records.append(record)
        args.out.write_text(json.dumps(records, indent=1))


def _measure(adapter: Adapter, name: str, repeat: int, lengths: list[int]) -> dict[str, Any]:
    """Medians over `repeat` runs, after one that does not count."""
    walls: list[float] = []
    answers: list[int] = []
    for repetition in range(repeat + 1):
        label = "warm-up" if repetition == 0 else str(repetition)
        work = workloads.make(name, label, lengths)
        if work.warm_up:
            adapter.generate(work.warm_up, [1] * len(work.warm_up), [])
        begin_s = time.perf_counter()
        answers = _serve(adapter, work)
        walls.append(time.perf_counter() - begin_s)
    wall_s = statistics.median(walls[1:])
    tokens = sum(map(len, work.prompts)) if work.counts_prompt else sum(answers)
    return {
        "tok_s": tokens / wall_s,
        "wall_s": wall_s,
        "walls_s": walls[1:],
        "tokens": tokens,
        "lengths": answers,
    }


def _serve(adapter: Adapter, work: workloads.Work) -> list[int]:
    if not work.one_by_one:
        return adapter.generate(work.prompts, work.max_tokens, work.schemas)
    answers: list[int] = []
    for prompt, count, schema in zip(work.prompts, work.max_tokens, work.schemas, strict=True):
        answers += adapter.generate([prompt], [count], [schema])
    return answers


def _peak_rss_mb() -> float:
    """Peak resident memory of this process and of all below it, added up (Linux)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue  # it ended
            children.setdefault(parent, []).append(int(entry.name))
    total_kib, open_ids = 0, [os.getpid()]
    while open_ids:
        process_id = open_ids.pop()
        open_ids += children.get(process_id, [])
        try:
            lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
        except OSError:
            continue
        total_kib += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total_kib / 1024
