"""The weights of one rank, read from the model's file straight into tensors of the device.

A product's tensor is made once, with all weights that are stacked in it, and filled some rows at a
time: the host never holds more than a block.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from umbel.kernels.triton.elementwise import HeadNormWeights
from umbel.runtime.device.group import Shard
from umbel.runtime.loading.weights import WeightReader
from umbel.runtime.models.config import ModelConfig
from umbel.runtime.models.tensors import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    expected_tensors,
    layer_prefix,
    mlp_norm_name,
)

BLOCK_BYTES = 64 << 20  # of float32 on the host


@dataclass(frozen=True, slots=True)
class Product:
    """y = x @ weight.T + bias."""

    weight: Tensor  # [O, I]
    bias: Tensor | None  # [O]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLayer:
    """One layer's part; norms are float32 and whole on every rank."""

    input_norm: Tensor  # [E]
    qkv: Product  # queries first
    head_norm: HeadNormWeights | None
    output: Product
    post_attention_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: Product  # gate first
    down: Product
    post_mlp_norm: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWeights:
    """One rank's part of a model. With a tied head, `head` is `embedding`."""

    embedding: Tensor  # [padded V / ranks, E]
    layers: list[DeviceLayer]
    final_norm: Tensor
    head: Tensor  # [padded V / ranks, E]


def shard_bytes(config: ModelConfig, dtype: torch.dtype, size: int) -> int:
    """About how much one of `size` ranks holds."""
    shapes = expected_tensors(config).values()
    return sum(torch.Size(shape).numel() for shape in shapes) * dtype.itemsize // size


class DeviceLoader:
    """Reads one rank's part of a model."""

    def __init__(
        self,
        config: ModelConfig,
        reader: WeightReader,
        shard: Shard,
        *,
        dtype: torch.dtype,
        device: torch.device,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._config = config
        self._reader = reader
        self._shard = shard
        self._dtype = dtype
        self._device = device
        self._block_bytes = block_bytes

    def load(self) -> DeviceWeights:
        """Raises `ModelError` for tensors that cannot be read."""
        config = self._config
        with torch.inference_mode():
            embedding = self._vocabulary(EMBEDDING)
            return DeviceWeights(
                embedding=embedding,
                layers=[self._layer(layer_prefix(idx)) for idx in range(config.num_layers)],
                final_norm=self._norm(FINAL_NORM),
                head=embedding if config.tied_head else self._vocabulary(HEAD),
            )

    def _layer(self, prefix: str) -> DeviceLayer:
        config, shard = self._config, self._shard
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        norms = [f"{prefix}post_attention_layernorm", f"{prefix}post_feedforward_layernorm"]
        post_norms = [self._norm(f"{name}.weight") for name in norms if config.post_norms]
        return DeviceLayer(
            input_norm=self._norm(f"{prefix}input_layernorm.weight"),
            qkv=self._rows_of(
                (f"{attention}q_proj", shard.queries),
                (f"{attention}k_proj", shard.keys),
                (f"{attention}v_proj", shard.keys),
            ),
            head_norm=self._head_norm(attention) if config.qk_norm else None,
            output=self._columns_of(f"{attention}o_proj", shard.queries),
            post_attention_norm=post_norms[0] if post_norms else None,
            mlp_norm=self._norm(f"{prefix}{mlp_norm_name(config)}.weight"),
            gate_up=self._rows_of((f"{mlp}gate_proj", shard.inner), (f"{mlp}up_proj", shard.inner)),
            down=self._columns_of(f"{mlp}down_proj", shard.inner),
            post_mlp_norm=post_norms[1] if post_norms else None,
        )

    def _rows_of(self, *parts: tuple[str, slice]) -> Product:
        """Products over the same input, stacked; of each some outputs."""
        num_rows = sum(rows.stop - rows.start for _, rows in parts)
        size = self._shape(f"{parts[0][0]}.weight")[1]
        weight = self._empty(num_rows, size)
        bias = self._empty(num_rows) if f"{parts[0][0]}.bias" in self._reader.shapes else None
        begin = 0
        for name, rows in parts:
            end = begin + rows.stop - rows.start
            self._fill(weight[begin:end], f"{name}.weight", (rows, slice(0, size)))
            if bias is not None:
                self._fill(bias[begin:end], f"{name}.bias", (rows,))
            begin = end
        return Product(weight, bias)

    def _columns_of(self, name: str, columns: slice) -> Product:
        """A product over some of the inputs. Its results are summed over the ranks, the bias with
        them: only the first has it."""
        num_rows = self._shape(f"{name}.weight")[0]
        weight = self._empty(num_rows, columns.stop - columns.start)
        self._fill(weight, f"{name}.weight", (slice(0, num_rows), columns))
        bias = None
        if f"{name}.bias" in self._reader.shapes and self._shard.rank == 0:
            bias = self._empty(num_rows)
            self._fill(bias, f"{name}.bias", (slice(0, num_rows),))
        return Product(weight, bias)

    def _vocabulary(self, name: str) -> Tensor:
        rows, size = self._shard.vocab, self._config.hidden_size
        weight = torch.zeros(self._shard.padded_vocab, size, dtype=self._dtype, device=self._device)
        self._fill(weight[: rows.stop - rows.start], name, (rows, slice(0, size)))
        return weight

    def _norm(self, name: str) -> Tensor:
        (size,) = self._shape(name)
        weight = self._reader.load_part(name, torch.float32, (slice(0, size),))
        return (weight + self._config.norm_offset).to(self._device)

    def _head_norm(self, prefix: str) -> HeadNormWeights:
        return HeadNormWeights(
            self._norm(f"{prefix}q_norm.weight"),
            self._norm(f"{prefix}k_norm.weight"),
            self._config.norm_eps,
        )

    def _fill(self, target: Tensor, name: str, where: tuple[slice, ...]) -> None:
        """target: the part `where` of a tensor, on the device."""
        rows, *columns = where
        # A block holds whole heads: a GGUF file orders the rows within each in another way.
        head = self._config.head_dim
        width = target[:1].numel() * torch.float32.itemsize
        step = max(head, self._block_bytes // max(1, width) // head * head)
        for begin in range(rows.start, rows.stop, step):
            end = min(begin + step, rows.stop)
            part = self._reader.load_part(name, self._dtype, (slice(begin, end), *columns))
            target[begin - rows.start : end - rows.start].copy_(part)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._reader.shapes[name]

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)
