"""The ranks that compute one model together: who one is, and the sums and gathers between them.

Tensor parallelism as in Megatron-LM (https://arxiv.org/abs/1909.08053): heads, the inner features
of the MLP and the vocabulary are divided, so that a layer needs two sums over the ranks.
"""

from typing import Protocol

from torch import Tensor

from umbel.runtime.errors import ModelError
from umbel.runtime.models.config import ModelConfig


class Group(Protocol):
    """Every rank calls the same functions in the same order."""

    rank: int
    size: int

    def sum(self, values: Tensor) -> None:
        """The sum over all ranks, in place on each."""
        ...

    def gather(self, values: Tensor) -> Tensor:
        """values: [...], of the same shape on each rank -> [size, ...] in order of ranks."""
        ...


class OneRank:
    """A group of one."""

    rank = 0
    size = 1

    def sum(self, values: Tensor) -> None:
        pass

    def gather(self, values: Tensor) -> Tensor:
        return values.unsqueeze(0)


class Shard:
    """Which part of a model one rank of `size` has. Raises `ModelError` if it cannot be divided."""

    def __init__(self, config: ModelConfig, rank: int, size: int) -> None:
        for name in ("num_heads", "num_kv_heads", "intermediate_size"):
            value = getattr(config, name)
            if value % size:
                raise ModelError(
                    f"tensor_parallel={size} does not divide the model's {name}={value}; expected "
                    f"a common divisor of num_heads={config.num_heads}, "
                    f"num_kv_heads={config.num_kv_heads} and "
                    f"intermediate_size={config.intermediate_size}"
                )
        self.rank = rank
        self.size = size
        self.num_heads = config.num_heads // size
        self.num_kv_heads = config.num_kv_heads // size
        self.queries = self._part(config.num_heads * config.head_dim)
        self.keys = self._part(config.num_kv_heads * config.head_dim)
        self.inner = self._part(config.intermediate_size)
        # Of the vocabulary each rank has as many rows; the last ones may be padding.
        self.padded_vocab = -(-config.vocab_size // size)
        begin = min(rank * self.padded_vocab, config.vocab_size)
        self.vocab = slice(begin, min(begin + self.padded_vocab, config.vocab_size))

    def _part(self, size: int) -> slice:
        one = size // self.size
        return slice(self.rank * one, (self.rank + 1) * one)
