"""Models whose products round their rows to 8 bits, beside the same models in bfloat16."""

import json
import logging
from pathlib import Path

import pytest
import torch

from umbel.kernels.grouped import GROUP
from umbel.kernels.native import threads
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.loading.load import load_model
from umbel.runtime.loading.quantize import check_quantize, round_weight
from umbel.runtime.loading.source import find_model

native_only = pytest.mark.skipif(
    not threads.is_available(), reason="needs numba and a CPU with AVX2"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    settings = {
        "model_type": "llama",
        "vocab_size": 50,  # a head that does not fill panels
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    return tmp_path


def test_rounded_weights_err_by_about_half_a_step_of_their_group() -> None:
    weight = torch.randn(32, 96, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    weight[5, :GROUP] *= 1e-4  # beside a group of ordinary size

    rounded = round_weight(weight)

    steps = rounded.scales.float().repeat_interleave(GROUP, dim=1)
    assert ((rounded.dequantized() - weight).abs() <= 0.6 * steps + 1e-6).all()


@native_only
def test_products_are_rounded_and_the_error_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = find_model(str(folder))
    plain = load_model(source, dtype=torch.bfloat16, load_format="dummy", seed=3)
    with caplog.at_level(logging.INFO):
        rounded = load_model(
            source, dtype=torch.bfloat16, load_format="dummy", seed=3, quantize="int8"
        )

    for ours, exact in zip(rounded.layer_products, plain.layer_products, strict=True):
        rows = torch.randn(5, ours.in_features).bfloat16()
        error = (ours(rows).float() - exact(rows).float()).norm() / exact(rows).float().norm()
        assert 0 < error < 0.03
    text = caplog.text
    assert "int8: products of the first layer err by" in text
    assert "1 products have shapes that stay in bfloat16" in text


@pytest.mark.parametrize(("dtype", "device"), [(torch.float32, "cpu"), (torch.bfloat16, "cuda")])
def test_where_there_are_no_integers_they_are_refused(dtype: torch.dtype, device: str) -> None:
    check_quantize("off", dtype, device)
    with pytest.raises(InvalidRequest, match="works on a CPU with dtype bfloat16"):
        check_quantize("int8", dtype, device)
