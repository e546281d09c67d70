"""The tensors a model consists of: their Hugging Face names and the shapes they must have."""

from collections.abc import Mapping

from umbel.runtime.errors import ModelError
from umbel.runtime.models.config import ModelConfig

Shape = tuple[int, ...]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
_SHOWN = 8  # problems listed in one message


def layer_prefix(idx: int) -> str:
    return f"model.layers.{idx}."


def mlp_norm_name(config: ModelConfig) -> str:
    """Gemma names the norm before the MLP apart, because another one follows the attention."""
    return "pre_feedforward_layernorm" if config.post_norms else "post_attention_layernorm"


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name and shape of every tensor of the model."""
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for idx in range(config.num_layers):
        prefix = layer_prefix(idx)
        shapes |= {prefix + name: shape for name, shape in _layer_tensors(config).items()}
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tied_head:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def _layer_tensors(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, Shape] = {}
    products = (
        ("self_attn.q_proj", queries, hidden, config.qkv_bias),
        ("self_attn.k_proj", keys, hidden, config.qkv_bias),
        ("self_attn.v_proj", keys, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, queries, config.output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    )
    for name, rows, columns, has_bias in products:
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    norms = ["input_layernorm", mlp_norm_name(config)]
    if config.post_norms:
        norms += ["post_attention_layernorm", "post_feedforward_layernorm"]
    shapes |= {f"{name}.weight": (hidden,) for name in norms}
    if config.qk_norm:
        shapes |= {f"self_attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    return shapes


def check_tensors(expected: Mapping[str, Shape], found: Mapping[str, Shape], where: str) -> None:
    """Raises `ModelError` naming missing, extra and wrongly shaped tensors. where: the file."""
    problems = []
    for name, shape in expected.items():
        if name not in found:
            problems.append(f"missing {name} {list(shape)}")
        elif found[name] != shape:
            problems.append(f"{name} has shape {list(found[name])}, expected {list(shape)}")
    problems += [f"unexpected {name} {list(found[name])}" for name in found if name not in expected]
    if not problems:
        return
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise ModelError(
        f"the tensors of {where} do not fit its configuration: {'; '.join(problems[:_SHOWN])}{more}"
    )
