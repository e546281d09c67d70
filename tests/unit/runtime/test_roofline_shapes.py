"""Model shapes: exact counts by name, from config.json, and of the embedded GGUF model."""

import json
from pathlib import Path
from typing import Any

import pytest

from umbel.runtime.errors import InvalidRequest, ModelError
from umbel.runtime.roofline.shapes import SHAPES, find_shape

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
}


def folder_of(folder: Path, config: dict[str, Any]) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def parameters_in_torch(config: dict[str, Any]) -> int:
    """The count of the transformers implementation, without allocating it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("70b", 70_000_000_000),
        ("8b", 8_030_000_000),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("smollm2-135m", 134_515_008),
        ("smollm2-360m", 361_821_120),
        ("smollm2-1.7b", 1_711_376_384),
    ],
)
def test_named_sizes(name: str, num_parameters: int) -> None:
    assert find_shape(name.upper()).num_parameters == num_parameters


def test_a_config_gives_the_same_shape_as_the_name(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LLAMA)
    named = SHAPES["llama-3-8b"]

    for path in (folder, folder + "/config.json"):
        shape = find_shape(path)
        assert shape.num_parameters == named.num_parameters
        assert shape.num_streamed_parameters == named.num_streamed_parameters
        assert (shape.group_size, shape.head_dim, shape.max_context) == (4, 128, 8192)
        assert shape.windows == ()


@pytest.mark.parametrize(
    "variant",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"model_type": "qwen2"},
        {"model_type": "qwen3", "head_dim": 16},
        {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 64,
         "query_pre_attn_scalar": 16},
    ],
)  # fmt: skip
def test_parameters_are_counted_as_transformers_counts_them(
    tmp_path: Path, variant: dict[str, Any]
) -> None:
    small = {
        **LLAMA,
        "vocab_size": 96,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config = {**small, **variant}

    shape = find_shape(folder_of(tmp_path, config))

    assert shape.num_parameters == parameters_in_torch(config)


def test_windows_of_a_config_are_kept(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "mistral", "sliding_window": 4096}

    shape = find_shape(folder_of(tmp_path, config))

    assert shape.window_counts == {4096: 32}


def test_the_embedded_model_is_the_default() -> None:
    shape = find_shape(None)
    named = SHAPES["smollm2-135m"]

    assert shape.num_parameters == named.num_parameters
    assert shape.num_gathered_parameters == 0
    assert shape.max_context == 8192


def test_an_unknown_model_is_refused_with_what_is_accepted() -> None:
    with pytest.raises(InvalidRequest, match=r"70b.*smollm2-135m.*config\.json.*\.gguf"):
        find_shape("llama-99")


def test_a_config_of_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {**LLAMA, "model_type": "mamba"})

    with pytest.raises(ModelError, match="mamba"):
        find_shape(folder)
