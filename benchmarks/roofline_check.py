"""Does the roofline hold on this CPU? Compares decode steps of the embedded model with the bound.

    python benchmarks/roofline_check.py [--json] [--repeats 5] [--context 128]

Two claims, for 1, 16 and 64 rows: the planner's lower bound is never above a measured step, and the
measured time is explained to within 25% by the bound and three overheads, each measured apart:

* `in turn`: products and attention do not overlap, so their bounds add up (from the cost model)
* `products`: how long the model's own products take alone, one after the other, above their bound
* `the rest`: a step of a model without products (`hollow_model`), host time included, less the
  bound of its attention

Kinds of run take turns, results are medians. Exits with 1 when a claim fails, with 2 when other
programs used the machine, since the figures are then of no use.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from hollow_model import hollow_decoder
from quiet_machine import mark, other_cores, other_cores_now

from umbel.kernels.linear import Linear
from umbel.kernels.native.threads import call_apart
from umbel.runtime.config import EngineConfig
from umbel.runtime.constraints import ConstraintCompiler, make_vocabulary
from umbel.runtime.engine import Engine
from umbel.runtime.loading.load import read_config
from umbel.runtime.loading.source import find_model
from umbel.runtime.outputs import Result
from umbel.runtime.parts import EngineParts, load_apart
from umbel.runtime.roofline import cost
from umbel.runtime.roofline.devices import measure_cpu
from umbel.runtime.roofline.gauge import MeasuredSteps
from umbel.runtime.roofline.records import Device, StepWork, dtype_bytes
from umbel.runtime.runner import ModelRunner

ROWS = (1, 16, 64)
TOLERANCE = 0.25  # of the measured time
STEPS = 12  # decode steps of one run
QUIET_CORES = 0.15  # that other programs may use
KV_BYTES = 384 << 20  # of each engine's pool


@dataclass(frozen=True, slots=True)
class Line:
    """Decode steps of so many rows; seconds, medians but for `fastest_s`."""

    rows: int
    measured_s: float
    fastest_s: float
    bound_s: float
    in_turn_s: float
    products_s: float
    rest_s: float

    @property
    def explained_s(self) -> float:
        return self.bound_s + self.in_turn_s + self.products_s + self.rest_s

    @property
    def unexplained_share(self) -> float:
        return (self.measured_s - self.explained_s) / self.measured_s

    @property
    def failures(self) -> list[str]:
        found = []
        if self.bound_s > self.fastest_s:
            found.append(f"{self.rows} rows: the bound is above the fastest step")
        if abs(self.unexplained_share) > TOLERANCE:
            found.append(f"{self.rows} rows: {self.unexplained_share:+.0%} is not explained")
        return found


class Prompts:
    """The same prompts each time but for their last token, so that only that is computed anew and
    no two runs write the same path.
    """

    def __init__(self, context_len: int, vocab_size: int) -> None:
        self._random = random.Random(0)
        self._vocab_size = vocab_size
        self._bodies = [self._tokens(context_len - 1) for _ in range(max(ROWS))]

    def draw(self, rows: int) -> list[list[int]]:
        return [body + self._tokens(1) for body in self._bodies[:rows]]

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocab_size) for _ in range(count)]


class ModelProducts:
    """The model's own products, one after the other, with nothing between them."""

    def __init__(self, products: Sequence[Linear], dtype: torch.dtype) -> None:
        self._products, self._dtype = products, dtype

    def run_s(self, rows: int) -> float:
        """Seconds of one pass over all of them; a pass before wakes the threads, as the step before
        does.
        """
        inputs = {
            size: torch.ones(rows, size, dtype=self._dtype)
            for size in {product.in_features for product in self._products}
        }
        with torch.inference_mode():
            for _ in range(2):
                start = time.perf_counter()
                for product in self._products:
                    product(inputs[product.in_features])
            return time.perf_counter() - start


class Bench:
    """The real engine, the hollow one, products and device; `repeat` runs each once."""

    def __init__(self, context_len: int) -> None:
        config = EngineConfig(kv_cache_bytes=KV_BYTES)
        parts = load_apart(config)
        self.costs = parts.costs
        self.dtype = parts.costs.dtype
        self._context_len = context_len
        self._prompts = Prompts(context_len, parts.limits.vocab_size)
        self._engines = {
            "real": Engine.from_parts(parts, config),
            "hollow": Engine.from_parts(_hollow(parts, config), config),
        }
        assert isinstance(parts.runner, ModelRunner)
        model = parts.runner.model
        self.products = ModelProducts(model.products, model.dtype)
        self.devices: list[Device] = []
        self.steps: dict[tuple[str, int], list[MeasuredSteps]] = {}
        self.product_s: dict[int, list[float]] = {rows: [] for rows in ROWS}

    def repeat(self) -> None:
        """What computes beside the engines does it apart, so that its threads end with it."""
        self.devices.append(call_apart(measure_cpu))
        for rows in ROWS:
            for kind, engine in self._engines.items():
                self.steps.setdefault((kind, rows), []).extend(self._decode(engine, rows))
                self.product_s[rows].append(call_apart(partial(self.products.run_s, rows)))

    def forget(self) -> None:
        """Drop what was measured so far: the first runs of everything."""
        self.devices, self.steps = [], {}
        self.product_s = {rows: [] for rows in ROWS}

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()

    def _decode(self, engine: Engine, rows: int) -> list[MeasuredSteps]:
        """The decode steps of one run: all rows in each, one token a row."""
        before = engine.stats().num_steps
        results = engine.generate_batch(
            self._prompts.draw(rows), max_tokens=STEPS + 1, ignore_eos=True, temperature=0.0
        )
        for result in results:
            if not isinstance(result, Result):
                raise result
        stats = engine.stats()
        recent = stats.gauge.recent[before - stats.num_steps :]
        least = rows * (self._context_len - 1)
        return [s for s in recent if s.rows == rows and s.read_kv_tokens >= least][1:]


def _hollow(parts: EngineParts, config: EngineConfig) -> EngineParts:
    """The same engine without the model's products."""
    model_config = read_config(find_model(config.model))
    dtype = getattr(torch, parts.costs.dtype)
    limits = parts.limits
    runner = ModelRunner(
        hollow_decoder(model_config, dtype),
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        dtype=dtype,
    )
    vocabulary = make_vocabulary(parts.tokenizer, limits.vocab_size)
    return replace(parts, runner=runner, compiler=ConstraintCompiler(vocabulary, cache_size=1))


def best_device(devices: list[Device]) -> Device:
    """A limit is the highest rate ever seen."""
    first = devices[0]
    peaks = {dtype: max(d.peak_flops[dtype] for d in devices) for dtype in first.peak_flops}
    return replace(first, peak_flops=peaks, bandwidth=max(d.bandwidth for d in devices))


def line_of(bench: Bench, device: Device, rows: int) -> Line:
    real, hollow = bench.steps["real", rows], bench.steps["hollow", rows]

    def middle(steps: list[MeasuredSteps], value: Callable[[MeasuredSteps], float]) -> float:
        return statistics.median(value(step) for step in steps)

    def bound_s(work: StepWork) -> float:
        return cost.step_bound(work, device, bench.dtype).total_s

    def products_only(step: MeasuredSteps) -> StepWork:
        return replace(step.work, kv_bytes=0.0, attention_flops=0.0)

    def attention_only(step: MeasuredSteps) -> StepWork:
        return replace(step.work, weight_bytes=0.0, linear_flops=0.0)

    bound = middle(real, lambda step: bound_s(step.work))
    serial = middle(real, lambda step: cost.serial_step_s(step.work, device, bench.dtype))
    ideal_products = middle(real, lambda step: bound_s(products_only(step)))
    return Line(
        rows=rows,
        measured_s=middle(real, lambda step: step.times.total_s),
        fastest_s=min(step.times.total_s for step in real),
        bound_s=bound,
        in_turn_s=serial - bound,
        products_s=statistics.median(bench.product_s[rows]) - ideal_products,
        rest_s=middle(hollow, lambda step: step.times.total_s - bound_s(attention_only(step))),
    )


def print_table(lines: list[Line], device: Device, dtype: str) -> None:
    print(
        f"device: {device.bandwidth / 1e9:.1f} GB/s, {device.peak_flops[dtype] / 1e9:.0f} GFLOP/s "
        f"in {dtype} ({dtype_bytes(dtype):g} bytes); times in ms\n"
    )
    print(
        f"{'rows':>4} {'measured':>9} {'fastest':>9} {'bound':>9} {'in turn':>9} "
        f"{'products':>9} {'the rest':>9} {'explained':>10} {'left':>6}"
    )
    for line in lines:
        times = (
            *(line.measured_s, line.fastest_s, line.bound_s),
            *(line.in_turn_s, line.products_s, line.rest_s),
        )
        print(
            f"{line.rows:>4} "
            + " ".join(f"{seconds * 1e3:9.2f}" for seconds in times)
            + f" {line.explained_s * 1e3:10.2f} {line.unexplained_share:>+6.0%}"
        )


def print_json(lines: list[Line], device: Device, other: float, failures: list[str]) -> None:
    rows = [
        asdict(line)
        | {"explained_s": line.explained_s, "unexplained_share": line.unexplained_share}
        for line in lines
    ]
    record = {
        "device": asdict(device) | {"peak_flops": dict(device.peak_flops)},
        "other_cores": other,
        "tolerance": TOLERANCE,
        "lines": rows,
        "failures": failures,
    }
    print(json.dumps(record, indent=2))


def measure(context_len: int, repeats: int) -> tuple[Bench, float]:
    """The bench after all its runs, and the cores that other programs used meanwhile."""
    bench = Bench(context_len)
    try:
        bench.repeat()
        bench.forget()
        start = mark()
        for _ in range(repeats):
            bench.repeat()
        return bench, other_cores(start)
    finally:
        bench.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=5, help="default: 5")
    parser.add_argument("--context", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--even-if-busy", action="store_true", help="only warn of other load")
    args = parser.parse_args()
    before = other_cores_now()
    if before > QUIET_CORES and not args.even_if_busy:
        print(
            f"other programs use {before:.2f} cores; wait, or say --even-if-busy", file=sys.stderr
        )
        return 2
    bench, other = measure(args.context, args.repeats)
    device = best_device(bench.devices)
    lines = [line_of(bench, device, rows) for rows in ROWS]
    failures = [failure for line in lines for failure in line.failures]
    if args.json:
        print_json(lines, device, other, failures)
    else:
        print_table(lines, device, bench.dtype)
        print(f"\nother programs used {other:.2f} cores meanwhile")
        print("\n".join(failures) or "both claims hold")
    if other > QUIET_CORES:
        print("the machine was not quiet: the figures are of no use", file=sys.stderr)
        return 1 if failures and args.even_if_busy else 2 * (not args.even_if_busy)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
