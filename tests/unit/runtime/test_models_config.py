"""What is read out of config.json files and GGUF metadata, and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from umbel.kernels.rope import RopeSpec, yarn_attention_factor
from umbel.runtime.errors import ModelError
from umbel.runtime.models.config import LayerConfig, ModelConfig
from umbel.runtime.models.gguf_config import config_from_gguf
from umbel.runtime.models.hf_config import config_from_hf, read_hf_config

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
ROPE = RopeSpec(dim=16, theta=10_000.0)


def _hf(model_type: str, **fields: Any) -> ModelConfig:
    return config_from_hf({"model_type": model_type, **SIZES, **fields})


def _windows(config: ModelConfig) -> list[int | None]:
    return [layer.window for layer in config.layers]


def test_a_llama_config_is_read_in_full() -> None:
    config = _hf("llama", hidden_act="silu", rope_theta=10_000.0, tie_word_embeddings=True)

    assert config == ModelConfig(
        architecture="llama",
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        context_len=512,
        norm_eps=1e-5,
        layers=(LayerConfig(ROPE, None),) * 4,
        tied_head=True,
    )
    assert config.scale == 0.25
    assert config.num_layers == 4


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("llama", {}, {"tied_head": False, "qkv_bias": False, "qk_norm": False}),
        ("llama", {"attention_bias": True}, {"qkv_bias": True, "output_bias": True}),
        ("llama", {"mlp_bias": True}, {"mlp_bias": True}),
        ("llama", {"num_key_value_heads": None}, {"num_kv_heads": 4}),
        ("llama", {"head_dim": None}, {"head_dim": 16}),
        ("mistral", {"head_dim": 24}, {"head_dim": 24}),
        ("qwen2", {}, {"qkv_bias": True, "output_bias": False}),
        ("qwen3", {"head_dim": 32}, {"qk_norm": True, "qkv_bias": False, "head_dim": 32}),
        ("smollm3", {}, {"tied_head": True}),
        ("gemma3_text", {"head_dim": 32}, {"architecture": "gemma3", "norm_offset": 1.0}),
        ("gemma3_text", {}, {"embedding_scale": 8.0, "activation": "gelu_tanh"}),
        ("gemma3_text", {"query_pre_attn_scalar": 64}, {"attention_scale": 0.125}),
        ("gemma3_text", {}, {"tied_head": True, "post_norms": True, "qk_norm": True}),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, {"logit_softcap": 30.0}),
    ],
)
def test_variants_of_an_architecture_are_read(
    model_type: str, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = _hf(model_type, **fields)

    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("model_type", "fields", "windows"),
    [
        ("llama", {"sliding_window": 8}, [None] * 4),
        ("mistral", {"sliding_window": 8}, [8] * 4),
        ("mistral", {"sliding_window": None}, [None] * 4),
        ("mistral", {}, [4096] * 4),
        ("qwen2", {"sliding_window": 8}, [None] * 4),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True}, [None] * 4),
        (
            "qwen2",
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
            [None, None, None, 8],
        ),
        (
            "qwen3",
            {
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            [8, None, 8, None],
        ),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 2}, [8, None, 8, None]),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 8}, [None, None, None, 8]),
    ],
)
def test_the_layers_with_a_sliding_window_are_found(
    model_type: str, fields: dict[str, Any], windows: list[int | None]
) -> None:
    assert _windows(_hf(model_type, **fields)) == windows


def test_smollm3_layers_without_rope_are_every_fourth_or_those_listed() -> None:
    by_default = _hf("smollm3")
    listed = _hf("smollm3", no_rope_layers=[0, 1, 1, 0])

    assert [layer.rope is None for layer in by_default.layers] == [False, False, False, True]
    assert [layer.rope is None for layer in listed.layers] == [True, False, False, True]
    assert by_default.layers[0].rope == RopeSpec(dim=16, theta=2_000_000.0)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("scaling", "spec"),
    [
        (None, ROPE),
        ({"type": "linear", "factor": 2.0}, RopeSpec(dim=16, theta=1e4, kind="linear", factor=2.0)),
        (
            LLAMA3,
            RopeSpec(dim=16, theta=1e4, kind="llama3", factor=8.0, original_context_len=128),
        ),
        (
            YARN,
            RopeSpec(
                dim=16,
                theta=1e4,
                kind="yarn",
                factor=4.0,
                original_context_len=128,
                attention_factor=yarn_attention_factor(4.0),
            ),
        ),
        (
            {**YARN, "attention_factor": 1.5, "beta_fast": 16, "truncate": False},
            RopeSpec(
                dim=16,
                theta=1e4,
                kind="yarn",
                factor=4.0,
                original_context_len=128,
                beta_fast=16.0,
                truncate=False,
                attention_factor=1.5,
            ),
        ),
        (
            {**YARN, "factor": None, "mscale": 0.7, "mscale_all_dim": 0.7},
            RopeSpec(dim=16, theta=1e4, kind="yarn", factor=4.0, original_context_len=128),
        ),
    ],
)
def test_rope_is_read_alike_from_the_old_and_the_new_layout(
    scaling: dict[str, Any] | None, spec: RopeSpec
) -> None:
    old = _hf("qwen3", head_dim=16, rope_theta=1e4, rope_scaling=scaling)
    new = _hf("qwen3", head_dim=16, rope_parameters={"rope_theta": 1e4, **(scaling or {})})

    assert old == new
    assert old.layers[0].rope == spec


def test_gemma3_ropes_are_read_alike_from_the_old_and_the_new_layout() -> None:
    pattern = {"head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2}
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = _hf(
        "gemma3_text", **pattern, rope_theta=5e5, rope_local_base_freq=1e3, rope_scaling=scaling
    )
    new = _hf(
        "gemma3_text",
        **pattern,
        rope_parameters={
            "full_attention": {"rope_theta": 5e5, **scaling},
            "sliding_attention": {"rope_theta": 1e3, "rope_type": "default"},
        },
    )

    assert old == new
    assert old.layers[0] == LayerConfig(RopeSpec(dim=16, theta=1e3), 8)
    assert old.layers[1].rope == RopeSpec(dim=16, theta=5e5, kind="linear", factor=8.0)


def test_a_multimodal_gemma3_config_is_read_from_its_text_part_with_defaults() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    config = config_from_hf({"model_type": "gemma3", "text_config": text, "vision_config": {}})

    assert (config.hidden_size, config.num_layers, config.vocab_size) == (2560, 34, 262_208)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert _windows(config)[:7] == [4096] * 5 + [None, 4096]
    assert config.layers[5].rope == RopeSpec(dim=256, theta=1_000_000.0)
    assert config.layers[0].rope == RopeSpec(dim=256, theta=10_000.0)


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("gpt2", {}, "model_type 'gpt2' is not supported; supported: llama, mistral"),
        (None, {}, "model_type None is not supported"),
        ("llama", {"hidden_act": "relu"}, "hidden_act 'relu' .* silu"),
        ("gemma3_text", {"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "'longrope' .* default, linear"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "'linear' needs the number 'factor'"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0}}, "factor > 0"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config 'gptq'"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("llama", {"hidden_size": "64"}, "hidden_size='64'; expected an integer"),
        ("llama", {"vocab_size": None}, "vocab_size=None; expected an integer"),
        ("llama", {"num_attention_heads": 3, "head_dim": 16}, "3 query heads cannot share 2"),
        ("llama", {"num_hidden_layers": 0}, "no layers"),
        ("llama", {"vocab_size": 0}, "vocab_size=0"),
        ("mistral", {"sliding_window": 0}, "layer 0 has a sliding window of 0"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers has 1 entries for 4 layers"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 4"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 4}, "'chunked_attention'"),
    ],
)
def test_what_is_not_computed_exactly_is_refused_by_name(
    model_type: str | None, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        config_from_hf({"model_type": model_type, **SIZES, **fields})


def test_a_quantized_multimodal_checkpoint_is_refused_too() -> None:
    with pytest.raises(ModelError, match="quantization_config 'awq'"):
        config_from_hf(
            {
                "model_type": "gemma3",
                "text_config": {},
                "quantization_config": {"quant_method": "awq"},
            }
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "cannot be read as JSON"), ("[]", "expected a JSON object"), ("{}", "model_type None")],
)
def test_errors_of_a_config_file_name_the_file(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)

    with pytest.raises(ModelError, match=message) as caught:
        read_hf_config(path)

    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": "large"},
        {"rope_scaling": "linear"},
        {"quantization_config": ["gptq"]},
        {"head_dim": "16"},
        {"rms_norm_eps": None},
    ],
)
def test_values_of_unexpected_types_are_model_errors_too(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **SIZES, **fields}))

    with pytest.raises(ModelError, match="unexpected type"):
        read_hf_config(path)


def test_a_config_file_is_read_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **SIZES}))

    assert read_hf_config(path) == _hf("llama")


def _metadata(arch: str, **extra: Any) -> dict[str, Any]:
    fields = {
        "block_count": 4,
        "context_length": 512,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **extra,
    }
    return {"general.architecture": arch} | {f"{arch}.{key}": fields[key] for key in fields}


def test_gguf_metadata_say_the_same_as_a_config_file() -> None:
    names = ["token_embd.weight"]

    assert config_from_gguf(_metadata("llama"), names, 100) == _hf(
        "llama", tie_word_embeddings=True
    )


@pytest.mark.parametrize(
    ("arch", "names", "extra", "expected"),
    [
        ("llama", ["output.weight"], {}, {"tied_head": False}),
        ("llama", [], {"attention.sliding_window": 8}, {"layers": (LayerConfig(ROPE, 8),) * 4}),
        ("qwen2", ["blk.0.attn_q.bias"], {}, {"qkv_bias": True, "output_bias": False}),
        ("qwen3", [], {"attention.key_length": 32, "attention.value_length": 32}, {"head_dim": 32}),
        (
            "qwen3",
            [],
            {"attention.sliding_window": 512},
            {"layers": (LayerConfig(ROPE, None),) * 4},
        ),
        ("gemma3", [], {}, {"norm_offset": 0.0, "embedding_scale": 8.0, "attention_scale": 0.25}),
        ("gemma3", [], {"attention.scale": 0.5}, {"attention_scale": 0.5}),
        (
            "gemma3",
            [],
            {"block_count": 62, "attention.key_length": 4, "attention.value_length": 4},
            {"attention_scale": 0.25},
        ),
    ],
)
def test_variants_are_read_from_gguf(
    arch: str, names: list[str], extra: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = config_from_gguf(_metadata(arch, **extra), names, 100)

    assert {name: getattr(config, name) for name in expected} == expected


def test_gguf_layers_of_gemma3_and_smollm3_differ_by_their_place() -> None:
    gemma = config_from_gguf(
        _metadata("gemma3", **{"attention.sliding_window": 8, "rope.freq_base": 1e6}), [], 100
    )
    smollm = config_from_gguf(_metadata("smollm3"), [], 100)

    local = LayerConfig(ROPE, 8)
    assert gemma.layers == (local,) * 4
    assert [layer.rope is None for layer in smollm.layers] == [False, False, False, True]
    longer = config_from_gguf(
        _metadata("gemma3", **{"attention.sliding_window": 8, "block_count": 7}), [], 100
    )
    assert _windows(longer) == [8] * 5 + [None, 8]


@pytest.mark.parametrize(
    ("extra", "spec"),
    [
        ({"rope.scaling.type": "none"}, ROPE),
        (
            {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
            RopeSpec(dim=16, theta=1e4, kind="linear", factor=2.0),
        ),
        ({"rope.scale_linear": 2.0}, RopeSpec(dim=16, theta=1e4, kind="linear", factor=2.0)),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 128,
            },
            RopeSpec(
                dim=16,
                theta=1e4,
                kind="yarn",
                factor=4.0,
                original_context_len=128,
                attention_factor=yarn_attention_factor(4.0),
            ),
        ),
    ],
)
def test_rope_scalings_are_read_from_gguf(extra: dict[str, Any], spec: RopeSpec) -> None:
    assert config_from_gguf(_metadata("llama", **extra), [], 100).layers[0].rope == spec


@pytest.mark.parametrize(
    ("arch", "extra", "message"),
    [
        ("falcon", {}, "GGUF architecture 'falcon' is not supported; supported: llama, qwen2"),
        ("llama", {"expert_count": 8}, "mixture of experts"),
        ("llama", {"rope.scaling.type": "longrope"}, "rope scaling 'longrope'"),
        ("llama", {"rope.dimension_count": 8}, "dimension_count 8"),
        ("llama", {"attention.head_count": [4, 2]}, "head_count' is a list of 2"),
        ("llama", {"block_count": None}, "llama.block_count' is None; expected an integer"),
        ("llama", {"attention.value_length": 8}, "value_length 8"),
        ("qwen2", {"attention.sliding_window": 8}, "qwen2.attention.sliding_window 8"),
    ],
)
def test_gguf_metadata_that_are_not_supported_are_refused_by_name(
    arch: str, extra: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        config_from_gguf(_metadata(arch, **extra), [], 100)
