"""`ModelConfig` from a Hugging Face config.json, in the old layout and in that of transformers 5.

Defaults are those of the transformers configuration classes: files leave out what equals them.
What would change the result and is not implemented is refused by name, never ignored.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from umbel.kernels.rope import RopeSpec
from umbel.runtime.errors import ModelError
from umbel.runtime.models.config import (
    ARCHITECTURES,
    Activation,
    Architecture,
    LayerConfig,
    ModelConfig,
    unsupported,
)
from umbel.runtime.models.rope_config import rope_from_hf

Json = Mapping[str, Any]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
_GEMMA3_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen3": {"head_dim": 128},
    "smollm3": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    "gemma3": _GEMMA3_DEFAULTS,
}
_DEFAULT_THETA = {"smollm3": 2_000_000.0, "gemma3": 1_000_000.0}
_GEMMA3_LOCAL_THETA = 10_000.0
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_hf_config(path: Path) -> ModelConfig:
    """The configuration in the file config.json at `path`; errors name the file."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ModelError(f"{path} cannot be read as JSON: {exc}") from exc
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds {type(config).__name__}; expected a JSON object")
    try:
        return config_from_hf(config)
    except ModelError as exc:
        raise ModelError(f"{path}: {exc}") from exc
    except (TypeError, ValueError, KeyError, AttributeError) as exc:  # a value of another type
        raise ModelError(f"{path} has a value of an unexpected type: {exc}") from exc


def config_from_hf(config: Json) -> ModelConfig:
    """The configuration in a parsed config.json. Raises `ModelError` for what is not supported."""
    architecture, fields = _text_config(config)
    _refuse_unsupported(fields)
    num_heads = _int(fields, "num_attention_heads")
    hidden_size = _int(fields, "hidden_size")
    head_dim = fields.get("head_dim") or hidden_size // num_heads
    ropes = _ropes(architecture, fields, head_dim)
    is_gemma = architecture == "gemma3"
    attention_bias = bool(fields.get("attention_bias", False))
    reads_attention_bias = architecture in ("llama", "qwen3", "smollm3", "gemma3")
    return ModelConfig(
        architecture=architecture,
        vocab_size=_int(fields, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_int(fields, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        context_len=_int(fields, "max_position_embeddings"),
        norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        layers=_layers(architecture, fields, ropes),
        tied_head=bool(fields.get("tie_word_embeddings", False)),
        activation=_activation(fields, "hidden_activation" if is_gemma else "hidden_act"),
        qkv_bias=architecture == "qwen2" or (attention_bias and reads_attention_bias),
        output_bias=attention_bias and reads_attention_bias,
        mlp_bias=architecture in ("llama", "smollm3") and bool(fields.get("mlp_bias", False)),
        qk_norm=architecture in ("qwen3", "gemma3"),
        post_norms=is_gemma,
        norm_offset=1.0 if is_gemma else 0.0,
        attention_scale=float(fields["query_pre_attn_scalar"]) ** -0.5 if is_gemma else None,
        embedding_scale=float(hidden_size) ** 0.5 if is_gemma else None,
        logit_softcap=fields.get("final_logit_softcapping") if is_gemma else None,
    )


def _text_config(config: Json) -> tuple[Architecture, dict[str, Any]]:
    """The architecture and its fields, defaults filled in; of a multimodal model the text part."""
    model_type = config.get("model_type")
    accepted = (*ARCHITECTURES, "gemma3_text")
    if model_type not in accepted:
        raise unsupported("model_type", model_type, accepted)
    fields: dict[str, Any] = dict(config)
    if "text_config" in config:
        if not isinstance(config["text_config"], dict):
            raise ModelError("text_config is not a JSON object")
        fields = dict(config["text_config"])
        if "quantization_config" in config:
            fields["quantization_config"] = config["quantization_config"]
    architecture = cast(Architecture, "gemma3" if model_type == "gemma3_text" else model_type)
    return architecture, {**_DEFAULTS.get(architecture, {}), **fields}


def _refuse_unsupported(fields: Json) -> None:
    if fields.get("quantization_config") is not None:
        method = fields["quantization_config"].get("quant_method", "unnamed")
        raise unsupported(
            "quantization_config", method, "float32, float16 and bfloat16 weights, or GGUF"
        )
    for name in ("attn_logit_softcapping", "use_bidirectional_attention"):
        if fields.get(name):
            raise unsupported(name, fields[name], "none")


def _int(fields: Json, name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"config has {name}={value!r}; expected an integer")
    return value


def _activation(fields: Json, name: str) -> Activation:
    value = fields.get(name, "gelu_pytorch_tanh" if name == "hidden_activation" else "silu")
    if value not in _ACTIVATIONS:
        raise unsupported(name, value, tuple(_ACTIVATIONS))
    return _ACTIVATIONS[value]


def _ropes(architecture: str, fields: Json, head_dim: int) -> dict[str, RopeSpec]:
    """The rotation of each type of layer. Only Gemma 3 has two."""
    theta = fields.get("rope_theta") or _DEFAULT_THETA.get(architecture, 10_000.0)
    context_len = _int(fields, "max_position_embeddings")
    new = fields.get("rope_parameters")
    if isinstance(new, dict) and (_FULL in new or _SLIDING in new):
        per_type = {kind: new.get(kind) or {} for kind in (_FULL, _SLIDING)}
    else:
        scaling = new or fields.get("rope_scaling") or {}
        per_type = {_FULL: scaling, _SLIDING: {} if architecture == "gemma3" else scaling}
    local_theta = theta
    if architecture == "gemma3":
        local_theta = fields.get("rope_local_base_freq") or _GEMMA3_LOCAL_THETA
    partial = fields.get("partial_rotary_factor")
    thetas = {_FULL: theta, _SLIDING: local_theta}
    ropes = {}
    for kind, given in per_type.items():
        parameters = {"rope_theta": thetas[kind], "partial_rotary_factor": partial}
        parameters |= {name: value for name, value in given.items() if value is not None}
        ropes[kind] = rope_from_hf(parameters, dim=head_dim, context_len=context_len)
    return ropes


def _layers(
    architecture: str, fields: Json, ropes: Mapping[str, RopeSpec]
) -> tuple[LayerConfig, ...]:
    num_layers = _int(fields, "num_hidden_layers")
    window = _window(architecture, fields)
    has_rope = _has_rope(architecture, fields, num_layers)
    kinds = fields.get("layer_types") if architecture not in ("llama", "mistral") else None
    if kinds is None:
        kinds = _layer_types(architecture, fields, num_layers, window, has_rope)
    if len(kinds) != num_layers:
        raise ModelError(f"layer_types has {len(kinds)} entries for {num_layers} layers")
    layers = []
    for kind, rotated in zip(kinds, has_rope, strict=True):
        if kind not in ropes:
            raise unsupported("layer type", kind, tuple(ropes))
        rope = ropes[kind] if rotated else None
        layers.append(LayerConfig(rope, window if kind == _SLIDING else None))
    return tuple(layers)


def _window(architecture: str, fields: Json) -> int | None:
    if architecture == "llama":
        return None
    optional = architecture in ("qwen2", "qwen3", "smollm3")
    if optional and not fields.get("use_sliding_window", False):
        return None
    window = fields.get("sliding_window", 4096 if architecture in ("qwen2", "qwen3") else None)
    return None if window is None else int(window)


def _has_rope(architecture: str, fields: Json, num_layers: int) -> list[bool]:
    if architecture != "smollm3":
        return [True] * num_layers
    listed = fields.get("no_rope_layers")  # in spite of its name, 1 means "with RoPE"
    if listed is None:
        interval = fields.get("no_rope_layer_interval", 4)
        return [(idx + 1) % interval != 0 for idx in range(num_layers)]
    if len(listed) < num_layers:
        raise ModelError(f"no_rope_layers has {len(listed)} entries for {num_layers} layers")
    return [bool(flag) for flag in listed[:num_layers]]


def _layer_types(
    architecture: str, fields: Json, num_layers: int, window: int | None, has_rope: list[bool]
) -> list[str]:
    """The layer types of a file that does not list them."""
    if window is None:
        return [_FULL] * num_layers
    match architecture:
        case "gemma3":
            pattern = _int(fields, "sliding_window_pattern")
            return [_SLIDING if (idx + 1) % pattern else _FULL for idx in range(num_layers)]
        case "qwen2" | "qwen3":
            first = fields.get("max_window_layers", 28)
            return [_SLIDING if idx >= first else _FULL for idx in range(num_layers)]
        case "smollm3":
            return [_FULL if rotated else _SLIDING for rotated in has_rope]
        case _:
            return [_SLIDING] * num_layers
