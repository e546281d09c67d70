"""Cost as work grows: no curve should bend where it need not.

    python benchmarks/growth.py [--cases tree,queue,plan,rows,context] [--plot growth.svg]

* `tree`: 10 to 100,000 nodes: microseconds to match a prompt, to insert, to evict a block.
* `queue`: 10 to 10,000 waiting requests: microseconds a step for admission beside full places,
  for one admission, for adding and for cancelling one.
* `plan`: 1 to 512 decoding rows without a model: microseconds a step for plan and commit.
* `rows`, `context`: the real model: 1 to 512 rows, one row behind 128 to 8,192 tokens: ms a step.
The first three need no model and hardly depend on the machine's load.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from umbel.radix_cache import Namespace, RadixCache, TokenKind
from umbel.runtime.config import EngineConfig
from umbel.runtime.params import SamplingParams
from umbel.runtime.request import Request
from umbel.runtime.sampler import Sampled
from umbel.runtime.scheduler import Scheduler
from umbel.runtime.speculation.drafter import Drafter
from umbel.runtime.step import StepPlan

HERE = Namespace("growth")
TREE_SIZES = (10, 100, 1000, 10_000, 100_000)
QUEUE_SIZES = (10, 100, 1000, 10_000)
ROW_COUNTS = (1, 4, 16, 64, 256, 512)
CONTEXTS = (128, 512, 2048, 8192)
PREFIX, OWN = 192, 24  # tokens of a path in the tree: shared by some, and its own


@dataclass
class Curve:
    """One row of figures per size; `values` are in `unit`."""

    name: str
    unit: str
    sizes: list[int]
    values: list[float]


def median_us(work: Callable[[int], object], repeats: int) -> float:
    """Median time of `work(i)`, in microseconds."""
    times = []
    for number in range(repeats):
        begin_ns = time.perf_counter_ns()
        work(number)
        times.append(time.perf_counter_ns() - begin_ns)
    return statistics.median(times) / 1e3


# -- the tree


def grow_tree(cache: RadixCache, num_nodes: int, draw: random.Random) -> list[list[int]]:
    """Paths of a common and an own part, until the tree has so many nodes; some of the paths."""
    paths = []
    while cache.stats().num_nodes < num_nodes:
        path = path_of(draw.randrange(max(1, num_nodes // 16)), draw)
        insert(cache, path)
        if len(paths) < 512:
            paths.append(path)
    return paths


def path_of(prefix: int, draw: random.Random) -> list[int]:
    own = random.Random(prefix)
    shared = [own.randrange(40_000) for _ in range(PREFIX)]
    return shared + [draw.randrange(40_000) for _ in range(OWN)]


def insert(cache: RadixCache, path: list[int]) -> None:
    lease = cache.lease(HERE)
    passed = lease.advance(path, 0, len(path))
    if passed < len(path):
        lease.append(path, passed, len(path), kind=TokenKind.PROMPT)
    cache.commit_step()
    lease.release()


def tree_curves() -> list[Curve]:
    found: dict[str, list[float]] = {"match": [], "insert": [], "evict a block": []}
    for size in TREE_SIZES:
        draw = random.Random(size)
        cache = RadixCache(num_blocks=16 * size + 4096, block_size=16)
        paths = grow_tree(cache, size, draw)
        found["match"].append(
            median_us(lambda i: cache.num_matched(paths[i % len(paths)], HERE), 400)  # noqa: B023
        )
        new = [path_of(draw.randrange(max(1, size // 16)), draw) for _ in range(200)]
        found["insert"].append(median_us(lambda i: insert(cache, new[i]), 200))  # noqa: B023
        found["evict a block"].append(median_us(lambda _: cache.evict(1), min(200, size)))  # noqa: B023
    return [Curve(f"tree: {name}", "us", list(TREE_SIZES), v) for name, v in found.items()]


# -- the scheduler, without a model


def make_scheduler(num_running: int, num_blocks: int) -> Scheduler:
    config = EngineConfig(
        num_blocks=num_blocks, max_running=num_running, max_step_tokens=max(512, num_running)
    )
    cache = RadixCache(num_blocks, config.block_size)
    return Scheduler(cache, config, [0], drafter=Drafter())


def make_request(number: int, length: int, max_output: int) -> Request:
    draw = random.Random(number)
    tokens = path_of(number % 50, draw)[-length:]
    params = SamplingParams(temperature=0, ignore_eos=True)
    return Request(number, number, tokens, len(tokens), max_output, params, HERE)


def step(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan()
    assert plan is not None
    commit(scheduler, plan)
    return plan


def commit(scheduler: Scheduler, plan: StepPlan) -> None:
    draws = random.Random(plan.num_tokens)
    scheduler.commit(plan, [Sampled(draws.randrange(1, 40_000)) for _ in plan.samples], [])


def queue_curves() -> list[Curve]:
    found: dict[str, list[float]] = {
        "a step with full places": [], "a step that admits one": [], "add": [], "cancel": [],
    }  # fmt: skip
    for size in QUEUE_SIZES:
        scheduler = make_scheduler(16, 1 << 14)
        for number in range(16):
            scheduler.add(make_request(number, PREFIX + OWN, 1000))
        for _ in range(12):
            step(scheduler)
        requests = [make_request(100 + i, PREFIX + OWN, 1000) for i in range(size + 100)]
        for request in requests[:size]:
            scheduler.add(request)
        found["a step with full places"].append(median_us(lambda _: step(scheduler), 60))  # noqa: B023
        found["add"].append(median_us(lambda i: scheduler.add(requests[size + i]), 100))  # noqa: B023
        found["cancel"].append(
            median_us(lambda i: scheduler.abort(requests[size + i].request_id), 100)  # noqa: B023
        )
        times = []
        for number in range(8):
            scheduler.abort(number)
            begin_ns = time.perf_counter_ns()
            step(scheduler)
            times.append((time.perf_counter_ns() - begin_ns) / 1e3)
        found["a step that admits one"].append(statistics.median(times))
    return [Curve(f"queue: {name}", "us", list(QUEUE_SIZES), v) for name, v in found.items()]


def plan_curves() -> list[Curve]:
    found: dict[str, list[float]] = {"plan": [], "commit": [], "plan and commit a row": []}
    for rows in ROW_COUNTS:
        scheduler = make_scheduler(rows, 1 << 15)
        for number in range(rows):
            scheduler.add(make_request(number, PREFIX + OWN, 1000))
        while scheduler.num_waiting or step(scheduler).num_tokens != rows:
            if scheduler.num_waiting:
                step(scheduler)
        plans, commits = [], []
        for _ in range(60):
            begin_ns = time.perf_counter_ns()
            plan = scheduler.plan()
            middle_ns = time.perf_counter_ns()
            assert plan is not None
            choices = [Sampled(1 + number) for number in range(len(plan.samples))]
            begin_commit_ns = time.perf_counter_ns()
            scheduler.commit(plan, choices, [])
            commits.append((time.perf_counter_ns() - begin_commit_ns) / 1e3)
            plans.append((middle_ns - begin_ns) / 1e3)
        found["plan"].append(statistics.median(plans))
        found["commit"].append(statistics.median(commits))
        total = statistics.median(plans) + statistics.median(commits)
        found["plan and commit a row"].append(total / rows)
    return [Curve(f"rows: {name}", "us", list(ROW_COUNTS), v) for name, v in found.items()]


# -- the real model


def rows_curves() -> list[Curve]:
    """Prompts of two tokens, so that all rows enter in one step and decode together."""
    from decode import StepLog

    from umbel.runtime.engine import Engine

    most = max(ROW_COUNTS)
    totals, hosts = [], []
    with Engine(
        max_running=most, max_step_tokens=2 * most, kv_cache_bytes=1 << 30, speculate="off"
    ) as engine:
        for rows in ROW_COUNTS:
            draw = random.Random(rows)
            steps = []
            for _ in range(2):
                prompts = [[draw.randrange(1000, 48_000) for _ in range(2)] for _ in range(rows)]
                log = StepLog(engine)
                with log.recording(with_parts=False):
                    engine.generate_batch(prompts, temperature=0, max_tokens=10, ignore_eos=True)
                counted = zip(log.num_tokens, log.rows, strict=True)
                steps += [times for tokens, times in counted if tokens == rows]
            totals.append(statistics.median(times["total"] for times in steps))
            hosts.append(statistics.median(times["total"] - times["forward"] for times in steps))
    return [
        Curve("rows: a step", "ms", list(ROW_COUNTS), totals),
        Curve("rows: of it outside the forward pass", "ms", list(ROW_COUNTS), hosts),
    ]


def context_curves() -> list[Curve]:
    from decode import StepLog

    from umbel.runtime.engine import Engine

    steps_ms = []
    with Engine(speculate="off") as engine:
        for length in CONTEXTS:
            draw = random.Random(length)
            prompt = [draw.randrange(1000, 48_000) for _ in range(length - 24)]
            engine.generate(prompt, temperature=0, max_tokens=1, ignore_eos=True)
            log = StepLog(engine)
            with log.recording(with_parts=False):
                engine.generate(prompt, temperature=0, max_tokens=24, ignore_eos=True)
            steps_ms.append(statistics.median(times["total"] for times in log.rows))
    return [Curve("context: a step of one row", "ms", list(CONTEXTS), steps_ms)]


CASES: dict[str, Callable[[], list[Curve]]] = {
    "tree": tree_curves, "queue": queue_curves, "plan": plan_curves, "rows": rows_curves,
    "context": context_curves,
}  # fmt: skip


def print_curve(curve: Curve) -> None:
    cells = "".join(f"{size:>10,}" for size in curve.sizes)
    print(f"{'':44}{cells}")
    cells = "".join(f"{value:>10.1f}" for value in curve.values)
    print(f"{curve.name + ', ' + curve.unit:44}{cells}", flush=True)


def plot(curves: list[Curve], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    kinds = list(dict.fromkeys(curve.name.partition(":")[0] for curve in curves))
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(4.5 * len(kinds), 4), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        for curve in curves:
            if curve.name.startswith(kind + ":"):
                label = f"{curve.name.partition(': ')[2]}, {curve.unit}"
                axis.plot(curve.sizes, curve.values, marker="o", label=label)
        axis.set(xscale="log", yscale="log", xlabel=kind)
        axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--plot", type=Path, metavar="FILE", help="PNG or SVG; needs matplotlib")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    curves: list[Curve] = []
    for name in args.cases.split(","):
        for curve in CASES[name]():
            print_curve(curve)
            curves.append(curve)
    if args.plot is not None:
        plot(curves, args.plot)
    if args.json is not None:
        args.json.write_text(json.dumps([vars(curve) for curve in curves], indent=1))


if __name__ == "__main__":
    main()
