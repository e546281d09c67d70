"""The rows that tokens enter a model as, looked up in each step; made by the loader.

A table is read a few rows at a time, so it stays as small as its file has it: in bfloat16 that of
the embedded model would take as much memory as all its layers.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from umbel.kernels.grouped import GroupedWeight


class Embedding(Protocol):
    """`embedding(token_ids)`: [T] int64 -> [T, E] of `dtype`, in new memory. Raises `IndexError`
    for an id that is none of the table's rows."""

    dtype: torch.dtype
    held_bytes: int  # by the table

    def __call__(self, token_ids: Tensor) -> Tensor: ...


class PlainEmbedding:
    """A table of numbers: [V, E], kept and not copied."""

    def __init__(self, table: Tensor) -> None:
        self.dtype, self.held_bytes = table.dtype, table.nbytes
        self._table = table

    def __call__(self, token_ids: Tensor) -> Tensor:
        return functional.embedding(token_ids, self._table)


class GroupedEmbedding:
    """A quantized table. Rows are the same bits as those of the dequantized table in `dtype`."""

    def __init__(self, table: GroupedWeight, dtype: torch.dtype) -> None:
        self.dtype, self.held_bytes = dtype, table.size_bytes
        self._table = table

    def __call__(self, token_ids: Tensor) -> Tensor:
        return self._table.select_rows(token_ids).dequantized().to(self.dtype)
