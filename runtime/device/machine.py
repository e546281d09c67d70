"""What differs between a GPU and the CPU that stands in for it in tests: streams, graphs, pinned
memory, how much is free.

Everything else of `runtime.device` is the same code on both. The CPU's form runs the torch twins of
the kernels and replays a captured step by computing it again, so that what a step reads at fixed
addresses is tested without a GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umbel.runtime.errors import InvalidRequest

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the device: free now, and in all."""

    free: int
    total: int


class Machine(Protocol):
    """One device with the one thread that gives it work."""

    device: torch.device

    def memory(self) -> Memory: ...

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A function that does again what `compute` does, with what the same tensors hold then.

        Its result is overwritten by the next replay of any captured function.
        """
        ...

    def beside(self) -> AbstractContextManager[None]:
        """Within it, work is enqueued beside what was enqueued before; what is enqueued after it
        waits for both."""
        ...

    def fetch(self, values: Tensor, meanwhile: Callable[[], None]) -> Ints:
        """values: [n] int32 on the device -> on the host, valid until the next call. Waits for
        them, not for what `meanwhile` enqueues."""
        ...


class HostMachine:
    """The CPU as a device. `memory` is what the caller says."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.device = torch.device("cpu")
        self._memory = memory

    def memory(self) -> Memory:
        return self._memory or Memory(1 << 40, 1 << 40)

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return compute

    @contextmanager
    def beside(self) -> Iterator[None]:
        yield

    def fetch(self, values: Tensor, meanwhile: Callable[[], None]) -> Ints:
        meanwhile()
        fetched: Ints = values.numpy()
        return fetched


class CudaMachine:
    """One NVIDIA GPU, used by one thread at a time. A thread begins on GPU 0: that of rank 0."""

    def __init__(self, index: int = 0) -> None:
        """Raises `InvalidRequest` without such a device."""
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if index >= count:
            raise InvalidRequest(
                f"device='cuda' needs {index + 1} NVIDIA GPUs that torch {torch.__version__} can "
                f"use, and there are {count}; use device='cpu', or fewer ranks",
                param="device",
            )
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch
        self._graph_memory = torch.cuda.graph_pool_handle()
        self._fetched = torch.empty(0, dtype=torch.int32)
        self._is_fetched = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch

    def memory(self) -> Memory:
        torch.cuda.empty_cache()  # what torch keeps for later is free, too
        return Memory(*torch.cuda.mem_get_info(self.device))

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """All graphs share their memory: they run one after another, and a step's result is used
        before the next step."""
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        # thread_local: what other threads ask of CUDA meanwhile is none of the graph's.
        with torch.cuda.graph(graph, pool=self._graph_memory, capture_error_mode="thread_local"):
            result = compute()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay

    @contextmanager
    def beside(self) -> Iterator[None]:
        main = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._side):
            yield
        main.wait_stream(self._side)

    def fetch(self, values: Tensor, meanwhile: Callable[[], None]) -> Ints:
        if len(values) > len(self._fetched):
            size = 2 * len(values)
            self._fetched = torch.empty(size, dtype=torch.int32, pin_memory=True)
        target = self._fetched[: len(values)]
        target.copy_(values, non_blocking=True)
        self._is_fetched.record()
        meanwhile()
        self._is_fetched.synchronize()
        fetched: Ints = target.numpy()
        return fetched


def make_machine(name: str, index: int = 0) -> Machine:
    """The machine of a device, "cpu" or "cuda". Raises `InvalidRequest` where it does not exist."""
    return CudaMachine(index) if name == "cuda" else HostMachine()
