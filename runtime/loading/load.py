"""`load_model`: from a `ModelSource` to a `Decoder` that is ready to compute."""

import dataclasses
import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from umbel.kernels.embedding import GroupedEmbedding, PlainEmbedding
from umbel.kernels.grouped import GroupedWeight, stack_rows
from umbel.kernels.linear import (
    GroupedLinear,
    Linear,
    NativeLinear,
    can_group,
    is_native,
    make_linear,
)  # fmt: skip
from umbel.kernels.native.memory import WeightMemory
from umbel.kernels.norm import HeadNorm, RMSNorm
from umbel.kernels.rope import RopeSpec
from umbel.runtime.errors import ModelError
from umbel.runtime.loading.gguf_file import GGUFFile
from umbel.runtime.loading.quantize import Int8Layers, check_quantize
from umbel.runtime.loading.source import CONFIG_FILE, ModelSource
from umbel.runtime.loading.tuning import DEFAULT_LIMITS, tune_row_limits
from umbel.runtime.loading.weights import DummyReader, GGUFReader, SafetensorsReader, WeightReader
from umbel.runtime.models.config import LayerConfig, ModelConfig
from umbel.runtime.models.decoder import Decoder, DecoderWeights, LayerWeights
from umbel.runtime.models.gguf_config import config_from_gguf
from umbel.runtime.models.hf_config import read_hf_config
from umbel.runtime.models.tensors import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    check_tensors,
    expected_tensors,
    layer_prefix,
    mlp_norm_name,
)

logger = logging.getLogger(__name__)

_DTYPES = (torch.bfloat16, torch.float32)
_GGUF_EMBEDDING = "token_embd.weight"


def load_model(
    source: ModelSource,
    *,
    dtype: torch.dtype,
    load_format: str = "auto",
    seed: int = 0,
    quantize: str = "off",
) -> Decoder:
    """The decoder of the model at `source`, on the CPU, in bfloat16 or float32.

    quantize: "int8" rounds the rows of products to 8 bits, see `quantize`.

    load_format: "auto" takes what is there, "gguf" and "safetensors" insist on it, "dummy" makes
    random weights from `seed` for the configuration found there.
    Raises `ModelError` for what cannot be loaded, naming file, tensor or setting.
    """
    if dtype not in _DTYPES:
        raise ModelError(f"dtype {dtype} is not supported; supported are bfloat16 and float32")
    check_quantize(quantize, dtype, "cpu")
    config, reader = open_model(source, load_format=load_format, seed=seed)
    with torch.inference_mode():
        weights = _Builder(config, reader, dtype, quantize).build()
        tune_row_limits(weights.products)
        decoder = Decoder(config, weights)
    size_mib = decoder.weight_bytes / 2**20
    logger.info("loaded %s (%s, %s, %.0f MiB)", source.path, config.architecture, dtype, size_mib)
    return decoder


def open_model(
    source: ModelSource,
    *,
    load_format: str = "auto",
    seed: int = 0,
    device: torch.device | None = None,
) -> tuple[ModelConfig, WeightReader]:
    """The configuration of the model at `source`, and its tensors, none of them read yet.

    device: where random weights are drawn. Raises as `load_model` does.
    """
    if load_format not in ("auto", "dummy", source.format):
        raise ModelError(
            f"load_format={load_format!r} does not fit {source.path}, which is {source.format}; "
            f"use 'auto', {source.format!r} or 'dummy'"
        )
    file = GGUFFile(source.path) if source.format == "gguf" else None
    config = _config(source, file)
    expected = expected_tensors(config)
    reader: WeightReader
    if load_format == "dummy":
        reader = DummyReader(expected, config, seed, device)
    elif file is not None:
        reader = GGUFReader(file, config)
    else:
        reader = SafetensorsReader(source.path, config)
    check_tensors(expected, reader.shapes, reader.where)
    return config, reader


def read_config(source: ModelSource) -> ModelConfig:
    """The configuration of the model at `source`. Reads no weights."""
    return _config(source, GGUFFile(source.path) if source.format == "gguf" else None)


def _config(source: ModelSource, file: GGUFFile | None) -> ModelConfig:
    if file is None:
        return read_hf_config(source.path / CONFIG_FILE)
    if file.metadata.get("split.count", 1) > 1:
        raise ModelError(
            f"{file.path} is one of {file.metadata['split.count']} parts of a model; merge them "
            f"into one file with llama-gguf-split --merge"
        )
    if _GGUF_EMBEDDING not in file.tensors:
        raise ModelError(f"{file.path} has no tensor {_GGUF_EMBEDDING!r}: it is no language model")
    vocab_size = file.tensors[_GGUF_EMBEDDING].shape[0]
    try:
        config = config_from_gguf(file.metadata, file.tensors.keys(), vocab_size)
        if GGUFReader.ROPE_FACTORS not in file.tensors:
            return config
        return _with_rope_factors(config, file.load(GGUFReader.ROPE_FACTORS).tolist())
    except ModelError as exc:
        raise ModelError(f"{file.path}: {exc}") from exc
    except (TypeError, ValueError) as exc:
        raise ModelError(f"{file.path} has metadata of an unexpected type: {exc}") from exc


def _with_rope_factors(config: ModelConfig, factors: list[float]) -> ModelConfig:
    """GGUF keeps the frequency bands of Llama 3.1 as a tensor of divisors."""

    def scaled(rope: RopeSpec) -> RopeSpec:
        if rope.kind != "default":
            raise ModelError(
                f"rope scaling {rope.kind!r} and the tensor rope_freqs exclude each other"
            )
        try:
            return dataclasses.replace(rope, kind="factors", freq_factors=tuple(factors))
        except ValueError as exc:
            raise ModelError(f"the tensor rope_freqs is not usable: {exc}") from exc

    layers = [
        layer if layer.rope is None else LayerConfig(scaled(layer.rope), layer.window)
        for layer in config.layers
    ]
    return dataclasses.replace(config, layers=tuple(layers))


def _grouped_linear(
    weight: GroupedWeight, bias: Tensor | None, out_dtype: torch.dtype, memory: WeightMemory
) -> Linear:
    if is_native(weight.shape):
        return NativeLinear(weight, bias, out_dtype=out_dtype, memory=memory)
    limit = DEFAULT_LIMITS[4 if weight.offsets is not None else 8]
    return GroupedLinear(weight, bias, max_native_rows=limit, out_dtype=out_dtype, memory=memory)


class _Builder:
    """Fills the weights of a decoder, fusing and packing one product at a time to save memory."""

    def __init__(
        self, config: ModelConfig, reader: WeightReader, dtype: torch.dtype, quantize: str
    ) -> None:
        self._config = config
        self._reader = reader
        self._dtype = dtype
        self._memory = WeightMemory()
        self._int8 = Int8Layers(self._memory) if quantize == "int8" else None

    def build(self) -> DecoderWeights:
        table = self._table()
        layers = [self._layer(layer_prefix(idx)) for idx in range(self._config.num_layers)]
        weights = DecoderWeights(
            embedding=(
                GroupedEmbedding(table, self._dtype)
                if isinstance(table, GroupedWeight)
                else PlainEmbedding(table)
            ),
            layers=layers,
            final_norm=RMSNorm(self._norm_weight(FINAL_NORM), self._config.norm_eps),
            head=self._head(table if self._config.tied_head else None),
        )
        if self._int8 is not None:
            self._int8.report()
        return weights

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        norm = self._norm_maker(prefix)
        return LayerWeights(
            input_norm=norm("input_layernorm"),
            qkv=self._linear(prefix, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            head_norm=self._head_norm(prefix) if config.qk_norm else None,
            output=self._linear(prefix, "self_attn.o_proj"),
            post_attention_norm=norm("post_attention_layernorm") if config.post_norms else None,
            mlp_norm=norm(mlp_norm_name(config)),
            gate_up=self._linear(prefix, "mlp.gate_proj", "mlp.up_proj"),
            down=self._linear(prefix, "mlp.down_proj"),
            post_mlp_norm=norm("post_feedforward_layernorm") if config.post_norms else None,
        )

    def _load(self, name: str) -> Tensor:
        return self._reader.load(name, self._dtype)

    def _table(self) -> GroupedWeight | Tensor:
        """The embedding as the file has it; dense where a tied head is, which then shares it."""
        if self._config.tied_head and not self._can_group(self._reader.shapes[EMBEDDING]):
            return self._load(EMBEDDING)
        grouped = self._reader.load_grouped(EMBEDDING)
        return self._load(EMBEDDING) if grouped is None else grouped.copied(self._memory.copy_of)

    def _head(self, tied: GroupedWeight | Tensor | None) -> Linear:
        weight = tied
        if weight is None:
            weight = self._grouped([HEAD]) or self._load(HEAD)
        if isinstance(weight, GroupedWeight):
            return self._product(weight, None, torch.float32)
        return self._product(weight, None)

    def _can_group(self, shape: Sequence[int]) -> bool:
        return self._dtype == torch.bfloat16 and can_group(shape)

    def _product(
        self,
        weight: GroupedWeight | Tensor,
        bias: Tensor | None,
        out_dtype: torch.dtype = torch.bfloat16,
    ) -> Linear:
        if self._int8 is not None:
            rounded = self._int8.make(weight, bias, out_dtype)
            if rounded is not None:
                return rounded
        if isinstance(weight, GroupedWeight):
            return _grouped_linear(weight, bias, out_dtype, self._memory)
        return make_linear(weight, bias)

    def _grouped(self, names: list[str]) -> GroupedWeight | None:
        """Several weights as one, as they are quantized, if that can be multiplied here."""
        shapes = [self._reader.shapes[name] for name in names]
        shape = (sum(shape[0] for shape in shapes), shapes[0][1])
        if not self._can_group(shape):
            return None
        weights = []
        for name in names:
            weight = self._reader.load_grouped(name)
            if weight is None:
                return None
            weights.append(weight)
        return weights[0] if len(weights) == 1 else stack_rows(weights)

    def _linear(self, prefix: str, *names: str) -> Linear:
        """One product in place of several over the same input: their rows are stacked."""
        bias = None
        if f"{prefix}{names[0]}.bias" in self._reader.shapes:
            bias = torch.cat([self._load(f"{prefix}{name}.bias") for name in names])
        grouped = self._grouped([f"{prefix}{name}.weight" for name in names])
        if grouped is not None:
            return self._product(grouped, bias)
        weights = [self._load(f"{prefix}{name}.weight") for name in names]
        return self._product(weights[0] if len(weights) == 1 else torch.cat(weights), bias)

    def _norm_weight(self, name: str) -> Tensor:
        return self._reader.load(name, torch.float32) + self._config.norm_offset

    def _norm_maker(self, prefix: str) -> Callable[[str], RMSNorm]:
        return lambda name: RMSNorm(
            self._norm_weight(f"{prefix}{name}.weight"), self._config.norm_eps
        )

    def _head_norm(self, prefix: str) -> HeadNorm:
        return HeadNorm(
            self._norm_weight(f"{prefix}self_attn.q_norm.weight"),
            self._norm_weight(f"{prefix}self_attn.k_norm.weight"),
            num_queries=self._config.num_heads,
            num_keys=self._config.num_kv_heads,
            eps=self._config.norm_eps,
        )
