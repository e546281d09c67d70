"""The whole engine on a GPU: its tokens against the engine of the CPU, and its steps against the
device's limits.

Models are random: a small one on disk whose tokens are compared, and an 8B one drawn on the device
for what is timed. What a step costs outside of the device is its time less that of the same step
enqueued again.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gpu_timing import Check, Session, elapsed_s, measured_device
from torch import Tensor
from unit.runtime.tiny_model import CONFIG, write_model, write_tokenizer

from umbel.kernels.triton.backend import Backend
from umbel.runtime.config import EngineConfig
from umbel.runtime.device.executor import StepExecutor
from umbel.runtime.device.load import OnDevice, load_on_device
from umbel.runtime.device.step_input import StepInput
from umbel.runtime.engine import Engine
from umbel.runtime.loading.source import ModelSource, find_model
from umbel.runtime.outputs import Result
from umbel.runtime.params import SamplingParams
from umbel.runtime.parts import device_parts, load_parts
from umbel.runtime.roofline.cost.step import decode_bound
from umbel.runtime.roofline.records import Workload
from umbel.runtime.roofline.shapes import shape_from_config

# Of the shape of Llama 3.1 8B; its tokenizer knows bytes only, which no kernel notices.
LLAMA_8B: dict[str, Any] = {
    **CONFIG,
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
PROMPTS = ["The keeper of the clocks", "The keeper of the keys", "At noon", "x"]


def check_engine(session: Session) -> None:
    """Greedy and constrained requests and forks in float32, with captured steps and without."""
    num_tokens, changes = (48, SMALL) if session.is_timed else (4, {"num_hidden_layers": 1})
    greedy = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    params = [
        greedy,
        replace(greedy, logprobs=2),
        SamplingParams(temperature=0, regex=r"\d{2}-(abc|abd)", max_tokens=8),
        SamplingParams(temperature=1.0, seed=1, n=3, max_tokens=num_tokens // 2, ignore_eos=True),
    ]
    backend: Backend = "triton"
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder), **changes)
        config = EngineConfig(
            model=folder, dtype="float32", num_blocks=256, max_step_tokens=32, speculate="off"
        )
        with Engine.from_parts(load_parts(replace(config, device="cpu")), config) as engine:
            wanted = _tokens(engine.generate_batch(PROMPTS, params))
        for use_graphs in (True, False):
            own = replace(config, device_graphs=use_graphs)
            loaded = load_on_device(own, source, session.device.type, backend=backend)
            with Engine.from_parts(device_parts(own, source, loaded), own) as engine:
                got = _tokens(engine.generate_batch(PROMPTS, params))
            graphs = loaded.runner.executor.graphs
            num_replayed = 0 if graphs is None else graphs.num_replayed
            if use_graphs and num_replayed == 0:
                got = []  # nothing was checked
            session.add(
                Check(
                    name=f"engine, captured steps {'on' if use_graphs else 'off'}, float32",
                    error=0.0 if got == wanted else float("nan"),
                    note=f"{_num_equal(got, wanted)} of {len(wanted)} sequences equal those of the "
                    f"CPU; {num_replayed} steps replayed",
                )
            )


def _tokens(results: "list[Any]") -> list[tuple[int, ...]]:
    for result in results:
        if not isinstance(result, Result):
            raise result
    return [c.token_ids for result in results for c in result.completions]


def _num_equal(got: list[tuple[int, ...]], wanted: list[tuple[int, ...]]) -> int:
    return sum(a == b for a, b in zip(got, wanted, strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSizes:
    """What is measured, on a GPU and, to try the script, on a CPU."""

    name: str
    model: dict[str, Any]
    batches: tuple[int, ...]
    length: int  # tokens of each prompt
    branches: tuple[int, ...]
    prefix: int
    num_tokens: int
    max_step_tokens: int

    @classmethod
    def of(cls, session: Session) -> "ServingSizes":
        if not session.is_timed:
            return cls(
                name="tiny", model=CONFIG, batches=(1, 2), length=20, branches=(3, 5), prefix=64,
                num_tokens=6, max_step_tokens=32,
            )  # fmt: skip
        return cls(
            name="8B", model=LLAMA_8B, batches=(1, 8, 64, 256), length=1024, branches=(64, 256),
            prefix=4096, num_tokens=40, max_step_tokens=8192,
        )  # fmt: skip


def measure_engine(session: Session) -> None:
    """Decoding through the engine: tokens a second, what the host adds, sharing, constraints."""
    sizes = ServingSizes.of(session)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(sizes.model))
        write_tokenizer(Path(folder))
        config = EngineConfig(
            model=folder,
            load_format="dummy",
            max_step_tokens=sizes.max_step_tokens,
            num_blocks=None if session.is_timed else 128,
            speculate="off",
        )
        source = find_model(folder)
        loaded = load_on_device(config, source, session.device.type)
        bench = _Bench(session, config, source, loaded, sizes)
        for batch in sizes.batches:
            if session.has_time(20):
                bench.measure_decoding(batch)
        for batch in sizes.branches:
            if session.has_time(25):
                bench.measure_branches(batch)
        if session.has_time(15):
            bench.measure_constraints(max(sizes.branches) // 4 or 1)


class _Recorder:
    """Keeps the last step of so many rows that was executed, so that it can be executed again."""

    def __init__(self, executor: StepExecutor, num_rows: int) -> None:
        self.executor = executor
        self.last: StepInput | None = None
        self._num_rows = num_rows

    def execute(self, step: StepInput) -> Tensor:
        if step.num_rows == self._num_rows and step.is_decode:
            self.last = step
        return self.executor.execute(step)


@dataclass(slots=True)
class _Bench:
    """One loaded model, for several engines one after another."""

    session: Session
    config: EngineConfig
    source: ModelSource
    loaded: OnDevice
    sizes: ServingSizes

    def measure_decoding(self, batch: int) -> None:
        shape = shape_from_config(self.sizes.name, self.loaded.decoder.config)
        sizes = self.sizes
        params = self._greedy(batch * sizes.length)
        context_len = sizes.length + (params.max_tokens or 0) // 2
        load = Workload(batch=batch, context_len=context_len)
        bound_s = decode_bound(shape, load, measured_device(self.session)).total_s
        times = self._steps(_prompts(batch, sizes.length), params, is_compared=True)
        step_s, device_s = times.step_s, times.device_s
        self.session.add_row(
            f"engine, {sizes.name} bfloat16, prompts of {sizes.length} tokens",
            batch=batch,
            tokens_per_s=batch / step_s,
            step_ms=step_s * 1e3,
            one_by_one_ms=times.one_by_one_s * 1e3,
            device_ms=device_s * 1e3,
            outside_share=max(0.0, 1 - device_s / step_s),
            bound_ms=bound_s * 1e3,
            share_of_bound=bound_s / step_s,
            guesses_right=times.num_right,
            guesses_missed=times.num_missed,
        )

    def measure_branches(self, batch: int) -> None:
        prompts = [_prompts(1, self.sizes.prefix)[0] + [idx % 256] for idx in range(batch)]
        times = [
            self._steps(prompts, self._greedy(self.sizes.prefix), share_attention=share).step_s
            for share in (True, False)
        ]
        self.session.add_row(
            f"engine, branches of {self.sizes.name} over {self.sizes.prefix} tokens",
            branches=batch,
            shared_ms=times[0] * 1e3,
            apart_ms=times[1] * 1e3,
            gain=times[1] / times[0],
        )

    def measure_constraints(self, batch: int) -> None:
        """Every row under a mask of its own; a vocabulary of bytes makes filling them cheap."""
        prompts = _prompts(batch, self.sizes.length // 4)
        greedy = self._greedy(sum(map(len, prompts)))
        free_s = self._steps(prompts, greedy).step_s
        masked = replace(greedy, regex=r"([a-z]{3,9} )*[a-z]{1000}")
        masked_s = self._steps(prompts, masked).step_s
        self.session.add_row(
            f"engine, {batch} rows under a regex",
            free_ms=free_s * 1e3,
            constrained_ms=masked_s * 1e3,
            extra=masked_s / free_s - 1,
        )

    def _greedy(self, num_prompt_tokens: int) -> SamplingParams:
        """As many tokens that the first request still decodes when the last prompt is through."""
        num_steps = -(-num_prompt_tokens // self.sizes.max_step_tokens)
        num_tokens = self.sizes.num_tokens + 2 * num_steps
        return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)

    def _steps(
        self,
        prompts: list[list[int]],
        params: SamplingParams,
        *,
        is_compared: bool = False,
        **options: Any,
    ) -> "_Times":
        """Decode steps with all rows: median times. is_compared: also without steps ahead, and of
        the device alone."""
        batch, ahead = len(prompts), self.loaded.runner.ahead
        config = replace(self.config, **options)
        before = (0, 0) if ahead is None else (ahead.num_right, ahead.num_missed)
        parts = device_parts(config, self.source, self.loaded)
        with Engine.from_parts(parts, config) as engine:
            _tokens(engine.generate_batch(prompts, params))
            times = _Times(step_s=_median_s(engine, batch, 128))
            if ahead is not None:
                times.num_right = ahead.num_right - before[0]
                times.num_missed = ahead.num_missed - before[1]
            if not is_compared:
                return times
            with self._recorded(batch) as recorder:  # prompts are cached now
                _tokens(engine.generate_batch(prompts, params))
            times.one_by_one_s = _median_s(engine, batch, self.sizes.num_tokens - 2)
        executor, step = self.loaded.runner.executor, recorder.last
        assert step is not None, "no step had all rows"
        executor.execute(step)
        repeats = 8 if self.session.is_timed else 1
        times.device_s = median(elapsed_s(lambda: executor.execute(step)) for _ in range(repeats))
        return times

    @contextmanager
    def _recorded(self, batch: int) -> Iterator[_Recorder]:
        """Within it, steps are executed one after another, and kept."""
        runner = self.loaded.runner
        recorder, ahead = _Recorder(runner.executor, batch), runner.ahead
        runner.executor = recorder  # type: ignore[assignment]  # as far as the runner is concerned
        runner.ahead = None
        try:
            yield recorder
        finally:
            runner.executor, runner.ahead = recorder.executor, ahead


@dataclass(slots=True)
class _Times:
    step_s: float
    one_by_one_s: float = 0.0  # without steps ahead
    device_s: float = 0.0
    num_right: int = 0  # steps that were guessed
    num_missed: int = 0


def _median_s(engine: Engine, batch: int, num_last: int) -> float:
    recent = engine.stats().gauge.recent[-num_last:]
    times = [measured.times.total_s for measured in recent if measured.rows == batch]
    assert times, "no step had all rows"
    return median(times)


def _prompts(count: int, length: int) -> list[list[int]]:
    """Token ids that differ from their first block on."""
    generator = torch.Generator().manual_seed(count)
    drawn = torch.randint(0, 256, (count, length), generator=generator)
    prompts: list[list[int]] = drawn.tolist()
    return prompts
