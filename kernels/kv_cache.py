"""The pool of keys and values, written by the runner's attention context and read by attention.

The layout is `[layers, kv_heads, slots, head_dim]`: a stretch of consecutive slots is one slice per
head, so a long prefix is read without a gather.
"""

import torch
from torch import Tensor

from umbel.kernels.native import threads

if threads.is_available():
    from umbel.kernels.native import rows as native_rows


def block_size_bytes(
    *, num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype
) -> int:
    """Bytes that one block of `block_size` token slots takes: keys and values of all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * block_size * dtype.itemsize


class KVCache:
    """Keys and values of `num_slots` token slots for all layers.

    The memory is reserved, not touched: pages are backed when a slot is first written, so an
    unwritten slot may hold anything, NaN included. Readers must never let such a slot reach a
    sum.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_kv_heads: int,
        num_slots: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> None:
        shape = (num_layers, num_kv_heads, num_slots, head_dim)
        self.k = torch.empty(shape, dtype=dtype)  # [layers, Hkv, slots, D]
        self.v = torch.empty(shape, dtype=dtype)  # [layers, Hkv, slots, D]

    @property
    def num_slots(self) -> int:
        return self.k.shape[2]

    @property
    def size_bytes(self) -> int:
        """Bytes reserved, whether backed yet or not."""
        return self.k.nbytes + self.v.nbytes

    def write(self, layer: int, k: Tensor, v: Tensor, rows: Tensor | None, slots: Tensor) -> None:
        """Store rows of one layer.

        k, v: [T, Hkv, D] of the pool's dtype; rows: [n] int64, which of the T rows (None: all, in
        order); slots: [n] int64, distinct.
        """
        if k.dtype == torch.bfloat16 and k.stride(1) == k.shape[2] and threads.is_available():
            native_rows.write_rows(k, v, self.k[layer], self.v[layer], rows, slots)
            return
        if rows is not None:
            k, v = k.index_select(0, rows), v.index_select(0, rows)
        self.k[layer].index_copy_(1, slots, k.transpose(0, 1))
        self.v[layer].index_copy_(1, slots, v.transpose(0, 1))

    def copy_blocks(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Copy slots of all layers at once: all are read before any is written. [n] int64 each."""
        self.k.index_copy_(2, dst_slots, self.k.index_select(2, src_slots))
        self.v.index_copy_(2, dst_slots, self.v.index_select(2, src_slots))
