"""Two ranks, in two processes with gloo: the tokens of one rank, and an end without a hang."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from unit.runtime.tiny_model import BIASES, GEMMA3, write_model

from umbel.runtime.config import EngineConfig
from umbel.runtime.device.runner import DeviceRunner
from umbel.runtime.device.workers import Workers
from umbel.runtime.engine import Engine
from umbel.runtime.errors import EngineError, ModelError
from umbel.runtime.outputs import Result
from umbel.runtime.params import SamplingParams
from umbel.runtime.parts import load_parts

PROMPTS = ["The keeper of the clocks", "The keeper of the keys", "x"]
OPTIONS = {"dtype": "float32", "device": "cpu", "num_threads": 1, "num_blocks": 64}


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_two_ranks_give_the_tokens_of_one(tmp_path: Path) -> None:
    folder = str(write_model(tmp_path, **GEMMA3, **BIASES).path)
    params = [
        SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=9, ignore_eos=True),
        SamplingParams(temperature=0, regex=r"\d{3}-(abc|abd)", max_tokens=9, logprobs=1),
    ]

    with Engine(folder, **OPTIONS, max_step_tokens=16) as one:
        wanted = one.generate_batch(PROMPTS, params)
    with Engine(folder, **OPTIONS, max_step_tokens=16, tensor_parallel=2) as two:
        got = two.generate_batch(PROMPTS, params)

    for ours, theirs in zip(got, wanted, strict=True):
        assert isinstance(ours, Result)
        assert isinstance(theirs, Result)
        assert [c.token_ids for c in ours.completions] == [c.token_ids for c in theirs.completions]
    assert not [t for t in threading.enumerate() if t.name.startswith("umbel-rank")]


@pytest.mark.usefixtures("one_thread")
def test_when_a_rank_dies_requests_end_with_its_reason(tmp_path: Path) -> None:
    config = EngineConfig(model=str(write_model(tmp_path).path), tensor_parallel=2, **OPTIONS)
    parts = load_parts(config)
    assert isinstance(parts.runner, DeviceRunner)
    (process,) = parts.runner.processes

    with Engine.from_parts(parts, config) as engine:
        engine.generate(PROMPTS[0], max_tokens=3)
        process.kill()
        for _ in range(2):
            with pytest.raises(EngineError, match=r"rank 1 .* status -9.* start it again"):
                engine.generate(PROMPTS[0], max_tokens=200)

    assert process.poll() == -9


@pytest.mark.usefixtures("one_thread")
def test_when_rank_0_fails_in_a_step_the_others_end(tmp_path: Path) -> None:
    config = EngineConfig(model=str(write_model(tmp_path).path), tensor_parallel=2, **OPTIONS)
    parts = load_parts(config)
    assert isinstance(parts.runner, DeviceRunner)
    (process,) = parts.runner.processes

    with Engine.from_parts(parts, config) as engine:
        engine.generate(PROMPTS[0], max_tokens=3)
        parts.runner.executor.pool = torch.empty(0)  # what no step can be computed with
        with pytest.raises(EngineError, match=r"tensor-parallel|rank 0 failed"):
            engine.generate(PROMPTS[0], max_tokens=9)
        assert process.wait(30) != 0
        with pytest.raises(EngineError, match="start it again"):
            engine.generate(PROMPTS[0], max_tokens=9)


def test_a_rank_that_cannot_load_says_why(tmp_path: Path) -> None:
    config = EngineConfig(model=str(tmp_path / "nothing"), tensor_parallel=2, **OPTIONS)
    workers = Workers(config, "cpu", 1, on_failure=lambda: None)

    with pytest.raises(ModelError, match=r"could not load .*nothing.* was not found"):
        workers.wait_until_loaded()

    workers.close()


@pytest.mark.usefixtures("one_thread")
def test_a_model_that_cannot_be_divided_leaves_no_process(tmp_path: Path) -> None:
    folder = str(write_model(tmp_path).path)

    with pytest.raises(ModelError, match="tensor_parallel=3 does not divide"):
        Engine(folder, **OPTIONS, tensor_parallel=3)

    assert not [t for t in threading.enumerate() if t.name.startswith("umbel-rank")]
