"""Memory on the host and its copy on the device, for what changes with every step.

On CUDA the host's side is pinned, so a copy waits for nobody and nobody for it; elsewhere both are
plain memory, and the same code runs.
"""

import numpy as np
import torch
from numpy.typing import NDArray


class StagedInts:
    """int32 numbers at fixed addresses of the device, written through `host`. Not for two
    threads."""

    def __init__(self, size: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._staging = torch.zeros(size, dtype=torch.int32, pin_memory=is_cuda)
        self._host: NDArray[np.int32] = self._staging.numpy()
        self._is_copied = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]  # torch
        self.device = torch.zeros(size, dtype=torch.int32, device=device)

    def __len__(self) -> int:
        return len(self._host)

    def host(self) -> NDArray[np.int32]:
        """The host's side, to be written before `copy`. On CUDA waits until the last copy has read
        it, which it has long since when a step is read back before the next one."""
        if self._is_copied is not None:
            self._is_copied.synchronize()
        return self._host

    def copy(self, size: int | None = None) -> None:
        """Enqueue the copy of the first `size` numbers in the order of the current stream."""
        size = len(self._host) if size is None else size
        self.device[:size].copy_(self._staging[:size], non_blocking=True)
        if self._is_copied is not None:
            self._is_copied.record()
