"""`RopeSpec` from the ways in which model files spell rotary embeddings and their scalings."""

from collections.abc import Mapping
from typing import Any

from umbel.kernels.rope import RopeSpec, yarn_attention_factor
from umbel.runtime.errors import ModelError
from umbel.runtime.models.config import unsupported

# "dynamic" and "longrope" choose the frequencies by the length of the sequence: keys that are in
# the cache would have to be rotated again when a sequence grows, so no cached prefix is exact.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def rope_from_hf(parameters: Mapping[str, Any], *, dim: int, context_len: int) -> RopeSpec:
    """The rotation in a Hugging Face `rope_parameters` (or `rope_scaling`) object, with its theta.

    dim: head size; context_len: the model's `max_position_embeddings`.
    Raises `ModelError` for a scaling that is not computed exactly.
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _ROPE_TYPES:
        raise unsupported("rope type", kind, _ROPE_TYPES)
    partial = parameters.get("partial_rotary_factor")
    if partial is not None and partial != 1.0:
        raise unsupported("partial_rotary_factor", partial, "1.0")
    theta = float(parameters["rope_theta"])
    original = int(parameters.get("original_max_position_embeddings") or context_len)
    try:
        match kind:
            case "linear":
                factor = _number(parameters, kind, "factor")
                return RopeSpec(dim=dim, theta=theta, kind="linear", factor=factor)
            case "llama3":
                return RopeSpec(
                    dim=dim,
                    theta=theta,
                    kind="llama3",
                    factor=_number(parameters, kind, "factor"),
                    low_freq_factor=_number(parameters, kind, "low_freq_factor"),
                    high_freq_factor=_number(parameters, kind, "high_freq_factor"),
                    original_context_len=original,
                )
            case "yarn":
                return _yarn_from_hf(parameters, dim, theta, original, context_len)
            case _:
                return RopeSpec(dim=dim, theta=theta)
    except ValueError as exc:
        raise ModelError(f"the model's rotary embedding is not usable: {exc}") from exc


def _yarn_from_hf(
    parameters: Mapping[str, Any], dim: int, theta: float, original: int, context_len: int
) -> RopeSpec:
    factor = parameters.get("factor")
    factor = context_len / original if factor is None else float(factor)
    attention_factor = parameters.get("attention_factor")
    if attention_factor is None:
        mscale, mscale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
        attention_factor = yarn_attention_factor(factor, mscale if mscale and mscale_all else 1.0)
        if mscale and mscale_all:
            attention_factor /= yarn_attention_factor(factor, mscale_all)
    return RopeSpec(
        dim=dim,
        theta=theta,
        kind="yarn",
        factor=factor,
        original_context_len=original,
        beta_fast=float(parameters.get("beta_fast") or 32.0),
        beta_slow=float(parameters.get("beta_slow") or 1.0),
        truncate=bool(parameters.get("truncate", True)),
        attention_factor=float(attention_factor),
    )


def _number(parameters: Mapping[str, Any], kind: str, name: str) -> float:
    value = parameters.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"rope type {kind!r} needs the number {name!r}, the file has {value!r}")
    return float(value)


def rope_from_gguf(
    metadata: Mapping[str, Any], prefix: str, *, dim: int, context_len: int
) -> RopeSpec:
    """The rotation that a GGUF file names under `prefix` ("llama.rope.").

    The bands of Llama 3.1 are in the tensor rope_freqs.weight instead: the loader adds them.
    """
    rotated = metadata.get(f"{prefix}dimension_count", dim)
    if rotated != dim:
        raise unsupported("rope dimension_count", rotated, f"the whole head, {dim}")
    theta = float(metadata.get(f"{prefix}freq_base", 10_000.0))
    factor = float(
        metadata.get(f"{prefix}scaling.factor", metadata.get(f"{prefix}scale_linear", 0.0))
    )
    kind = metadata.get(f"{prefix}scaling.type", "linear" if factor else "none")
    original = int(metadata.get(f"{prefix}scaling.original_context_length", context_len))
    try:
        match kind:
            case "none":
                return RopeSpec(dim=dim, theta=theta)
            case "linear":
                return RopeSpec(dim=dim, theta=theta, kind="linear", factor=factor or 1.0)
            case "yarn":
                factor = factor or 1.0
                temperature = float(metadata.get(f"{prefix}scaling.attn_factor", 1.0))
                return RopeSpec(
                    dim=dim,
                    theta=theta,
                    kind="yarn",
                    factor=factor,
                    original_context_len=original,
                    beta_fast=float(metadata.get(f"{prefix}scaling.yarn_beta_fast", 32.0)),
                    beta_slow=float(metadata.get(f"{prefix}scaling.yarn_beta_slow", 1.0)),
                    attention_factor=temperature * yarn_attention_factor(factor),
                )
            case _:
                raise unsupported("rope scaling", kind, ("none", "linear", "yarn"))
    except ValueError as exc:
        raise ModelError(f"the model's rotary embedding is not usable: {exc}") from exc
