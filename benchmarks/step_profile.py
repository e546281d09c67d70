"""Where each microsecond of a decode step goes.

    python benchmarks/step_profile.py [--rows 1,16] [--threads N] [--constrained] [--speculate auto]

Runs the real engine and times the functions that a step is made of, each without those that it
calls and that have a line of their own. Prints medians over the full decode steps, in microseconds
and as a share of the step; `in between` is what no line covers, the clocks themselves (about 1 us a
call) among it.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from decode import _swap
from workloads import SCHEMAS, token_ids

from umbel.radix_cache.tree import RadixCache
from umbel.runtime import runner as runner_module
from umbel.runtime import step_builder as builder_module
from umbel.runtime.choosing import TokenChooser
from umbel.runtime.engine import Engine
from umbel.runtime.errors import UmbelError
from umbel.runtime.flight import Flight
from umbel.runtime.models.decoder import Decoder
from umbel.runtime.params import SamplingParams
from umbel.runtime.recorded import RecordedLayers
from umbel.runtime.request import Request
from umbel.runtime.runner import ModelRunner
from umbel.runtime.sampler import Sampler
from umbel.runtime.scheduler import Scheduler
from umbel.runtime.speculation.drafter import Drafter
from umbel.runtime.stats import StatsRecorder
from umbel.runtime.step_builder import StepBuilder

# label, owner, function; in the order of the step
PARTS: tuple[tuple[str, Any, str], ...] = (
    ("take what callers left", Engine, "_admit"),
    ("plan: the rest of it", Scheduler, "plan"),
    ("plan: look up guesses", Drafter, "drafts"),
    ("plan: place a request, all of them", StepBuilder, "place"),
    ("plan: number rows", StepBuilder, "build"),
    ("plan: what attention shares", builder_module, "plan_attention"),
    ("mark who has started", Engine, "_mark_started"),
    ("forward: ids, positions, wanted rows", ModelRunner, "execute"),
    ("forward: slots", ModelRunner, "_context"),
    ("forward: stretches of keys", runner_module, "_attention_step"),
    ("forward: from part to part", ModelRunner, "_hidden"),
    ("forward: embedding", Decoder, "embed"),
    ("forward: RoPE's angles", Decoder, "rotations"),
    ("forward: arguments of the program", RecordedLayers, "run"),
    ("forward: layers, recorded", "program", "run"),
    ("forward: layers, kernel by kernel", Decoder, "layers"),
    ("forward: last sum", Decoder, "add_last"),
    ("forward: last norm and head", Decoder, "logits"),
    ("sample: rows", TokenChooser, "choose"),
    ("sample: fill masks", TokenChooser, "_fill_mask"),
    ("sample: choose tokens", Sampler, "choose"),
    ("commit: the rest of it", Scheduler, "commit"),
    ("commit: take a token, all of them", Request, "accept_sampled"),
    ("commit: text", Request, "_push_text"),
    ("commit: forced tokens", Request, "accept_forced"),
    ("commit: the tree", RadixCache, "commit_step"),
    ("commit: news", Request, "take_update"),
    ("record what the step took", StatsRecorder, "record"),
    ("deliver: the rest of it", Engine, "_deliver"),
    ("deliver: new figures for readers", StatsRecorder, "refresh"),
    ("deliver: make an answer", Flight, "event"),
    ("in between", Engine, "step"),
)


class Clocks:
    """Seconds of functions without those of timed functions that they call."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]  # of the timed functions that are running: what their callees took

    def timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        clock, inner, seconds = time.perf_counter, self._inner, self.seconds

        def call(*args: Any, **kwargs: Any) -> Any:
            inner.append(0.0)
            begin_s = clock()
            try:
                return function(*args, **kwargs)
            finally:
                total_s = clock() - begin_s
                seconds[label] += total_s - inner.pop()
                inner[-1] += total_s

        return call


class Profile:
    """The parts of all steps of so many rows; others are forgotten."""

    def __init__(self, rows: int) -> None:
        self._steps: list[dict[str, float]] = []
        self._rows = rows
        self._clocks = Clocks()

    @contextmanager
    def recording(self, engine: Engine) -> Iterator[None]:
        """Between steps of the engine, please: its functions are replaced meanwhile."""
        recorded = engine._parts.runner._recorded  # type: ignore[attr-defined]  # a `ModelRunner`
        with ExitStack() as undo:
            for label, owner, name in PARTS:
                if owner == "program":
                    if recorded is None:
                        continue
                    owner = recorded._program
                _swap(undo, owner, name, self._clocks.timed(label, getattr(owner, name)))
            record = StatsRecorder.record

            def note(recorder: StatsRecorder, plan: Any, times: Any, *, is_failed: bool) -> None:
                record(recorder, plan, times, is_failed=is_failed)
                is_full = len(plan.requests) == plan.num_tokens == self._rows
                self._take(is_counted=is_full)

            _swap(undo, StatsRecorder, "record", note)
            yield

    def _take(self, *, is_counted: bool) -> None:
        """From one step's record to the next one's: a whole round of everything."""
        if is_counted:
            self._steps.append(dict(self._clocks.seconds))
        self._clocks.seconds.clear()

    def print(self) -> None:
        step_us = 1e6 * statistics.median(sum(step.values()) for step in self._steps)
        print(f"{self._rows} rows: {step_us:.0f} us a step, median of {len(self._steps)}")
        for label, _, _ in PARTS:
            if any(label in step for step in self._steps):
                us = 1e6 * statistics.median(step.get(label, 0.0) for step in self._steps)
                print(f"  {label:40}{us:10.1f}{us / step_us:9.2%}")


def profile(engine: Engine, rows: int, args: argparse.Namespace) -> Profile:
    prompts = [token_ids(32, "profile", rows, i) for i in range(rows)]
    if args.constrained:
        schemas = [schema for _, schema in SCHEMAS.values()]
        params = [
            SamplingParams(temperature=0, max_tokens=64, json_schema=schemas[i % len(schemas)])
            for i in range(rows)
        ]
    else:
        params = [SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)] * rows
    found = Profile(rows)
    for repetition in range(2):  # the first meets everything for the first time
        engine.reset_cache()
        with ExitStack() as stack:
            if repetition:
                stack.enter_context(found.recording(engine))
            for result in engine.generate_batch(prompts, params):
                if isinstance(result, UmbelError):
                    raise result
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--speculate", default="off", choices=("auto", "off"))
    parser.add_argument("--constrained", action="store_true", help="by JSON schemas")
    args = parser.parse_args()
    with Engine(num_threads=args.threads, speculate=args.speculate) as engine:
        for rows in map(int, args.rows.split(",")):
            profile(engine, rows, args).print()


if __name__ == "__main__":
    main()
