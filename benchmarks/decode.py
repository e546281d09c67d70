"""Where a step's time goes: decode steps with 1 to 64 rows, a shared prefix, and prefill.

    python benchmarks/decode.py [--threads N] [--cases decode1,decode16,prefill512,shared] [--parts]

Drives the real engine with greedy requests that ignore the end, and prints milliseconds a step by
phase (median); within the forward pass the layers and the head. `--parts` runs the layers kernel by
kernel, which costs 2 ms a step, to time products and attention with the write of KV apart.
"""

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from umbel.kernels.native import threads
from umbel.kernels.norm import RMSNorm
from umbel.runtime.engine import Engine
from umbel.runtime.params import SamplingParams
from umbel.runtime.roofline.times import StepTimes
from umbel.runtime.runner import ModelRunner
from umbel.runtime.step_context import StepContext

# name -> rows, tokens of the common prefix, tokens of each prompt of its own, tokens generated
CASES = {
    "decode1": (1, 0, 32, 128),
    "decode4": (4, 0, 32, 96),
    "decode16": (16, 0, 32, 64),
    "decode64": (64, 0, 32, 32),
    "shared": (64, 2048, 32, 24),
    "prefill512": (1, 0, 512, 1),
    "prefill1024": (1, 0, 1024, 1),
}
COLUMNS = (
    "plan", "forward", "layers", "head", "products", "attention", "sample", "commit", "total",
)  # fmt: skip


class PartClock:
    """Seconds of the parts of the forward pass, summed until they are taken."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start_s = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._seconds[part] += time.perf_counter() - start_s

        return call

    def take(self) -> dict[str, float]:
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds


class StepLog:
    """The times of every step of an engine, in milliseconds by column."""

    def __init__(self, engine: Engine) -> None:
        self.rows: list[dict[str, float]] = []
        self.num_tokens: list[int] = []
        self.clock = PartClock()
        self._engine = engine

    @contextmanager
    def recording(self, *, with_parts: bool) -> Iterator[None]:
        """Wraps the engine's parts as long as it lasts."""
        stats, runner = self._engine._stats, self._engine._parts.runner
        assert isinstance(runner, ModelRunner)
        model, recorded, record = runner.model, runner._recorded, stats.record

        def note(plan: Any, times: StepTimes, *, is_failed: bool) -> None:
            record(plan, times, is_failed=is_failed)
            self.num_tokens.append(plan.num_tokens)
            self.rows.append(_columns(times, self.clock.take()))

        timed = self.clock.timed
        with ExitStack() as undo:
            _swap(undo, stats, "record", note)
            _swap(undo, model, "layers", timed("layers", model.layers))
            _swap(undo, model, "logits", timed("head", model.logits))
            if with_parts:
                _swap(undo, runner, "_recorded", None)
                _swap(undo, StepContext, "attend", timed("attention", StepContext.attend))
                for layer in model._weights.layers:
                    for name in ("qkv", "output", "gate_up", "down"):
                        _swap(undo, layer, name, timed("products", getattr(layer, name)))
            elif recorded is not None:
                _swap(undo, recorded, "run", timed("layers", recorded.run))
            yield


def _swap(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _columns(times: StepTimes, parts: dict[str, float]) -> dict[str, float]:
    seconds = {
        "plan": times.plan_s,
        "forward": times.forward_s,
        **{name: parts.get(name, 0.0) for name in ("layers", "head", "products", "attention")},
        "sample": times.sample_s,
        "commit": times.commit_s,
        "total": times.total_s,
    }
    return {name: 1000 * value for name, value in seconds.items()}


def region_us(num_threads: int) -> float:
    """Microseconds to have all threads meet: a parallel region without work, on a thread of its
    own as the engine's is."""

    def measure() -> float:
        threads.use_threads(num_threads)
        rows = torch.zeros(0, 64, dtype=torch.bfloat16)
        norm = RMSNorm(torch.ones(64), 1e-5)
        best_s = float("inf")
        for _ in range(20):
            start_s = time.perf_counter()
            for _ in range(100):
                norm(rows)
            best_s = min(best_s, (time.perf_counter() - start_s) / 100)
        return 1e6 * best_s

    return threads.call_apart(measure)


def huge_mib() -> float:
    """MiB of this process in huge pages; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHuge")) / 1024


def run_case(
    engine: Engine, name: str, repetition: int, *, with_parts: bool
) -> tuple[dict[str, float], float, int]:
    """Median columns of the case's steps, tokens generated a second, steps counted."""
    num_rows, num_common, num_own, num_new = CASES[name]
    draw = random.Random(f"{name} {repetition}")

    def ids(count: int) -> list[int]:
        return [draw.randrange(1000, 48_000) for _ in range(count)]

    common = ids(num_common)
    params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
    if num_common:
        engine.generate(common, params, max_tokens=1)
    log = StepLog(engine)
    with log.recording(with_parts=with_parts):
        start_s = time.perf_counter()
        engine.generate_batch([common + ids(num_own) for _ in range(num_rows)], params)
        wall_s = time.perf_counter() - start_s
    # Of decoding, only the full steps; prefill is a mean over the chunks of the prompt.
    is_prefill = num_new == 1
    steps = [
        row for row, tokens in zip(log.rows, log.num_tokens, strict=True)
        if is_prefill or tokens == num_rows
    ]  # fmt: skip
    columns = {key: statistics.median(row[key] for row in steps) for key in COLUMNS}
    return columns, num_rows * (num_own if is_prefill else num_new) / wall_s, len(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--repeat", type=int, default=3, help="the best of so many is printed")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize", default="off")
    parser.add_argument("--parts", action="store_true", help="time products and attention apart")
    args = parser.parse_args()
    print(f"{args.threads} threads; an empty kernel takes {region_us(args.threads):.1f} us")
    options = {"dtype": args.dtype, "quantize": args.quantize, "speculate": "off"}
    with Engine(num_threads=args.threads, **options) as engine:
        engine.generate([1, 2, 3], temperature=0, max_tokens=2)
        runner = engine._parts.runner
        assert isinstance(runner, ModelRunner)
        size_mib = runner.model.weight_bytes / 2**20
        print(f"{size_mib:.0f} MiB of weights a step; {huge_mib():.0f} MiB in huge pages")
        print(f"ms a step (median), best of {args.repeat}")
        print(f"{'case':12}" + "".join(f"{name:>10}" for name in COLUMNS) + "     tok/s  steps")
        for name in args.cases.split(","):
            results = [
                run_case(engine, name, repetition, with_parts=args.parts)
                for repetition in range(args.repeat)
            ]
            columns, rate, num_steps = min(results, key=lambda result: result[0]["total"])
            cells = "".join(f"{columns[key]:10.2f}" for key in COLUMNS)
            print(f"{name:12}{cells}{rate:10.1f}{num_steps:7}", flush=True)


if __name__ == "__main__":
    main()
