"""A decoder whose matrix products compute nothing: what is left of a step is its overhead.

Norms, rotations, attention, writes to the KV cache, sampling and all of the host's work are those
of the real model; only the reading of weights and the arithmetic of products are gone.
"""

import torch
from torch import Tensor

from umbel.kernels.embedding import PlainEmbedding
from umbel.kernels.norm import HeadNorm, RMSNorm
from umbel.runtime.models.config import ModelConfig
from umbel.runtime.models.decoder import Decoder, DecoderWeights, LayerWeights


class HollowLinear:
    """`layer(x)`: x [T, I] -> zeros [T, O]. Allocates its result, as a product does."""

    weight_bytes = 0

    def __init__(self, in_features: int, out_features: int) -> None:
        self.in_features = in_features
        self.out_features = out_features

    def __call__(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[0], self.out_features)


def hollow_decoder(config: ModelConfig, dtype: torch.dtype) -> Decoder:
    """The model of `config` without its products. Its embedding is all ones."""
    weights = DecoderWeights(
        embedding=PlainEmbedding(torch.ones(config.vocab_size, config.hidden_size, dtype=dtype)),
        layers=[_layer(config) for _ in config.layers],
        final_norm=_norm(config),
        head=HollowLinear(config.hidden_size, config.vocab_size),
    )
    return Decoder(config, weights)


def _layer(config: ModelConfig) -> LayerWeights:
    hidden, mlp = config.hidden_size, config.intermediate_size
    q_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    return LayerWeights(
        input_norm=_norm(config),
        qkv=HollowLinear(hidden, q_width + 2 * kv_width),
        head_norm=_head_norm(config) if config.qk_norm else None,
        output=HollowLinear(q_width, hidden),
        post_attention_norm=_norm(config) if config.post_norms else None,
        mlp_norm=_norm(config),
        gate_up=HollowLinear(hidden, 2 * mlp),
        down=HollowLinear(mlp, hidden),
        post_mlp_norm=_norm(config) if config.post_norms else None,
    )


def _norm(config: ModelConfig) -> RMSNorm:
    return RMSNorm(torch.ones(config.hidden_size), config.norm_eps)


def _head_norm(config: ModelConfig) -> HeadNorm:
    ones = torch.ones(config.head_dim)
    return HeadNorm(
        ones,
        ones,
        num_queries=config.num_heads,
        num_keys=config.num_kv_heads,
        eps=config.norm_eps,
    )
