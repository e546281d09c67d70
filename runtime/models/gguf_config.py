"""`ModelConfig` from the metadata of a GGUF file, with what llama.cpp knows of a model by its name.

Three facts are in no GGUF key and are fixed here as they are in llama.cpp: every fourth layer of
SmolLM3 has no RoPE, every sixth of Gemma 3 sees the whole context, and Gemma 3 27B scales its
scores by another width.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, cast

from umbel.kernels.rope import RopeSpec
from umbel.runtime.errors import ModelError
from umbel.runtime.models.config import Architecture, LayerConfig, ModelConfig, unsupported
from umbel.runtime.models.rope_config import rope_from_gguf

GGUF_ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3", "smollm3", "gemma3")
_NOPE_INTERVAL = 4
_GEMMA3_PATTERN = 6
_GEMMA3_27B_LAYERS = 62
_GEMMA3_LOCAL_THETA = 10_000.0

Metadata = Mapping[str, Any]


def config_from_gguf(
    metadata: Metadata, tensor_names: Collection[str], vocab_size: int
) -> ModelConfig:
    """The configuration of a GGUF model. vocab_size: rows of its token embedding.

    The names of the tensors tell whether the head is tied and which layers have biases.
    """
    name = metadata.get("general.architecture")
    if name not in GGUF_ARCHITECTURES:
        raise unsupported("GGUF architecture", name, GGUF_ARCHITECTURES)
    architecture = cast(Architecture, name)
    if metadata.get(f"{name}.expert_count", 0):
        raise unsupported("a mixture of experts in architecture", name, "dense models")
    num_heads = _int(metadata, f"{name}.attention.head_count")
    hidden_size = _int(metadata, f"{name}.embedding_length")
    head_dim = metadata.get(f"{name}.attention.key_length") or hidden_size // num_heads
    value_dim = metadata.get(f"{name}.attention.value_length", head_dim)
    if value_dim != head_dim:
        raise unsupported("attention.value_length", value_dim, f"the key length, {head_dim}")
    layers = _layers(architecture, metadata, head_dim)
    is_gemma = architecture == "gemma3"
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_int(metadata, f"{name}.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=_int(metadata, f"{name}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        context_len=_int(metadata, f"{name}.context_length"),
        norm_eps=float(metadata.get(f"{name}.attention.layer_norm_rms_epsilon", 1e-6)),
        layers=layers,
        tied_head="output.weight" not in tensor_names,
        activation="gelu_tanh" if is_gemma else "silu",
        qkv_bias="blk.0.attn_q.bias" in tensor_names,
        output_bias="blk.0.attn_output.bias" in tensor_names,
        mlp_bias="blk.0.ffn_gate.bias" in tensor_names,
        qk_norm=architecture in ("qwen3", "gemma3"),
        post_norms=is_gemma,
        attention_scale=_gemma3_scale(metadata, head_dim, len(layers)) if is_gemma else None,
        embedding_scale=float(hidden_size) ** 0.5 if is_gemma else None,
        logit_softcap=metadata.get(f"{name}.final_logit_softcapping") or None,
    )


def _int(metadata: Metadata, key: str, default: int | None = None) -> int:
    value = metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        # Per-layer lists are legal GGUF, but no architecture accepted here varies by layer.
        got = f"a list of {len(value)}" if isinstance(value, list) else repr(value)
        raise ModelError(f"the metadata entry {key!r} is {got}; expected an integer")
    return value


def _layers(architecture: str, metadata: Metadata, head_dim: int) -> tuple[LayerConfig, ...]:
    num_layers = _int(metadata, f"{architecture}.block_count")
    window = _window(architecture, metadata)
    rope = rope_from_gguf(
        metadata,
        f"{architecture}.rope.",
        dim=head_dim,
        context_len=_int(metadata, f"{architecture}.context_length"),
    )
    if architecture == "smollm3":
        return tuple(
            LayerConfig(rope if (idx + 1) % _NOPE_INTERVAL else None, None)
            for idx in range(num_layers)
        )
    if architecture == "gemma3" and window is not None:
        theta = metadata.get("gemma3.rope.freq_base_swa", _GEMMA3_LOCAL_THETA)
        local = LayerConfig(RopeSpec(dim=head_dim, theta=float(theta)), window)
        whole = LayerConfig(rope, None)
        return tuple(local if (idx + 1) % _GEMMA3_PATTERN else whole for idx in range(num_layers))
    return (LayerConfig(rope, window),) * num_layers


def _window(architecture: str, metadata: Metadata) -> int | None:
    window = metadata.get(f"{architecture}.attention.sliding_window") or None
    if window is None or architecture in ("llama", "gemma3"):
        return window
    if window >= _int(metadata, f"{architecture}.context_length"):
        return None
    # No key says which layers have it, and a guess would be wrong silently.
    raise unsupported(
        f"{architecture}.attention.sliding_window", window, "none in this architecture"
    )


def _gemma3_scale(metadata: Metadata, head_dim: int, num_layers: int) -> float:
    given = metadata.get("gemma3.attention.scale")
    if given is not None:
        return float(given)
    if num_layers != _GEMMA3_27B_LAYERS:
        return 1.0 / math.sqrt(head_dim)
    width = _int(metadata, "gemma3.embedding_length") // _int(
        metadata, "gemma3.attention.head_count"
    )
    return 1.0 / math.sqrt(width)
