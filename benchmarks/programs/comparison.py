"""The three ways of running a workload, side by side: what the table and the JSON file say."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.programs.measure import Run, median_run, num_right, run_once
from benchmarks.programs.ties import widest_gap
from benchmarks.programs.workload import Workload
from rich import box
from rich.table import Table

from umbel.runtime.engine import Engine

LOWEST_SHARE = 0.95  # of the best hit rate


@dataclass(frozen=True)
class Comparison:
    """`compiled` and `eager` share one engine, all cases at the same time; `alone` is the eager
    program on an engine without cache, one request after the other; None: it was left out.
    """

    workload: Workload
    compiled: Run
    eager: Run
    alone: Run | None
    widest_gap: float | None = None  # where outputs part: see `ties.widest_gap`

    @property
    def num_same(self) -> int:
        """Cases with the same texts in every branch, all ways."""
        rows = zip(*(run.outcomes for run in self.runs.values()), strict=True)
        return sum(all(outcome == row[0] for outcome in row) for row in rows)

    @property
    def is_same(self) -> bool:
        return self.num_same == len(self.workload.cases)

    @property
    def reuses_enough(self) -> bool:
        shares = (run.cache.share_of_best for run in (self.compiled, self.eager))
        return min(shares) >= LOWEST_SHARE

    @property
    def runs(self) -> dict[str, Run]:
        ways = {"compiled": self.compiled, "eager": self.eager, "one_at_a_time": self.alone}
        return {name: run for name, run in ways.items() if run is not None}

    @property
    def summary(self) -> str:
        times = ", ".join(f"{name} {run.wall_s:.2f} s" for name, run in self.runs.items())
        return f"{self.workload.name}: {times}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.workload.name,
            "cases": len(self.workload.cases),
            "same": self.num_same,
            "widest_gap": self.widest_gap,
            "right": num_right(self.workload, self.compiled.results),
            **{name: _numbers(run) for name, run in self.runs.items()},
        }


def compare(engine: Engine, plain: Engine | None, workload: Workload, repeats: int) -> Comparison:
    """`engine` has a cache, `plain` runs one request at a time without; see `Comparison`.

    The first runs are not timed: graphs and constraints are made then. They feed no guesses, and
    what they computed is what is compared with the best cache.
    """
    program, eager = workload.program, workload.program.eager()
    width = len(workload.cases)
    counted = [
        run_once(engine, workload, one, max_in_flight=width, guesses=False).cache
        for one in (program, eager)
    ]
    compiled_runs, eager_runs = [], []
    for _ in range(repeats):  # in turns: what else the machine does meets both
        compiled_runs.append(run_once(engine, workload, program, max_in_flight=width))
        eager_runs.append(run_once(engine, workload, eager, max_in_flight=width))
    compiled, eagerly = (
        replace(median_run(runs), cache=cache)
        for runs, cache in zip((compiled_runs, eager_runs), counted, strict=True)
    )
    alone = None if plain is None else run_once(plain, workload, eager, max_in_flight=1)
    made = Comparison(workload, compiled, eagerly, alone)
    if made.is_same:
        return made
    others = (run.requests for name, run in made.runs.items() if name != "compiled")
    gaps = [widest_gap(engine, made.compiled.requests, requests) for requests in others]
    return replace(made, widest_gap=max((gap for gap in gaps if gap is not None), default=None))


def table(comparisons: Sequence[Comparison]) -> Table:
    """Markdown when it is printed wide enough."""
    columns = (
        "program", "cases", "calls", "steps, eager", "compiled", "eager", "one at a time", "ratio",
        "tokens computed", "needed", "reused", "of the best", "same", "right",
    )  # fmt: skip
    made = Table(*columns, box=box.MARKDOWN)
    for one in comparisons:
        made.add_row(one.workload.name, *_row(one))
    return made


def _row(one: Comparison) -> list[str]:
    cache, num_cases = one.compiled.cache, len(one.workload.cases)
    right = num_right(one.workload, one.compiled.results)
    alone = one.alone
    return [
        f"{num_cases}",
        f"{one.compiled.num_calls}",
        f"{one.compiled.num_steps}, {one.eager.num_steps}",
        f"{one.compiled.wall_s:.2f} s",
        f"{one.eager.wall_s:.2f} s",
        "" if alone is None else f"{alone.wall_s:.1f} s",
        "" if alone is None else f"{alone.wall_s / one.compiled.wall_s:.1f}x",
        f"{cache.computed:,}",
        f"{cache.needed:,}",
        f"{cache.hit_rate:.1%}",
        f"{cache.share_of_best:.1%}",
        f"{one.num_same}/{num_cases}",
        "" if right is None else f"{right}/{num_cases}",
    ]


def tie_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Where outputs are not the same, how near to each other the tokens were where they part."""
    return [
        f"{one.workload.name}: where outputs part, the log-probabilities of the two tokens differ "
        f"by {one.widest_gap:.3f} at most"
        for one in comparisons
        if one.widest_gap is not None
    ]


def total_line(comparisons: Sequence[Comparison]) -> str:
    """Sums over the suite."""
    ways: dict[str, float] = {}
    for one in comparisons:
        for name, run in one.runs.items():
            ways[name] = ways.get(name, 0.0) + run.wall_s
    times = ", ".join(f"{seconds:.1f} s {name}" for name, seconds in ways.items())
    computed = sum(one.compiled.cache.computed for one in comparisons)
    fewest = sum(one.compiled.cache.fewest for one in comparisons)
    return f"all programs: {times}; {computed:,} tokens computed, {fewest:,} at the fewest"


def _numbers(run: Run) -> dict[str, Any]:
    cache = run.cache
    return {
        "wall_s": run.wall_s,
        "calls": run.num_calls,
        "steps": run.num_steps,
        "tokens_generated": run.num_generated,
        "tokens_drafted": run.num_drafted,
        "tokens_computed": cache.computed,
        "tokens_reused": cache.needed - cache.computed,
        "tokens_needed": cache.needed,
        "tokens_fewest": cache.fewest,
        "hit_rate": cache.hit_rate,
        "best_hit_rate": cache.best_hit_rate,
        "share_of_best": cache.share_of_best,
    }
