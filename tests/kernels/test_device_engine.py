"""The engine's steps by the kernels themselves, interpreted: the tokens of the CPU's engine."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tests/, for the model below

from unit.runtime.tiny_model import BIASES, GEMMA3, QWEN3, write_model

from umbel.runtime.config import EngineConfig
from umbel.runtime.device.load import load_on_device
from umbel.runtime.engine import Engine
from umbel.runtime.outputs import Result
from umbel.runtime.params import SamplingParams
from umbel.runtime.parts import device_parts, load_parts

PROMPTS = ["The keeper of the clocks", "The keeper of the keys", "x"]
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.mark.parametrize("variant", [{**GEMMA3, **BIASES}, QWEN3], ids=["gemma3", "qwen3"])
def test_interpreted_steps_give_the_tokens_of_the_cpu(
    variant: dict[str, Any], tmp_path: Path
) -> None:
    source = write_model(tmp_path, **variant)
    config = EngineConfig(model=str(tmp_path), dtype="float32", num_blocks=32, max_step_tokens=32)
    params = [
        replace(GREEDY, logprobs=1),
        replace(GREEDY, n=2, temperature=0.8, seed=2, repetition_penalty=1.2),
        replace(GREEDY, regex="[a-f]{3}"),
    ]
    with Engine.from_parts(load_parts(replace(config, device="cpu")), config) as engine:
        wanted = engine.generate_batch(PROMPTS, params)

    loaded = load_on_device(config, source, "cpu", backend="triton")
    with Engine.from_parts(device_parts(config, source, loaded), config) as engine:
        got = engine.generate_batch(PROMPTS, params)

    for ours, theirs in zip(got, wanted, strict=True):
        assert isinstance(ours, Result)
        assert isinstance(theirs, Result)
        for one, other in zip(ours.completions, theirs.completions, strict=True):
            assert one.token_ids == other.token_ids
    assert loaded.runner.executor.graphs is not None
    assert loaded.runner.executor.graphs.num_replayed > 0
