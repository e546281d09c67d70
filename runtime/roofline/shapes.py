"""Model shapes: by name, or from a Hugging Face config.json or a GGUF file on disk.

Parameters are counted from the dimensions, so no weight is read. "70b" and "8b" are the round
numbers that people calculate with; the other names are exact.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from umbel.runtime.errors import InvalidRequest, ModelError
from umbel.runtime.loading.gguf_file import GGUFFile
from umbel.runtime.loading.source import CONFIG_FILE, ModelSource, find_model
from umbel.runtime.roofline.records import ModelShape

if TYPE_CHECKING:
    from umbel.runtime.models.config import ModelConfig

_EMBEDDING = "token_embd.weight"


def shape_of(
    name: str,
    *,
    num_layers: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    hidden_size: int,
    intermediate_size: int,
    vocab_size: int,
    max_context: int | None,
    is_tied: bool,
    extra_layer_parameters: int = 0,
    windows: tuple[int | None, ...] = (),
) -> ModelShape:
    """A decoder with gated MLP and two norms per layer, its parameters counted.

    `extra_layer_parameters`: biases and further norms of a layer.
    """
    q_width, kv_width = num_q_heads * head_dim, num_kv_heads * head_dim
    attention = hidden_size * (2 * q_width + 2 * kv_width)
    mlp = 3 * hidden_size * intermediate_size
    layer = attention + mlp + 2 * hidden_size + extra_layer_parameters
    table = vocab_size * hidden_size
    return ModelShape(
        name=name,
        num_parameters=num_layers * layer + hidden_size + table * (1 if is_tied else 2),
        num_gathered_parameters=0 if is_tied else table,
        num_layers=num_layers,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        max_context=max_context,
        windows=windows,
    )


def shape_from_config(name: str, config: "ModelConfig") -> ModelShape:
    """The shape of a model that the runtime can load."""
    q_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    extra = (q_width + 2 * kv_width) if config.qkv_bias else 0
    extra += config.hidden_size if config.output_bias else 0
    extra += (2 * config.intermediate_size + config.hidden_size) if config.mlp_bias else 0
    extra += 2 * config.head_dim if config.qk_norm else 0
    extra += 2 * config.hidden_size if config.post_norms else 0
    windows = tuple(layer.window for layer in config.layers)
    return shape_of(
        name,
        num_layers=config.num_layers,
        num_q_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_context=config.context_len,
        is_tied=config.tied_head,
        extra_layer_parameters=extra,
        windows=windows if any(windows) else (),
    )


def find_shape(name_or_path: str | None) -> ModelShape:
    """The shape of a named size, of a folder with config.json, of a GGUF file; None: of the
    embedded model.

    Raises `InvalidRequest` for an unknown name, `ModelError` for a model that cannot be read.
    """
    if name_or_path is not None and name_or_path.lower() in SHAPES:
        return SHAPES[name_or_path.lower()]
    if name_or_path is not None and Path(name_or_path).name == CONFIG_FILE:
        name_or_path = str(Path(name_or_path).parent)
    try:
        source = find_model(name_or_path)
    except ModelError as exc:
        if name_or_path is None or Path(name_or_path).exists():
            raise
        raise InvalidRequest(
            f"model {name_or_path!r} is not known: expected one of {', '.join(SHAPES)}, or the "
            f"path of a folder with {CONFIG_FILE} or of a .gguf file",
            param="model",
        ) from exc
    return shape_from_config(source.name, _read_config(source))


def _read_config(source: ModelSource) -> "ModelConfig":
    # Here, because these import torch (2 s), which a named size does not need.
    from umbel.runtime.models.gguf_config import config_from_gguf
    from umbel.runtime.models.hf_config import read_hf_config

    if source.format == "safetensors":
        return read_hf_config(source.path / CONFIG_FILE)
    file = GGUFFile(source.path)
    if _EMBEDDING not in file.tensors:
        raise ModelError(f"{source.path} has no tensor {_EMBEDDING!r}, so it is not a decoder")
    vocab_size = file.tensors[_EMBEDDING].shape[0]
    return config_from_gguf(file.metadata, file.tensor_names, vocab_size)


def _llama3(name: str, layers: int, hidden: int, mlp: int, heads: int, context: int) -> ModelShape:
    return shape_of(
        name,
        num_layers=layers,
        num_q_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        hidden_size=hidden,
        intermediate_size=mlp,
        vocab_size=128_256,
        max_context=context,
        is_tied=False,
    )


def _smollm2(
    name: str, layers: int, hidden: int, mlp: int, heads: int, kv_heads: int
) -> ModelShape:
    return shape_of(
        name,
        num_layers=layers,
        num_q_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=64,
        hidden_size=hidden,
        intermediate_size=mlp,
        vocab_size=49_152,
        max_context=8_192,
        is_tied=True,
    )


def _round(name: str, num_parameters: int, like: ModelShape) -> ModelShape:
    """A round size, every parameter of which counts as read in each step."""
    return replace(like, name=name, num_parameters=num_parameters, num_gathered_parameters=0)


_LLAMA_8B = _llama3("llama-3-8b", 32, 4096, 14_336, 32, 8_192)
_LLAMA_70B = _llama3("llama-3-70b", 80, 8192, 28_672, 64, 8_192)
_LONG = 131_072
_ALL = (
    _round("8b", 8_030_000_000, replace(_LLAMA_8B, max_context=_LONG)),
    _round("70b", 70_000_000_000, replace(_LLAMA_70B, max_context=_LONG)),
    _LLAMA_8B,
    _LLAMA_70B,
    replace(_LLAMA_8B, name="llama-3.1-8b", max_context=_LONG),
    replace(_LLAMA_70B, name="llama-3.1-70b", max_context=_LONG),
    _smollm2("smollm2-135m", 30, 576, 1_536, 9, 3),
    _smollm2("smollm2-360m", 32, 960, 2_560, 15, 5),
    _smollm2("smollm2-1.7b", 24, 2_048, 8_192, 32, 32),
)
SHAPES = {shape.name: shape for shape in _ALL}
