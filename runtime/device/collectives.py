"""Sums and gathers between ranks: torch.distributed with NCCL on GPUs, gloo on the CPU."""

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its list

LOCALHOST = "127.0.0.1"
# To find each other. Between steps ranks wait for as long as nobody asks for anything.
_MEET_TIMEOUT = timedelta(seconds=120)
_STEP_TIMEOUT = timedelta(days=365)


def open_store() -> TCPStore:
    """The table through which ranks find each other; made by rank 0, at a free port."""
    return TCPStore(LOCALHOST, 0, is_master=True, timeout=_MEET_TIMEOUT, wait_for_workers=False)


def join_store(port: int) -> TCPStore:
    return TCPStore(LOCALHOST, port, is_master=False, timeout=_MEET_TIMEOUT)


class Ranks:
    """One rank's view of its group; see `Group`. `connect` comes before the first step.

    A rank that ends closes its connections, which ends with an error what others wait for: at once
    with gloo, and with NCCL when `abort` is called.
    """

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self._device = device
        # Not torch's default group: a process may have several engines.
        # Any: the classes that both derive from have no annotations for what they share.
        self._group: Any = None

    def connect(self, store: TCPStore) -> None:
        """Wait for all ranks. Raises torch's error after two minutes."""
        if self._device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = _STEP_TIMEOUT
            self._group = dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        else:
            self._group = dist.ProcessGroupGloo(store, self.rank, self.size, _STEP_TIMEOUT)
        self.sum(torch.ones(1, device=self._device))  # NCCL connects at its first sum

    def sum(self, values: Tensor) -> None:
        assert self._group is not None, "the ranks are connected before the first step"
        self._group.allreduce([values]).wait()

    def gather(self, values: Tensor) -> Tensor:
        assert self._group is not None, "the ranks are connected before the first step"
        gathered = values.new_empty(self.size, *values.shape)
        self._group.allgather([list(gathered.unbind(0))], [values.contiguous()]).wait()
        return gathered

    def abort(self) -> None:
        """End what this rank waits for; called by any thread when another rank has ended."""
        if self._group is not None and self._device.type == "cuda":
            self._group.abort()
