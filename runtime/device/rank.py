"""What one rank is made of: its part of the model on its device, and what runs its steps."""

import logging
from dataclasses import dataclass

import torch

from umbel.kernels.kv_cache import block_size_bytes
from umbel.kernels.triton.backend import Backend
from umbel.runtime.config import EngineConfig
from umbel.runtime.device.decoder import DeviceDecoder
from umbel.runtime.device.executor import StepExecutor
from umbel.runtime.device.group import Group, Shard
from umbel.runtime.device.machine import Machine
from umbel.runtime.device.memory import blocks_that_fit, check_weights_fit, step_bytes
from umbel.runtime.device.weights import DeviceLoader, shard_bytes
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.loading.load import open_model
from umbel.runtime.loading.source import ModelSource
from umbel.runtime.models.config import ModelConfig

logger = logging.getLogger(__name__)

_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank without its pool, whose size the ranks agree on."""

    config: EngineConfig
    decoder: DeviceDecoder
    shard: Shard
    machine: Machine
    backend: Backend | None

    @property
    def model(self) -> ModelConfig:
        return self.decoder.config

    def num_blocks(self) -> int:
        """As many blocks as there is room for here, or as the configuration says."""
        config = self.config
        if config.num_blocks is not None:
            return config.num_blocks
        block_bytes = block_size_bytes(
            num_layers=self.model.num_layers,
            num_kv_heads=self.shard.num_kv_heads,
            head_dim=self.model.head_dim,
            block_size=config.block_size,
            dtype=self.decoder.dtype,
        )
        if config.kv_cache_bytes is None:
            reserved = step_bytes(
                self.model,
                self.shard,
                max_rows=config.max_step_tokens,
                max_logits=min(config.max_step_tokens, config.max_running),
                dtype=self.decoder.dtype,
            )
            return blocks_that_fit(
                self.machine.memory(), reserved=reserved, block_bytes=block_bytes
            )
        if config.kv_cache_bytes < block_bytes:
            raise InvalidRequest(
                f"kv_cache_bytes={config.kv_cache_bytes} holds no block: one block of "
                f"{config.block_size} tokens takes {block_bytes} bytes of each rank",
                param="kv_cache_bytes",
            )
        return config.kv_cache_bytes // block_bytes

    def executor(self, num_blocks: int) -> StepExecutor:
        """What runs the steps over a pool of `num_blocks`."""
        return StepExecutor(
            self.decoder,
            self.machine,
            num_blocks=num_blocks,
            block_size=self.config.block_size,
            max_rows=self.config.max_step_tokens,
            use_graphs=self.config.device_graphs,
            backend=self.backend,
        )


def load_rank(
    config: EngineConfig,
    source: ModelSource,
    machine: Machine,
    group: Group,
    *,
    backend: Backend | None = None,
) -> Rank:
    """Load this rank's part of the model to the machine's device.

    Raises `ModelError` for what cannot be loaded, does not fit, or cannot be divided.
    """
    dtype = _DTYPES[config.dtype]
    model, reader = open_model(
        source, load_format=config.load_format, seed=config.seed, device=machine.device
    )
    shard = Shard(model, group.rank, group.size)
    check_weights_fit(
        shard_bytes(model, dtype, group.size),
        machine.memory(),
        ranks=group.size,
        device=machine.device,
    )
    loader = DeviceLoader(model, reader, shard, dtype=dtype, device=machine.device)
    decoder = DeviceDecoder(
        model,
        loader.load(),
        shard,
        group,
        context_len=config.context_len or model.context_len,
        backend=backend,
    )
    logger.info(
        "loaded %s (%s, %s) to %s, rank %d of %d",
        source.path, model.architecture, dtype, machine.device, group.rank, group.size,
    )  # fmt: skip
    return Rank(config, decoder, shard, machine, backend)
