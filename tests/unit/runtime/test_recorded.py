"""Recorded layers against the decoder's own, bit by bit, over random steps."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.kernels.attention import AttentionStep
from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.kv_cache import KVCache
from umbel.kernels.native import threads
from umbel.runtime.loading.load import load_model
from umbel.runtime.loading.source import find_model
from umbel.runtime.models.decoder import Decoder
from umbel.runtime.recorded import record_layers
from umbel.runtime.step_context import StepContext

NUM_SLOTS, WIDTH = 400, 64

all_rows_only = pytest.mark.skipif(
    not threads.is_available() or threads.arithmetic() == "bfloats",
    reason="layers of bfloat16 weights are not recorded on this CPU",
)


def make_model(folder: Path, dtype: torch.dtype = torch.bfloat16, **config: object) -> Decoder:
    settings = {
        "model_type": "mistral",
        "vocab_size": 50,
        "hidden_size": WIDTH,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 512,
        "sliding_window": None,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps({**settings, **config}))
    return load_model(find_model(str(folder)), dtype=dtype, load_format="dummy", seed=3)


def make_cache(model: Decoder) -> KVCache:
    config = model.config
    cache = KVCache(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        num_slots=NUM_SLOTS,
        head_dim=config.head_dim,
        dtype=model.dtype,
    )
    generator = torch.Generator().manual_seed(1)
    for pool in (cache.k, cache.v):
        pool.copy_(torch.randn(pool.shape, generator=generator))
    return cache


@pytest.fixture(scope="module", params=[None, 7], ids=["full", "window"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return make_model(tmp_path_factory.mktemp("model"), sliding_window=request.param)


# Shared tokens, then for each run: tokens of its own before, and new ones.
steps = st.tuples(
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=9),
)


@all_rows_only
@settings(max_examples=30, deadline=None)
@given(steps)
def test_recorded_layers_compute_the_same_bits(
    model: Decoder, step: tuple[int, list[tuple[int, int]]]
) -> None:
    num_shared, sizes = step
    runs, tails, slots, positions = [], [], [], []
    next_slot = num_shared
    for num_own, num_new in sizes:
        runs.append(QueryRun(num_shared + num_own, num_new))
        tails.append(KeyStretch(num_shared, [(next_slot, num_own + num_new)]))
        slots += range(next_slot + num_own, next_slot + num_own + num_new)
        positions += range(num_shared + num_own, num_shared + num_own + num_new)
        next_slot += num_own + num_new
    shared = [KeyStretch(0, [(0, num_shared)], list(range(len(runs))))] if num_shared else []
    num_rows = len(slots)
    # The first row is only a query: what it would write is there already.
    written, slots_tensor = torch.arange(1, num_rows), torch.tensor(slots[1:], dtype=torch.int64)
    x = torch.randn(num_rows, WIDTH, generator=torch.Generator().manual_seed(2)).bfloat16()
    rotations = model.rotations(torch.tensor(positions))
    plain_cache, cache = make_cache(model), make_cache(model)
    recorded = record_layers(model, cache)
    assert recorded is not None
    cache.k.copy_(plain_cache.k)  # recording leaves a trace
    cache.v.copy_(plain_cache.v)

    context = StepContext(plain_cache, AttentionStep(runs, shared, tails), written, slots_tensor)
    with torch.inference_mode():
        plain = model.layers(x.clone(), rotations, context)
        got = recorded.run(x, rotations, AttentionStep(runs, shared, tails), written, slots_tensor)

    assert torch.equal(got[0], plain[0])
    assert torch.equal(got[1], plain[1])
    assert torch.equal(cache.k, plain_cache.k)
    assert torch.equal(cache.v, plain_cache.v)


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_act": "gelu_pytorch_tanh", "model_type": "gemma3_text"},  # gated by torch
        {"model_type": "qwen3"},  # head norms by torch
        {"head_dim": 24},
        {"intermediate_size": 40},  # panels that are not full
    ],
)
def test_models_with_layers_that_are_not_native_are_not_recorded(
    config: dict[str, object], tmp_path: Path
) -> None:
    model = make_model(tmp_path, **config)

    assert record_layers(model, make_cache(model)) is None


def test_float32_is_not_recorded(tmp_path: Path) -> None:
    model = make_model(tmp_path, torch.float32)

    assert record_layers(model, make_cache(model)) is None
