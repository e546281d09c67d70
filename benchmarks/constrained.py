"""What a constraint costs a step: 32 JSON-schema rows beside the same rows unconstrained.

    python benchmarks/constrained.py [--threads N] [--repeats 3] [--max-tokens 200]

The requests of the comparison (`workloads.constrained`: 8 schemas, 4 subjects), then the same
prompts with as many tokens each and no schema, in turns. Twice: row by row, where neither side
feeds forced tokens or guesses ahead, so that every step has the same rows on both sides; and as an
engine does it by default. Prints milliseconds a step by phase and the ratios. A forced token's row
needs no logits, so the constrained side may take less.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
import workloads
from decode import StepLog

from umbel.runtime.engine import Engine
from umbel.runtime.errors import UmbelError
from umbel.runtime.outputs import Result
from umbel.runtime.params import SamplingParams

PHASES = ("plan", "forward", "sample", "commit", "total")


@dataclass
class Run:
    """Some requests served at once: steps as [rows, milliseconds by phase]."""

    lengths: list[int]
    wall_s: float
    steps: list[tuple[int, dict[str, float]]]

    def median_ms(self, rows: int, phase: str) -> float:
        return statistics.median(times[phase] for count, times in self.steps if count == rows)


def serve(engine: Engine, work: workloads.Work) -> Run:
    params = [
        SamplingParams(temperature=0, max_tokens=count, json_schema=schema)
        if schema is not None
        else SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        for count, schema in zip(
            work.max_tokens, work.schemas or [None] * len(work.prompts), strict=True
        )
    ]
    engine.reset_cache()
    one_token = SamplingParams(temperature=0, max_tokens=1)
    check(engine.generate_batch(work.prompts, one_token))  # prompts are cached on both sides
    log = StepLog(engine)
    with log.recording(with_parts=False):
        begin_s = time.perf_counter()
        results = check(engine.generate_batch(work.prompts, params))
        wall_s = time.perf_counter() - begin_s
    lengths = [len(result.token_ids) for result in results]
    return Run(lengths, wall_s, list(zip(log.num_tokens, log.rows, strict=True)))


def check(results: list[Result | UmbelError]) -> list[Result]:
    for result in results:
        if isinstance(result, UmbelError):
            raise result
    return [result for result in results if isinstance(result, Result)]


def pairs(engine: Engine, args: argparse.Namespace) -> list[tuple[Run, Run]]:
    """(constrained, unconstrained) runs; what comes before the first meets every mask once."""
    found = []
    for repetition in range(args.repeats + 1):
        work = workloads.constrained()
        work.max_tokens = [min(count, args.max_tokens) for count in work.max_tokens]
        constrained = serve(engine, work)
        plain = serve(engine, workloads.unconstrained(constrained.lengths))
        if repetition:
            found.append((constrained, plain))
    return found


def print_row_by_row(found: list[tuple[Run, Run]]) -> None:
    rows = len(found[0][0].lengths)
    print(f"row by row, steps of all {rows} rows, ms (median)")
    print(f"{'':16}" + "".join(f"{phase:>10}" for phase in PHASES))
    for name, side in (("constrained", 0), ("unconstrained", 1)):
        medians = {
            phase: statistics.median(pair[side].median_ms(rows, phase) for pair in found)
            for phase in PHASES
        }
        print(f"{name:16}" + "".join(f"{medians[phase]:10.2f}" for phase in PHASES))
    ratios = [c.median_ms(rows, "total") / p.median_ms(rows, "total") for c, p in found]
    print(f"time per step, constrained / unconstrained: {statistics.median(ratios):.3f} "
          f"({min(ratios):.3f} to {max(ratios):.3f})")  # fmt: skip


def print_by_default(found: list[tuple[Run, Run]]) -> None:
    print("by default (forced tokens and guesses ride along), all steps")
    for name, side in (("constrained", 0), ("unconstrained", 1)):
        runs = [pair[side] for pair in found]
        wall_s = statistics.median(run.wall_s for run in runs)
        num_tokens = sum(runs[0].lengths)
        print(f"{name:16}{num_tokens / wall_s:10.1f} tok/s{len(runs[0].steps):6} steps")
    ratios = [c.wall_s / p.wall_s for c, p in found]
    print(f"time for the same tokens, constrained / unconstrained: "
          f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=200)
    args = parser.parse_args()
    with Engine(num_threads=args.threads, speculate="off", jump_forward=False) as engine:
        print_row_by_row(pairs(engine, args))
    with Engine(num_threads=args.threads) as engine:
        print_by_default(pairs(engine, args))


if __name__ == "__main__":
    main()
