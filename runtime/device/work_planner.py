"""Plans the attention of steps, the next one while the device computes this one.

What `plan_work` makes depends on positions and lengths, all but the list of blocks. While requests
decode, the lengths of the next step are those of this one and one more; so its work is laid out
early, and when its plan comes only the blocks are filled in. A step that turns out otherwise is
planned anew.
"""

import dataclasses
from collections.abc import Sequence

from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.triton.work_list import WorkList, list_pages, plan_work
from umbel.kernels.triton.work_split import DeviceRates, HeadShape

_Key = tuple[object, ...]


class WorkPlanner:
    """Work lists of one model, one for each kind of window its layers have."""

    def __init__(
        self,
        heads: HeadShape,
        *,
        block_size: int,
        windows: Sequence[int | None],
        rates: DeviceRates | None = None,
    ) -> None:
        self._heads = heads
        self._block_size = block_size
        self._windows = windows
        self._rates = rates or DeviceRates()
        self._last: tuple[list[QueryRun], list[KeyStretch], list[KeyStretch]] | None = None
        self._next_key: _Key = ()
        self._next_works: list[WorkList] = []
        self.num_foreseen = 0  # steps that were laid out before their plan came

    def plan(
        self, runs: list[QueryRun], shared: list[KeyStretch], tails: list[KeyStretch]
    ) -> list[WorkList]:
        """The work of a step; arguments as of `plan_work`."""
        self._last = (runs, shared, tails)
        if self._next_key != _key(runs, shared, tails):
            return self._plan(runs, shared, tails)
        self.num_foreseen += 1
        pages = list_pages([*shared, *tails], self._block_size)
        return [dataclasses.replace(work, pages=pages) for work in self._next_works]

    def prepare_next(self) -> None:
        """Lay out the step after the last planned one, if all of its requests go on decoding."""
        self._next_key, self._next_works = (), []
        if self._last is None or any(run.num_rows != 1 for run in self._last[0]):
            return
        runs, shared, tails = self._last
        runs = [QueryRun(run.start + 1, 1) for run in runs]
        # Any slots do that lie at their positions' offsets in blocks.
        tails = [KeyStretch(tail.position, [(tail.position, tail.num_keys + 1)]) for tail in tails]
        self._next_works = self._plan(runs, shared, tails)
        self._next_key = _key(runs, shared, tails)

    def _plan(
        self, runs: list[QueryRun], shared: list[KeyStretch], tails: list[KeyStretch]
    ) -> list[WorkList]:
        return [
            plan_work(
                runs,
                shared,
                tails,
                heads=self._heads,
                block_size=self._block_size,
                rates=self._rates,
                window=window,
            )
            for window in self._windows
        ]


def _key(runs: list[QueryRun], shared: list[KeyStretch], tails: list[KeyStretch]) -> _Key:
    """All that a layout depends on."""
    return (
        [(run.start, run.num_rows) for run in runs],
        [(stretch.position, stretch.num_keys, stretch.run_idxs) for stretch in shared],
        [(tail.position, tail.num_keys) for tail in tails],
    )
