"""How the memory of a device is divided: the weights, what a step needs, and the rest for KV."""

import torch

from umbel.runtime.device.graphs import MAX_GRAPHS
from umbel.runtime.device.group import Shard
from umbel.runtime.device.machine import Memory
from umbel.runtime.errors import InvalidRequest, ModelError
from umbel.runtime.models.config import ModelConfig

# Of the free memory, what is left to libraries (cuBLAS, NCCL) and to fragments.
SPARE_SHARE = 0.05
_GRAPH_BYTES = 4 << 20  # of one captured step, besides what it computes with
_LOGITS_COPIES = 4  # the logits, an edited copy, and float32 parts of them


def check_weights_fit(needed: int, memory: Memory, *, ranks: int, device: torch.device) -> None:
    """Raise `ModelError` before anything is loaded if the weights alone do not fit."""
    if needed > memory.free * (1 - SPARE_SHARE):
        raise ModelError(
            f"the weights take {_gib(needed)} on each of {ranks} ranks, but {device} has "
            f"{_gib(memory.free)} of {_gib(memory.total)} free; divide the model by a larger "
            f"tensor_parallel, or free memory of the device"
        )


def step_bytes(
    config: ModelConfig, shard: Shard, *, max_rows: int, max_logits: int, dtype: torch.dtype
) -> int:
    """About what the largest step needs besides weights and pool, for one rank.

    max_logits: rows whose logits are wanted at most.
    """
    layer = 2 * (shard.inner.stop - shard.inner.start) + 4 * config.hidden_size
    layer += 2 * (shard.num_heads + 2 * shard.num_kv_heads) * config.head_dim
    partials = 4 * shard.num_heads * (config.head_dim + 1) * torch.float32.itemsize  # see _works
    logits = _LOGITS_COPIES * config.vocab_size * torch.float32.itemsize
    of_rows: int = max_rows * (2 * layer * dtype.itemsize + partials)
    return of_rows + max_logits * logits + MAX_GRAPHS * _GRAPH_BYTES


def blocks_that_fit(memory: Memory, *, reserved: int, block_bytes: int) -> int:
    """Blocks of KV for what is free once the weights are there. Raises `InvalidRequest` if there is
    no room for one."""
    room = int(memory.free * (1 - SPARE_SHARE)) - reserved
    if room < block_bytes:
        raise InvalidRequest(
            f"there is no room for keys and values: {_gib(memory.free)} are free beside the "
            f"weights, a step needs {_gib(reserved)}, one block {block_bytes} bytes; lower "
            f"max_step_tokens or max_running, or raise tensor_parallel",
            param="num_blocks",
        )
    return room // block_bytes


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
