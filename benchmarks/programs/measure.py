"""Runs one workload in one way, and notes what came out and what it cost."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.programs.optimum import CacheUse, Fed, Recorder, cache_use
from benchmarks.programs.workload import Workload

from umbel.frontend_dsl import Client, Program, State
from umbel.frontend_dsl.connection import Connection
from umbel.runtime.engine import Engine

Outcome = tuple[Any, ...]  # of one case: its result, and the variables of all its branches


@dataclass(frozen=True)
class Run:
    """One way of running a workload. Tokens are rows that were fed to the model."""

    wall_s: float
    num_calls: int
    num_steps: int
    num_generated: int
    num_drafted: int
    cache: CacheUse
    outcomes: Sequence[Outcome]
    requests: Sequence[Fed]

    @property
    def results(self) -> list[Any]:
        return [outcome[0] for outcome in self.outcomes]


def run_once(
    engine: Engine,
    workload: Workload,
    program: Program,
    *,
    max_in_flight: int,
    guesses: bool = True,
) -> Run:
    """With an empty cache. Raises the error of the first case that fails.

    Without `guesses` nothing is fed but what was asked for, so that the tokens computed can be
    compared with those of a trie.
    """
    recorder = Recorder(engine, guesses=guesses)
    engine.reset_cache()
    before = engine.stats()
    states, wall_s = timed(recorder, workload, program, max_in_flight)
    after = engine.stats()
    num_computed = after.num_computed_tokens - before.num_computed_tokens
    return Run(
        wall_s=wall_s,
        num_calls=num_calls(states),
        num_steps=after.num_steps - before.num_steps,
        num_generated=after.num_generated_tokens - before.num_generated_tokens,
        num_drafted=after.num_drafted_tokens - before.num_drafted_tokens,
        cache=cache_use(recorder.sequences(), num_computed),
        outcomes=[outcome(state) for state in states],
        requests=recorder.requests,
    )


def timed(
    client: Client | Connection, workload: Workload, program: Program, max_in_flight: int
) -> tuple[list[State], float]:
    """The states of all cases, and the seconds. Raises the error of the first that failed, and
    `AssertionError` for an answer that cannot be one.
    """
    start_s = time.perf_counter()
    states = program.run_batch(client, workload.items, max_in_flight=max_in_flight)
    wall_s = time.perf_counter() - start_s
    for state in states:
        if state.error is not None:
            raise state.error
        assert workload.is_valid(state.result), f"{workload.name}: {state.result!r}"
    return states, wall_s


def median_run(runs: Sequence[Run]) -> Run:
    """The run whose time is the (lower) median."""
    middle = statistics.median_low(run.wall_s for run in runs)
    return next(run for run in runs if run.wall_s == middle)


def outcome(state: State) -> Outcome:
    return (state.result, *(sorted(one.variables().items()) for one in with_branches(state)))


def num_calls(states: Sequence[State]) -> int:
    return sum(len(one.calls) for state in states for one in with_branches(state))


def num_right(workload: Workload, results: Sequence[Any]) -> int | None:
    judge: Callable[[Any, Any], bool] | None = workload.is_right
    if judge is None:
        return None
    return sum(
        judge(case.expected, result) for case, result in zip(workload.cases, results, strict=True)
    )


def with_branches(state: State) -> list[State]:
    found = [state]
    for one in found:
        found += one.branches
    return found
