"""Memory for weights in huge pages: a one-row product reads each byte once, and spends an eighth of
its time on looking up small pages.
"""

import mmap

import torch
from torch import Tensor

_CHUNK_BYTES = 32 << 20  # 16 huge pages: what is left over of the last chunk is never touched
_ALIGNMENT = 64


class WeightMemory:
    """Hands out pieces of large mappings. A mapping lives as long as any tensor in it."""

    def __init__(self) -> None:
        self._chunk: Tensor = torch.empty(0, dtype=torch.uint8)

    def copy_of(self, source: Tensor) -> Tensor:
        """A contiguous copy of `source`, at a multiple of 64 bytes."""
        size_bytes = source.numel() * source.element_size()
        padded = -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        if padded > len(self._chunk):
            self._chunk = _map(max(padded, _CHUNK_BYTES))
        piece, self._chunk = self._chunk[:size_bytes], self._chunk[padded:]
        return piece.view(source.dtype).view(source.shape).copy_(source)


def _map(size_bytes: int) -> Tensor:
    # Private: Linux gives huge pages to shared memory only where that is set apart.
    mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)  # advice: without huge pages all works, slower
    return torch.frombuffer(mapping, dtype=torch.uint8)
