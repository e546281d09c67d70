"""A step as numbers: all that a rank must know of a plan, ready to be copied to its device.

Made by rank 0 from the scheduler's plan, and sent to the other ranks as one array.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.triton.work_list import WorkList
from umbel.kernels.triton.work_split import ITEM_WIDTH
from umbel.radix_cache.plan import AttentionPlan, SlotRange
from umbel.radix_cache.tree import BlockCopy
from umbel.runtime.device.work_planner import WorkPlanner
from umbel.runtime.runner import independent_copies
from umbel.runtime.step import Run, StepPlan

Ints = NDArray[np.int32]
NOT_WRITTEN = -1  # the slot of a row whose keys are in the cache already
_NONE = -1


@dataclass(slots=True)
class StepInput:
    """T rows of a step, of which W have logits that are wanted."""

    token_ids: Ints  # [T]
    positions: Ints  # [T]
    slots: Ints  # [T]; NOT_WRITTEN for query-only rows
    wanted: Ints  # [W] rows
    copies: list[tuple[Ints, Ints]] = field(default_factory=list)  # slots: from, to; in this order
    works: list[WorkList] = field(default_factory=list)  # one for each kind of window

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def is_decode(self) -> bool:
        """Whether every row's logits are wanted, in order, as when all requests decode."""
        num_wanted = len(self.wanted)
        return num_wanted == self.num_rows and bool(
            (self.wanted == np.arange(num_wanted, dtype=np.int32)).all()
        )


def make_step_input(plan: StepPlan, planner: WorkPlanner, block_size: int) -> StepInput:
    """The numbers of a plan. Plans the work of its attention."""
    runs = plan.runs
    works: list[WorkList] = []
    if plan.attention is not None:
        works = planner.plan(*_stretches(runs, plan.attention))
    return StepInput(
        token_ids=as_ints([token for run in runs for token in run.tokens]),
        positions=as_ints(
            [p for run in runs for p in range(run.start, run.start + len(run.tokens))]
        ),
        slots=as_ints([slot for run in runs for slot in _slots(run)]),
        wanted=as_ints(list(_wanted(runs))),
        copies=[_copied_slots(batch, block_size) for batch in independent_copies(plan.copies)],
        works=works,
    )


def as_ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int32)


def _slots(run: Run) -> list[int]:
    stop = run.start + len(run.tokens)
    begin = min(max(run.write_from, run.start), stop)
    return [NOT_WRITTEN] * (begin - run.start) + run.lease.slots(begin, stop)


def _wanted(runs: list[Run]) -> Iterator[int]:
    first_row = 0
    for run in runs:
        for position in run.logits_positions:
            yield first_row + position - run.start
        first_row += len(run.tokens)


def _stretches(
    runs: list[Run], plan: AttentionPlan
) -> tuple[list[QueryRun], list[KeyStretch], list[KeyStretch]]:
    shared = [
        KeyStretch(segment.position, _pairs(segment.ranges), segment.run_idxs)
        for segment in plan.segments
    ]
    tails = [KeyStretch(tail.position, _pairs(tail.ranges)) for tail in plan.tails]
    return [QueryRun(run.start, len(run.tokens)) for run in runs], shared, tails


def _pairs(ranges: list[SlotRange]) -> list[tuple[int, int]]:
    return [(piece.start, piece.length) for piece in ranges]


def _copied_slots(copies: list[BlockCopy], block_size: int) -> tuple[Ints, Ints]:
    counts = [copy.num_tokens for copy in copies]
    within = np.concatenate([np.arange(count) for count in counts])
    source, target = (
        np.repeat([getattr(copy, side) * block_size for copy in copies], counts) + within
        for side in ("src", "dst")
    )
    return source.astype(np.int32), target.astype(np.int32)


# -- as one array


def pack_step(step: StepInput) -> Ints:
    """The step as one array of int32: each array of it after its length."""
    numbers = [len(step.copies), len(step.works)]
    arrays = [step.token_ids, step.positions, step.slots, step.wanted]
    arrays += [side for pair in step.copies for side in pair]
    for work in step.works:
        for item in fields(WorkList):
            value = getattr(work, item.name)
            if isinstance(value, np.ndarray):
                arrays.append(value.reshape(-1))
            else:
                numbers.append(_NONE if value is None else value)
    parts = [np.array([len(numbers), *numbers], dtype=np.int32)]
    for array in arrays:
        parts += [np.array([len(array)], dtype=np.int32), array]
    return np.concatenate(parts).astype(np.int32, copy=False)


def unpack_step(packed: Ints) -> StepInput:
    """The inverse of `pack_step`; the arrays are views of `packed`."""
    reader = _Reader(packed)
    numbers = iter(reader.take().tolist())
    num_copies, num_works = next(numbers), next(numbers)
    token_ids, positions, slots, wanted = (reader.take() for _ in range(4))
    copies = [(reader.take(), reader.take()) for _ in range(num_copies)]
    works = [_unpack_work(numbers, reader) for _ in range(num_works)]
    return StepInput(token_ids, positions, slots, wanted, copies, works)


class _Reader:
    def __init__(self, packed: Ints) -> None:
        self._packed = packed
        self._at = 0

    def take(self) -> Ints:
        """The next array."""
        begin = self._at + 1
        self._at = begin + int(self._packed[self._at])
        return self._packed[begin : self._at]


_ITEM_TABLES = ("narrow", "wide")


def _unpack_work(numbers: Iterator[int], reader: _Reader) -> WorkList:
    values: dict[str, object] = {}
    for item in fields(WorkList):
        if item.name in _ITEM_TABLES:
            values[item.name] = reader.take().reshape(-1, ITEM_WIDTH)
        elif item.type == Ints:
            values[item.name] = reader.take()
        else:
            number = next(numbers)
            values[item.name] = None if number == _NONE else number
    return WorkList(**values)  # type: ignore[arg-type]  # by the types of its fields
