"""The decoder: one configurable transformer for all supported architectures.

The runner calls `forward` once per step with all rows of the ragged batch, then `logits` with the
rows that are wanted. Rows know nothing of requests: what connects them is behind
`AttentionContext`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from umbel.kernels.activation import GATED_ACTIVATIONS
from umbel.kernels.embedding import Embedding
from umbel.kernels.linear import Linear
from umbel.kernels.norm import HeadNorm, RMSNorm
from umbel.kernels.rope import RopeTable, Rotation, rotate
from umbel.runtime.models.config import ModelConfig


class AttentionContext(Protocol):
    """Where keys and values of a step go, and which of them each row sees."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        """q: [T, Hq, D], k and v: [T, Hkv, D], rotated; of unit stride in D only. -> [T, Hq, D].

        Writes k and v to the cache, then lets each row attend to all it may see, itself included.
        Query head h reads key-value head h // (Hq / Hkv). With a window of w, the row at position p
        sees positions p - w + 1 .. p.
        """
        ...


@dataclass(slots=True, kw_only=True)
class LayerWeights:
    """The weights of one layer, ready to be called."""

    input_norm: RMSNorm
    qkv: Linear  # [E] -> [(Hq + 2 Hkv) D], queries first
    head_norm: HeadNorm | None  # over queries and keys
    output: Linear  # [Hq D] -> [E]
    post_attention_norm: RMSNorm | None
    mlp_norm: RMSNorm
    gate_up: Linear  # [E] -> [2 F], gate first
    down: Linear  # [F] -> [E]
    post_mlp_norm: RMSNorm | None


@dataclass(slots=True, kw_only=True)
class DecoderWeights:
    """All weights of a model. With a tied head, `head` is a second, packed copy of `embedding`."""

    embedding: Embedding  # [V, E]
    layers: list[LayerWeights]
    final_norm: RMSNorm
    head: Linear  # [E] -> [V]

    @property
    def products(self) -> list[Linear]:
        """All products, the head last."""
        own = [(layer.qkv, layer.output, layer.gate_up, layer.down) for layer in self.layers]
        return [product for of_layer in own for product in of_layer] + [self.head]


class Decoder:
    """A model that is ready to compute. Has no state of its own but the tables of RoPE."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self.config = config
        self.products = weights.products  # the head last
        self._weights = weights
        self._activation = GATED_ACTIVATIONS[config.activation]
        specs = list(dict.fromkeys(layer.rope for layer in config.layers if layer.rope is not None))
        self._ropes = [RopeTable(spec, config.context_len) for spec in specs]
        self._rope_idxs = [
            None if layer.rope is None else specs.index(layer.rope) for layer in config.layers
        ]
        self._embedding_scale: Tensor | None = None
        if config.embedding_scale is not None:
            # Rounded to the model's dtype, as in the code that these models were trained with.
            self._embedding_scale = torch.tensor(config.embedding_scale).to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations, keys and values."""
        return self._weights.embedding.dtype

    @property
    def num_rotations(self) -> int:
        """How many `layers` wants: one for each kind of RoPE."""
        return len(self._ropes)

    @property
    def layer_products(self) -> list[Linear]:
        """All products but the head."""
        return self.products[:-1]

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one step with logits reads: all products and the head.

        The embedding is not counted: a step reads single rows of it.
        """
        return sum(product.weight_bytes for product in self._weights.products)

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the table that tokens are looked up in."""
        return self._weights.embedding.held_bytes

    def forward(self, token_ids: Tensor, positions: Tensor, context: AttentionContext) -> Tensor:
        """token_ids, positions: [T] int64 -> hidden rows [T, E], before the final norm.

        Raises `IndexError` for a token id or a position outside the model's range.
        """
        with torch.inference_mode():
            x = self.embed(token_ids)
            return self.add_last(*self.layers(x, self.rotations(positions), context))

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T] int64 -> the rows that enter the layers, [T, E], in new memory."""
        x = self._weights.embedding(token_ids)
        return x if self._embedding_scale is None else x * self._embedding_scale

    def rotations(self, positions: Tensor) -> list[Rotation]:
        """[T] int64 -> what `layers` wants to know of the positions."""
        return [table.rotation(positions) for table in self._ropes]

    def layers(
        self, x: Tensor, rotations: Sequence[Rotation], context: AttentionContext
    ) -> tuple[Tensor, Tensor]:
        """x: [T, E], changed in place -> two terms of the hidden rows, [T, E] each."""
        out: Tensor | None = None  # what the layer before adds to x
        for idx, layer in enumerate(self._weights.layers):
            rope_idx = self._rope_idxs[idx]
            rotation = None if rope_idx is None else rotations[rope_idx]
            norm = layer.input_norm
            normed = norm(x) if out is None else norm.add(x, out)
            out = self._attention(idx, layer, normed, rotation, context)
            out = self._mlp(layer, layer.mlp_norm.add(x, out))
        assert out is not None, "a model has layers"
        return x, out

    def add_last(self, x: Tensor, out: Tensor) -> Tensor:
        """The hidden rows, [T, E], of what `layers` returned."""
        return x.add_(out)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [W, E], rows out of `forward` -> [W, V] float32. Applies the final norm."""
        with torch.inference_mode():
            logits = self._weights.head(self._weights.final_norm(hidden)).float()
            cap = self.config.logit_softcap
            return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _attention(
        self,
        idx: int,
        layer: LayerWeights,
        normed: Tensor,
        rotation: Rotation | None,
        context: AttentionContext,
    ) -> Tensor:
        """normed: [T, E] -> what is to be added, [T, E]."""
        config = self.config
        num_heads, num_rotated = config.num_heads, config.num_heads + config.num_kv_heads
        num_all = num_rotated + config.num_kv_heads
        qkv = layer.qkv(normed).view(normed.shape[0], num_all, config.head_dim)
        qk, v = qkv[:, :num_rotated], qkv[:, num_rotated:]
        if layer.head_norm is not None:
            qk = layer.head_norm(qk)
        if rotation is not None:
            qk = rotate(qk, rotation)
        out = context.attend(
            idx,
            qk[:, :num_heads],
            qk[:, num_heads:],
            v,
            scale=config.scale,
            window=config.layers[idx].window,
        )
        out = layer.output(out.flatten(1))  # [T, E]
        if layer.post_attention_norm is not None:
            out = layer.post_attention_norm(out)
        return out

    def _mlp(self, layer: LayerWeights, normed: Tensor) -> Tensor:
        out = layer.down(self._activation(layer.gate_up(normed)))  # [T, E]
        if layer.post_mlp_norm is not None:
            out = layer.post_mlp_norm(out)
        return out
