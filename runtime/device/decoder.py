"""The decoder on a device: `models.decoder.Decoder` from the kernels in `kernels.triton`.

All that changes from step to step comes in as tensors, so a step can be captured. Of several ranks
each computes its heads, its part of the MLP and its part of the vocabulary.
"""

import torch
from torch import Tensor
from torch.nn import functional

from umbel.kernels.rope import rotation_table
from umbel.kernels.triton.attention import attend
from umbel.kernels.triton.backend import Backend
from umbel.kernels.triton.elementwise import add_rms_norm, gated_activation, rotate_and_write
from umbel.kernels.triton.work_split import HeadShape
from umbel.kernels.triton.work_tensors import WorkTensors
from umbel.runtime.device.group import Group, Shard
from umbel.runtime.device.weights import DeviceLayer, DeviceWeights, Product
from umbel.runtime.models.config import ModelConfig


class DeviceDecoder:
    """One rank's part of a model. Has no state but the tables of RoPE."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DeviceWeights,
        shard: Shard,
        group: Group,
        *,
        context_len: int,
        backend: Backend | None = None,
    ) -> None:
        """context_len: positions that rows may have. backend: of the kernels; None: by device."""
        self.config = config
        self.windows = list(dict.fromkeys(layer.window for layer in config.layers))
        self.heads = HeadShape(
            num_kv_heads=shard.num_kv_heads,
            group=config.num_heads // config.num_kv_heads,
            head_dim=config.head_dim,
            element_bytes=weights.embedding.element_size(),
        )
        self._weights = weights
        self._shard = shard
        self._group = group
        self._backend = backend
        specs = dict.fromkeys(layer.rope for layer in config.layers if layer.rope is not None)
        device = weights.embedding.device
        self._tables = {spec: rotation_table(spec, context_len).to(device) for spec in specs}
        self._embedding_scale: Tensor | None = None
        if config.embedding_scale is not None:
            # Rounded to the model's dtype, as in the code that these models were trained with.
            self._embedding_scale = torch.tensor(config.embedding_scale).to(weights.embedding)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations, keys and values."""
        return self._weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self._weights.embedding.device

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        pool: Tensor,
        works: list[WorkTensors],
    ) -> Tensor:
        """token_ids, positions, slots: [T] int32, slots of -1 are not written; pool: [2, layers,
        slots, Hkv, D]; works: one for each of `windows`. -> [T, E], under the final norm."""
        config = self.config
        residual = self._embed(token_ids)
        out: Tensor | None = None  # what the layer before adds to the residual
        for idx, layer in enumerate(self._weights.layers):
            of_layer = config.layers[idx]
            work = works[self.windows.index(of_layer.window)]
            normed = self._add_norm(out, residual, layer.input_norm)
            q = rotate_and_write(
                _product(normed, layer.qkv),
                slots,
                pool[0, idx],
                pool[1, idx],
                table=None if of_layer.rope is None else self._tables[of_layer.rope],
                positions=positions,
                head_norm=layer.head_norm,
                backend=self._backend,
            )
            heads = attend(
                q, pool[0, idx], pool[1, idx], work, scale=config.scale, backend=self._backend
            )
            out = self._summed(heads.flatten(1), layer.output, layer.post_attention_norm)
            out = self._mlp(layer, self._add_norm(out, residual, layer.mlp_norm))
        return self._add_norm(out, residual, self._weights.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden: [W, E], rows out of `forward` -> [W, V] of the model's dtype, or float32 where a
        model bounds its logits. The same on every rank."""
        part = functional.linear(hidden, self._weights.head)  # [W, padded V / ranks]
        if self._shard.size == 1:
            logits = part
        else:
            gathered = self._group.gather(part)  # [ranks, W, padded V / ranks]
            rows = gathered.transpose(0, 1).reshape(len(hidden), -1)
            logits = rows[:, : self.config.vocab_size]
        cap = self.config.logit_softcap
        return logits if cap is None else logits.float().div_(cap).tanh_().mul_(cap)

    def _embed(self, token_ids: Tensor) -> Tensor:
        """[T, E], new memory."""
        table, rows = self._weights.embedding, self._shard.vocab
        if self._shard.size == 1:
            x = functional.embedding(token_ids, table)
        else:
            is_here = (token_ids >= rows.start) & (token_ids < rows.stop)
            local = torch.where(is_here, token_ids - rows.start, 0)
            x = functional.embedding(local, table).mul_(is_here[:, None])
            self._group.sum(x)
        return x if self._embedding_scale is None else x.mul_(self._embedding_scale)

    def _add_norm(self, out: Tensor | None, residual: Tensor, weight: Tensor) -> Tensor:
        """The norm of the residual after `out` was added to it, in place."""
        eps, backend = self.config.norm_eps, self._backend
        if out is None:
            return add_rms_norm(residual, None, weight, eps, backend=backend)
        return add_rms_norm(out, residual, weight, eps, backend=backend)

    def _mlp(self, layer: DeviceLayer, normed: Tensor) -> Tensor:
        gated = gated_activation(
            _product(normed, layer.gate_up), self.config.activation, backend=self._backend
        )
        return self._summed(gated, layer.down, layer.post_mlp_norm)

    def _summed(self, x: Tensor, product: Product, post_norm: Tensor | None) -> Tensor:
        out = _product(x, product)
        self._group.sum(out)
        if post_norm is not None:
            out = add_rms_norm(out, None, post_norm, self.config.norm_eps, backend=self._backend)
        return out


def _product(x: Tensor, product: Product) -> Tensor:
    return functional.linear(x, product.weight, product.bias)
