"""Which steps are replayed as a captured graph: decode steps, padded to one of a few sizes.

A launch costs the host some microseconds, and a step of a model of 32 layers has hundreds; a graph
has one. A shape is captured when it comes a second time, so that its first step has compiled the
kernels; the number of graphs is bounded, and the one used longest ago goes.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from umbel.kernels.triton.work_tensors import LaunchShape
from umbel.runtime.device.machine import Machine

MAX_GRAPHS = 64


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the launches of a step depend on: its rows, padding included, and its attention."""

    num_rows: int
    launches: tuple[LaunchShape, ...]


def row_buckets(max_rows: int) -> list[int]:
    """Numbers of rows that steps are padded to: within a quarter of what they have, from 16 on."""
    sizes = [1, 2, 4, 8, *range(16, 64, 8), *range(64, 128, 16), *range(128, 513, 32)]
    return [size for size in sizes if size < max_rows] + [min(max_rows, sizes[-1])]


class StepGraphs:
    """The captured steps of one machine."""

    def __init__(self, machine: Machine, max_rows: int, *, max_graphs: int = MAX_GRAPHS) -> None:
        self._machine = machine
        self._buckets = row_buckets(max_rows)
        self._max_graphs = max_graphs
        # None: computed once, to be captured the next time.
        self._replays: OrderedDict[StepShape, Callable[[], Tensor] | None] = OrderedDict()
        self.num_replayed = 0

    def __len__(self) -> int:
        return sum(replay is not None for replay in self._replays.values())

    def bucket(self, num_rows: int) -> int | None:
        """The rows that such a step is padded to; None if it is too large."""
        at = bisect_left(self._buckets, num_rows)
        return self._buckets[at] if at < len(self._buckets) else None

    def run(self, shape: StepShape, compute: Callable[[], Tensor]) -> Tensor:
        """The result of `compute`, which reads nothing that does not lie at fixed addresses."""
        if shape not in self._replays:
            self._replays[shape] = None
            if len(self._replays) > self._max_graphs:
                self._replays.popitem(last=False)
            return compute()
        self._replays.move_to_end(shape)
        replay = self._replays[shape]
        if replay is None:
            replay = self._replays[shape] = self._machine.capture(compute)
        self.num_replayed += 1
        return replay()

    def clear(self) -> None:
        """Forget all: the addresses have changed."""
        self._replays.clear()
