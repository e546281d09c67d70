"""Enqueues the next decode step before this one's tokens are read, so that the device never waits
for the host's planning.

While requests decode, the next plan is known but for their tokens, and those are on the device. So
the step is guessed: each request that cannot have reached its end feeds the token that was just
sampled, in the slot that comes next. When the scheduler's plan comes it is compared: if every run
of it is a row of the guess, with the same token, slot and path of blocks, its logits are there
already. Otherwise the plan is executed as always, and what the guess wrote lies in slots that no
path has: whoever gets them writes them before they are read.
"""

from dataclasses import dataclass

from torch import Tensor

from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.triton.staged import StagedInts
from umbel.radix_cache.plan import AttentionPlan
from umbel.radix_cache.tree import Lease
from umbel.runtime.device.executor import StepExecutor
from umbel.runtime.device.step_input import StepInput, as_ints
from umbel.runtime.device.work_planner import WorkPlanner
from umbel.runtime.step import Run, StepPlan

MAX_PAUSE = 64  # steps without a guess, after guesses that were wrong in turn

Ranges = list[tuple[int, int]]  # first slot, length


@dataclass(slots=True)
class _Row:
    """One row of the guess."""

    index: int
    lease: Lease
    position: int
    sample_idx: int
    path: Ranges  # slots of positions 0 .. position, in joined ranges
    token: int | None = None  # once it is read


class StepsAhead:
    """Belongs to the engine's thread."""

    def __init__(self, executor: StepExecutor, planner: WorkPlanner, max_rows: int) -> None:
        self._executor = executor
        self._planner = planner
        self._picked = StagedInts(max_rows, executor.pool.device)
        self._rows: dict[int, _Row] = {}  # by id of the lease, which the row keeps alive
        self._logits: Tensor | None = None
        self._pause = 0  # steps to go without a guess
        self._num_wrong = 0  # guesses in turn
        self.num_right = 0
        self.num_missed = 0

    def guess(self, plan: StepPlan, tokens: Tensor) -> None:
        """Enqueue the step after `plan`, if it can be told. tokens: [B] int32 on the device, those
        of `plan.samples`; fewer of them: nothing is guessed."""
        self._rows, self._logits = {}, None
        if len(tokens) != len(plan.samples):
            return
        if self._pause > 0:
            self._pause -= 1
            return
        rows = _next_rows(plan)
        if rows is None:
            return
        assert plan.attention is not None, "there are rows"
        step = self._step(plan.attention, rows)
        self._logits = self._executor.execute(step, tokens)
        self._rows = {id(row.lease): row for row in rows}

    def confirm(self, tokens: list[int]) -> None:
        """What the tokens given to `guess` turned out to be."""
        for row in self._rows.values():
            row.token = tokens[row.sample_idx]

    def take(self, plan: StepPlan) -> Tensor | None:
        """The logits of `plan`'s wanted rows, if it was guessed. A guess is taken once."""
        rows, logits = self._rows, self._logits
        self._rows, self._logits = {}, None
        if logits is None:
            return None
        picked = self._matching(plan, rows)
        if picked is None:
            self.num_missed += 1
            self._num_wrong += 1
            self._pause = min(MAX_PAUSE, 1 << self._num_wrong)
            return None
        self._num_wrong = 0
        self.num_right += 1
        if picked == list(range(len(logits))):
            return logits
        self._picked.host()[: len(picked)] = picked
        self._picked.copy(len(picked))
        return logits.index_select(0, self._picked.device[: len(picked)])

    def _matching(self, plan: StepPlan, rows: dict[int, _Row]) -> list[int] | None:
        """The row of the guess for each run; None unless all of them were guessed."""
        if plan.copies or plan.attention is None:
            return None
        picked: list[int] = []
        for run, path in zip(plan.runs, _paths(plan.attention), strict=True):
            row = rows.get(id(run.lease))
            if (
                row is None
                or run.tokens != [row.token]
                or (run.start, run.write_from) != (row.position, row.position)
                or run.logits_positions != [run.start]
                or path != row.path
            ):
                return None
            picked.append(row.index)
        return picked

    def _step(self, attention: AttentionPlan, rows: list[_Row]) -> StepInput:
        """The step of `rows`, whose indices were those of the step before."""
        numbers = {row.index: new for new, row in enumerate(rows)}
        shared = [
            KeyStretch(
                segment.position,
                [(piece.start, piece.length) for piece in segment.ranges],
                [numbers[idx] for idx in segment.run_idxs if idx in numbers],
            )
            for segment in attention.segments
        ]
        shared = [stretch for stretch in shared if stretch.run_idxs]
        tails = []
        for row in rows:
            tail = attention.tails[row.index]
            ranges = [(piece.start, piece.length) for piece in tail.ranges]
            tails.append(KeyStretch(tail.position, [*ranges, (_last_slot(row.path), 1)]))
        for row in rows:
            row.index = numbers[row.index]
        works = self._planner.plan([QueryRun(row.position, 1) for row in rows], shared, tails)
        return StepInput(
            token_ids=as_ints([row.sample_idx for row in rows]),
            positions=as_ints([row.position for row in rows]),
            slots=as_ints([_last_slot(row.path) for row in rows]),
            wanted=as_ints(list(range(len(rows)))),
            works=works,
        )


def _next_rows(plan: StepPlan) -> list[_Row] | None:
    """The rows of the step after `plan`, with their index in it; None if they cannot be told."""
    if plan.scored or plan.drafts or plan.attention is None or not plan.samples:
        return None
    if len(plan.samples) != len(plan.runs) or not all(map(_is_decoding, plan.runs)):
        return None
    paths = list(_paths(plan.attention))
    rows: list[_Row] = []
    for sample_idx, sample in enumerate(plan.samples):
        if sample.request.num_left < 2:
            continue  # this token is its last
        run = plan.runs[sample.logits_row]  # each run has one row
        slot = run.lease.next_slot()
        if slot is None or run.lease is not sample.request.lease:
            return None
        path = paths[sample.logits_row]
        _add_range(path, slot, 1)
        rows.append(_Row(sample.logits_row, run.lease, run.start + 1, sample_idx, path))
    slots = {_last_slot(row.path) for row in rows}
    leases = {id(row.lease) for row in rows}
    return rows if rows and len(slots) == len(leases) == len(rows) else None


def _is_decoding(run: Run) -> bool:
    return len(run.tokens) == 1 and run.logits_positions == [run.start]


def _paths(attention: AttentionPlan) -> list[Ranges]:
    """For each run the slots of all positions it reads, in order."""
    paths: list[Ranges] = [[] for _ in attention.tails]
    for segment in attention.segments:
        for idx in segment.run_idxs:
            for piece in segment.ranges:
                _add_range(paths[idx], piece.start, piece.length)
    for path, tail in zip(paths, attention.tails, strict=True):
        for piece in tail.ranges:
            _add_range(path, piece.start, piece.length)
    return paths


def _add_range(path: Ranges, start: int, length: int) -> None:
    if path and sum(path[-1]) == start:
        path[-1] = (path[-1][0], path[-1][1] + length)
    else:
        path.append((start, length))


def _last_slot(path: Ranges) -> int:
    return sum(path[-1]) - 1
