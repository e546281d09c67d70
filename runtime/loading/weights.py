"""Where the tensors of a model come from: a safetensors folder, a GGUF file, or a random generator.

Each reader offers the same tensors under their Hugging Face names, in the Hugging Face layout.
"""

import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from umbel.kernels.grouped import GroupedWeight
from umbel.runtime.errors import ModelError
from umbel.runtime.loading.gguf_file import GGUFFile
from umbel.runtime.models.config import ModelConfig
from umbel.runtime.models.tensors import Shape, mlp_norm_name

_INDEX_FILE = "model.safetensors.index.json"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)

# llama.cpp stores queries and keys of these architectures with the pairs of RoPE interleaved.
_GGUF_INTERLEAVED = ("llama", "smollm3")
_GGUF_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class WeightReader(Protocol):
    """The tensors of one model. `shapes` is known without reading any tensor."""

    where: str  # for messages

    @property
    def shapes(self) -> Mapping[str, Shape]: ...

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor of that name; the caller owns it."""
        ...

    def load_part(self, name: str, dtype: torch.dtype, where: tuple[slice, ...]) -> Tensor:
        """`load(name, dtype)[where]`, without reading much more than that.

        where: a slice for each dimension, with start and stop. Rows of queries and keys come in
        whole heads.
        """
        ...

    def load_grouped(self, name: str) -> GroupedWeight | None:
        """The same as it is quantized in the file; None where it is not, or in another way."""
        ...


class SafetensorsReader:
    """A Hugging Face folder with one or several safetensors files.

    Raises `ModelError` for missing, corrupt or pickled files.
    """

    # Of no use here: the towers of multimodal checkpoints, and frequencies that old ones stored.
    _IGNORED = re.compile(r"(^|\.)(vision_tower|multi_modal_projector)\.|\.rotary_emb\.inv_freq$")

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        self.where = str(folder)
        shapes: dict[str, Shape] = {}
        # Any: the classes of safetensors have no annotations.
        self._files: dict[Path, Any] = {
            path: _open_safetensors(path) for path in _safetensors_files(folder)
        }
        self._places: dict[str, tuple[Path, str]] = {}  # name -> file, name in the file
        for path, file in self._files.items():
            for stored in file.keys():  # noqa: SIM118  # not a mapping
                name = _without_text_prefix(stored)
                if self._IGNORED.search(stored) or (config.tied_head and name == "lm_head.weight"):
                    continue
                shapes[name] = tuple(file.get_slice(stored).get_shape())
                self._places[name] = (path, stored)
        self.shapes = shapes

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        path, stored = self._places[name]
        return _checked(self._files[path].get_tensor(stored), path, stored).to(dtype)

    def load_part(self, name: str, dtype: torch.dtype, where: tuple[slice, ...]) -> Tensor:
        path, stored = self._places[name]
        return _checked(self._files[path].get_slice(stored)[where], path, stored).to(dtype)

    def load_grouped(self, name: str) -> GroupedWeight | None:
        return None


def _checked(tensor: Tensor, path: Path, stored: str) -> Tensor:
    if tensor.dtype not in _FLOATS:
        raise ModelError(
            f"tensor {stored!r} of {path} has dtype {tensor.dtype}; "
            f"supported are float32, float16 and bfloat16"
        )
    return tensor


def _without_text_prefix(stored: str) -> str:
    """Multimodal checkpoints put the text model under one of two prefixes."""
    if stored.startswith("language_model."):
        return stored.removeprefix("language_model.")
    if stored.startswith("model.language_model."):
        return "model." + stored.removeprefix("model.language_model.")
    return stored


def _safetensors_files(folder: Path) -> list[Path]:
    index = folder / _INDEX_FILE
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if files:
            return files
        pickles = sorted(
            path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth")
        )
        if pickles:
            raise ModelError(
                f"{folder} has its weights in {', '.join(pickles)}: pickles can run code and are "
                f"not loaded; convert them to safetensors"
            )
        raise ModelError(f"{folder} has no weights: expected {_INDEX_FILE} or *.safetensors")
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ModelError(f"{index} is not a readable index of shards: {exc!r}") from exc
    outside = sorted(str(name) for name in names if Path(str(name)).name != name)
    if outside:
        raise ModelError(f"{index} names files outside its folder: {', '.join(outside)}")
    missing = sorted(name for name in names if not (folder / name).is_file())
    if missing:
        raise ModelError(
            f"{folder} is incomplete: {index.name} names {len(names)} shards, missing are "
            f"{', '.join(missing)}; download them"
        )
    return [folder / name for name in sorted(names)]


def _open_safetensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as exc:
        raise ModelError(
            f"{path} is not a readable safetensors file: {exc}; download it again"
        ) from exc


class GGUFReader:
    """The tensors of a GGUF file, dequantized, in the names and the layout of Hugging Face."""

    ROPE_FACTORS = "rope_freqs.weight"  # part of the configuration, see load.py

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self.where = str(file.path)
        self._file = file
        self._config = config
        self._stored = {
            self._name(stored): stored for stored in file.tensors if stored != self.ROPE_FACTORS
        }
        self.shapes = {name: file.tensors[stored].shape for name, stored in self._stored.items()}

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        grouped = self.load_grouped(name)
        if grouped is not None:  # the same numbers, on all cores
            return grouped.dequantized().to(dtype)
        tensor = torch.from_numpy(self._file.load(self._stored[name]))
        num_heads = self._num_interleaved_heads(name)
        if num_heads is not None:
            tensor = _split_halves(tensor, num_heads)
        return tensor.to(dtype)

    def load_part(self, name: str, dtype: torch.dtype, where: tuple[slice, ...]) -> Tensor:
        rows, *columns = where
        tensor = torch.from_numpy(self._file.load_rows(self._stored[name], rows.start, rows.stop))
        if self._num_interleaved_heads(name) is not None:
            tensor = _split_halves(tensor, len(tensor) // self._config.head_dim)
        return tensor[(slice(None), *columns)].to(dtype)

    def load_grouped(self, name: str) -> GroupedWeight | None:
        weight = self._file.load_grouped(self._stored[name])
        num_heads = self._num_interleaved_heads(name)
        if weight is None or num_heads is None:
            return weight
        return weight.select_rows(_split_halves(torch.arange(weight.shape[0]), num_heads))

    def _num_interleaved_heads(self, name: str) -> int | None:
        """Heads whose rows must be put in order; None if the tensor's rows are in order."""
        if self._config.architecture not in _GGUF_INTERLEAVED:
            return None
        if ".q_proj." in name:
            return self._config.num_heads
        return self._config.num_kv_heads if ".k_proj." in name else None

    def _name(self, stored: str) -> str:
        """The Hugging Face name; an unknown tensor keeps its own, and is refused as unexpected."""
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", stored)
        if layer is not None:
            idx, part, kind = layer.groups()
            new = mlp_norm_name(self._config) if part == "ffn_norm" else _GGUF_LAYER.get(part)
            return stored if new is None else f"model.layers.{int(idx)}.{new}.{kind}"
        part, _, kind = stored.rpartition(".")
        return f"{_GGUF_TOP[part]}.{kind}" if part in _GGUF_TOP else stored


def _split_halves(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows [H * D, ...] with RoPE pairs adjacent -> each head's first halves, then its second."""
    pairs = tensor.view(num_heads, -1, 2, *tensor.shape[1:])  # [H, D/2, 2, ...]
    return pairs.transpose(1, 2).reshape(tensor.shape)


class DummyReader:
    """Random weights for a configuration; they depend on seed and name, not on the order."""

    _STD = 0.02  # keeps activations of deep models finite in bfloat16

    def __init__(
        self,
        expected: Mapping[str, Shape],
        config: ModelConfig,
        seed: int,
        device: torch.device | None = None,
    ) -> None:
        """device: where they are drawn, the CPU by default; each kind draws other numbers."""
        self.where = "random weights"
        self.shapes = expected
        self._norm_mean = 1.0 - config.norm_offset
        self._seed = seed
        self._device = device or torch.device("cpu")
        self._last: tuple[str, torch.dtype, Tensor] | None = None  # of `load_part`

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        # The CPU generator looks at 32 bits of a seed only.
        seed = zlib.crc32(f"{self._seed} {name}".encode())
        generator = torch.Generator(self._device).manual_seed(seed)
        mean = self._norm_mean if name.endswith("norm.weight") else 0.0
        tensor = torch.empty(self.shapes[name], dtype=dtype, device=self._device)
        return tensor.normal_(mean, self._STD, generator=generator)

    def load_part(self, name: str, dtype: torch.dtype, where: tuple[slice, ...]) -> Tensor:
        if self._last is None or self._last[:2] != (name, dtype):
            self._last = (name, dtype, self.load(name, dtype))
        return self._last[2][where]

    def load_grouped(self, name: str) -> GroupedWeight | None:
        return None
