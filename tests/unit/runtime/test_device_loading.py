"""Weights go to a device in blocks, whole or in parts, and memory is divided before it is used."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from unit.runtime.tiny_model import BIASES, GEMMA3, QWEN3, write_model

from umbel.runtime.config import EngineConfig
from umbel.runtime.device.group import OneRank, Shard
from umbel.runtime.device.machine import CudaMachine, HostMachine, Memory
from umbel.runtime.device.memory import blocks_that_fit
from umbel.runtime.device.rank import load_rank
from umbel.runtime.device.weights import DeviceLoader, DeviceWeights, shard_bytes
from umbel.runtime.engine import Engine
from umbel.runtime.errors import InvalidRequest, ModelError
from umbel.runtime.loading.load import open_model
from umbel.runtime.loading.source import ModelSource, find_model
from umbel.runtime.loading.weights import WeightReader
from umbel.runtime.models.config import ModelConfig

CPU = torch.device("cpu")


class CountingReader:
    """Notes how much of a tensor is on the host at a time."""

    def __init__(self, reader: WeightReader) -> None:
        self._reader = reader
        self.shapes = reader.shapes
        self.where = reader.where
        self.largest = 0

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        raise AssertionError("a whole tensor was read")

    def load_part(self, name: str, dtype: torch.dtype, where: tuple[slice, ...]) -> Tensor:
        part = self._reader.load_part(name, dtype, where)
        self.largest = max(self.largest, part.numel() * 4)
        return part

    def load_grouped(self, name: str) -> None:
        return None


def load(
    config: ModelConfig, reader: Any, rank: int = 0, size: int = 1, block_bytes: int = 1 << 30
) -> DeviceWeights:
    shard = Shard(config, rank, size)
    return DeviceLoader(
        config, reader, shard, dtype=torch.float32, device=CPU, block_bytes=block_bytes
    ).load()


def joined(ranks: list[DeviceWeights], config: ModelConfig) -> dict[str, Tensor]:
    """The parts of all ranks, put together as the file has them."""
    size = config.head_dim
    num_heads, num_kv = config.num_heads // len(ranks), config.num_kv_heads // len(ranks)
    tensors = {
        "model.embed_tokens.weight": torch.cat([r.embedding for r in ranks])[: config.vocab_size]
    }
    for idx in range(config.num_layers):
        layers = [rank.layers[idx] for rank in ranks]
        prefix = f"model.layers.{idx}."
        for kind in ("weight", "bias"):
            stacked = [getattr(layer.qkv, kind) for layer in layers]
            if stacked[0] is not None:
                parts = [t.split([num_heads * size, num_kv * size, num_kv * size]) for t in stacked]
                for at, name in enumerate("qkv"):
                    whole = torch.cat([part[at] for part in parts])
                    tensors[f"{prefix}self_attn.{name}_proj.{kind}"] = whole
            pairs = [getattr(layer.gate_up, kind) for layer in layers]
            if pairs[0] is not None:
                halves = [pair.chunk(2) for pair in pairs]
                for at, name in enumerate(("gate", "up")):
                    tensors[f"{prefix}mlp.{name}_proj.{kind}"] = torch.cat([h[at] for h in halves])
        tensors[f"{prefix}self_attn.o_proj.weight"] = torch.cat(
            [layer.output.weight for layer in layers], dim=1
        )
        tensors[f"{prefix}mlp.down_proj.weight"] = torch.cat(
            [layer.down.weight for layer in layers], dim=1
        )
        if layers[0].down.bias is not None:
            tensors[f"{prefix}mlp.down_proj.bias"] = layers[0].down.bias
        assert all(layer.down.bias is None for layer in layers[1:])
    return tensors


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("variant", [{}, BIASES, GEMMA3], ids=["llama", "biases", "gemma3"])
def test_parts_of_all_ranks_are_the_weights_of_the_file(
    variant: dict[str, Any], size: int, tmp_path: Path
) -> None:
    config, reader = open_model(write_model(tmp_path, **variant))

    ranks = [load(config, reader, rank, size) for rank in range(size)]

    tensors = joined(ranks, config)
    assert len(tensors) > 13
    for name, tensor in tensors.items():
        assert torch.equal(tensor, reader.load(name, torch.float32)), name


@pytest.mark.parametrize("variant", [{}, QWEN3], ids=["head", "tied head"])
def test_the_host_holds_a_block_at_a_time(variant: dict[str, Any], tmp_path: Path) -> None:
    config, reader = open_model(write_model(tmp_path, **variant))
    counting = CountingReader(reader)

    got = load(config, counting, block_bytes=5000)

    assert counting.largest <= 5000
    wanted = load(config, reader)
    assert torch.equal(got.head, wanted.head)
    assert torch.equal(got.layers[1].qkv.weight, wanted.layers[1].qkv.weight)
    assert (got.head is got.embedding) == config.tied_head


def test_a_quantized_file_is_read_in_blocks_of_whole_heads(tmp_path: Path) -> None:
    config, reader = open_model(find_model(None))
    counting = CountingReader(reader)
    name = "model.layers.0.self_attn.q_proj.weight"
    head = config.head_dim

    rows = slice(head, 4 * head)
    part = counting.load_part(name, torch.float32, (rows, slice(32, 96)))

    assert torch.equal(part, reader.load(name, torch.float32)[rows, 32:96])
    name = "model.embed_tokens.weight"
    part = counting.load_part(name, torch.bfloat16, (slice(777, 901), slice(0, 576)))
    assert torch.equal(part, reader.load(name, torch.bfloat16)[777:901])


def test_what_cannot_be_divided_is_refused_with_the_numbers(tmp_path: Path) -> None:
    config, _ = open_model(write_model(tmp_path))

    with pytest.raises(ModelError, match=r"tensor_parallel=4 does not divide .*num_kv_heads=2"):
        Shard(config, 0, 4)


def rank_with(source: ModelSource, memory: Memory, **options: Any) -> int:
    config = EngineConfig(dtype="float32", **options)
    return load_rank(config, source, HostMachine(memory), OneRank()).num_blocks()


def test_blocks_fill_what_weights_and_steps_leave_free(tmp_path: Path) -> None:
    source = write_model(tmp_path)
    gib = 1 << 30
    block_bytes = 2 * 2 * 2 * 16 * 16 * 4  # k and v, layers, heads, D, tokens, bytes

    few = rank_with(source, Memory(2 * gib, 80 * gib))
    many = rank_with(source, Memory(3 * gib, 80 * gib))

    assert abs((many - few) * block_bytes - 0.95 * gib) < 2 * block_bytes
    assert few * block_bytes < 2 * gib
    # What steps need grows with their size.
    assert rank_with(source, Memory(2 * gib, 80 * gib), max_step_tokens=4096) < few
    assert rank_with(source, Memory(2 * gib, 80 * gib), num_blocks=7) == 7
    assert rank_with(source, Memory(2 * gib, 80 * gib), kv_cache_bytes=5 * block_bytes) == 5


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    source = write_model(tmp_path)
    (tmp_path / "model.safetensors").chmod(0o444)
    needed = shard_bytes(open_model(source)[0], torch.float32, 1)

    with pytest.raises(ModelError, match=r"weights take .* tensor_parallel"):
        rank_with(source, Memory(needed, 80 << 30))
    with pytest.raises(InvalidRequest, match="no room for keys and values"):
        rank_with(source, Memory(needed * 2, 80 << 30))
    with pytest.raises(InvalidRequest, match="kv_cache_bytes=100 holds no block"):
        rank_with(source, Memory(1 << 30, 80 << 30), kv_cache_bytes=100)
    with pytest.raises(InvalidRequest, match="max_step_tokens"):
        blocks_that_fit(Memory(100, 100), reserved=90, block_bytes=64)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"needs 2 NVIDIA GPUs .* there are 0"):
        CudaMachine(1)
    with pytest.raises(InvalidRequest, match="use device='cpu'"):
        Engine(str(write_model(tmp_path).path), device="cuda")
    with pytest.raises(InvalidRequest, match="device='tpu'"):
        Engine(device="tpu")
