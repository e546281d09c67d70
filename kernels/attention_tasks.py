"""Turns a step's runs and stretches of keys into the task list of the native attention kernel.

Called by `attention.AttentionStep`, once per step and window. Integers only: no keys, no queries.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from umbel.kernels.attention_parts import KeyStretch, QueryRun

# Keys of a task with so few rows that they are one: a lone row's tail would else be a task for each
# KV head. The borders are positions, so that a row is cut the same whoever is beside it.
PIECE_KEYS = 1024
# Query rows of a task, the heads of a GQA group counted apart: keys are packed once for all. A long
# run has tasks of more, as long as there remain `_MIN_TASKS` of them for the threads.
_TASK_QUERIES, MAX_TASK_QUERIES = 48, 192
_MIN_TASKS = 8

Ints = NDArray[np.int64]


class TaskLists:
    """Tasks [N, 5]: first range, past the last range, KV head, first entry, number of entries.

    ranges: [R, 2], slot and length. entries: [M, 4]: row of the step, first key of the stretch that
    it sees, past the last one, place of its result. The results of the rows' own tails (their last
    pieces) come first, in the order of the rows. table: [T, P], the places of each row's results,
    -1 for none; None if each row has but one.
    """

    def __init__(
        self,
        runs: list[QueryRun],
        shared: list[KeyStretch],
        tails: list[KeyStretch],
        *,
        window: int | None,
        group: int,
        num_kv_heads: int,
    ) -> None:
        self._window = window
        self._num_kv_heads = num_kv_heads
        self._few_rows = max(1, _TASK_QUERIES // group)  # that are one task
        self._most_rows = max(1, MAX_TASK_QUERIES // group)
        num_rows = np.array([run.num_rows for run in runs])
        self._first_rows = np.cumsum(num_rows) - num_rows
        starts = np.array([run.start for run in runs])
        self.num_rows = int(num_rows.sum())
        self._positions = np.arange(self.num_rows) + np.repeat(starts - self._first_rows, num_rows)
        self._ranges: list[tuple[int, int]] = []
        self._entries: list[Ints] = []
        self._tasks: list[tuple[int, int, int, int]] = []  # ranges, entries; for all heads
        self.num_results = 0
        shared, tails = self._in_pieces(runs, shared, tails)
        # All tails at once: mostly there are many, of one row each.
        own_positions = np.repeat([tail.position for tail in tails], num_rows)
        own_lengths = np.repeat([tail.num_keys for tail in tails], num_rows)
        self._add_entries(np.arange(self.num_rows), own_positions, own_lengths)
        for run, tail in zip(runs, tails, strict=True):
            self._add_tasks(tail, run.num_rows)
        for stretch in shared:
            rows = self._rows_of(stretch, runs)
            self._add_entries(rows, stretch.position, stretch.num_keys)
            self._add_tasks(stretch, len(rows))
        self.table = self._merge_table() if shared else None
        self.ranges: Ints = np.array(self._ranges, dtype=np.int64).reshape(-1, 2)
        self.entries: Ints = np.concatenate(self._entries)
        self.tasks: Ints = self._for_all_heads()

    def _in_pieces(
        self, runs: list[QueryRun], shared: list[KeyStretch], tails: list[KeyStretch]
    ) -> tuple[list[KeyStretch], list[KeyStretch]]:
        """The same keys in pieces, where they are many for few rows. What is cut off a tail is a
        stretch like those that are shared, seen by all rows of its run."""
        pieces: list[KeyStretch] = []
        for stretch in shared:
            num_rows = sum(runs[idx].num_rows for idx in stretch.run_idxs)
            end = stretch.position + stretch.num_keys
            pieces += _pieces(stretch, end) if num_rows <= self._few_rows else [stretch]
        lasts: list[KeyStretch] = []
        for idx, (run, tail) in enumerate(zip(runs, tails, strict=True)):
            last = tail
            if run.num_rows <= self._few_rows and tail.num_keys > PIECE_KEYS:
                *before, last = _pieces(tail, run.start)
                pieces += [KeyStretch(piece.position, piece.ranges, [idx]) for piece in before]
            lasts.append(last)
        return pieces, lasts

    def _rows_of(self, stretch: KeyStretch, runs: list[QueryRun]) -> Ints:
        firsts = self._first_rows[stretch.run_idxs]
        return np.concatenate(
            [
                np.arange(first, first + runs[idx].num_rows)
                for first, idx in zip(firsts, stretch.run_idxs, strict=True)
            ]
        )

    def _add_entries(self, rows: Ints, positions: Ints | int, num_keys: Ints | int) -> None:
        """Rows with a stretch of keys each: its first position and its length."""
        entries = np.empty((len(rows), 4), dtype=np.int64)
        seen = self._positions[rows] - positions + 1
        entries[:, 0] = rows
        entries[:, 1] = 0 if self._window is None else np.maximum(0, seen - self._window)
        entries[:, 2] = np.minimum(np.maximum(seen, 0), num_keys)
        first = sum(map(len, self._entries))
        entries[:, 3] = np.arange(first, first + len(rows))
        self._entries.append(entries)

    def _add_tasks(self, stretch: KeyStretch, num_rows: int) -> None:
        """One stretch of keys with all rows that read it, whose entries are the next ones."""
        first_range = len(self._ranges)
        self._ranges += stretch.ranges
        wanted = max(self._few_rows, min(num_rows // _MIN_TASKS, self._most_rows))
        num_tasks = -(-num_rows // wanted)
        # Of the same size, nearly: kernels do best with many queries.
        borders = [self.num_results + i * num_rows // num_tasks for i in range(num_tasks + 1)]
        for first, stop in pairwise(borders):
            self._tasks.append((first_range, len(self._ranges), first, stop - first))
        self.num_results += num_rows

    def _for_all_heads(self) -> Ints:
        """The largest tasks first: the last to be taken should be small."""
        tasks = np.array(self._tasks, dtype=np.int64).reshape(-1, 4)
        seen = np.maximum(0, self.entries[:, 2] - self.entries[:, 1])
        seen = np.concatenate(([0], np.cumsum(seen)))
        work = seen[tasks[:, 2] + tasks[:, 3]] - seen[tasks[:, 2]]
        tasks = tasks[np.argsort(-work, kind="stable")]
        found = np.empty((len(tasks), self._num_kv_heads, 5), dtype=np.int64)
        found[:, :, :2] = tasks[:, None, :2]
        found[:, :, 2] = np.arange(self._num_kv_heads)
        found[:, :, 3:] = tasks[:, None, 2:]
        return found.reshape(-1, 5)

    def _merge_table(self) -> Ints:
        """In the order of positions: shared stretches, then the tail."""
        num_tails = self.num_rows
        rows = np.concatenate(self._entries)[num_tails:, 0]
        order = np.argsort(rows, kind="stable")
        counts = np.bincount(rows, minlength=num_tails)
        table = np.full((num_tails, int(counts.max(initial=0)) + 1), -1, dtype=np.int64)
        column = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        table[rows[order], column] = num_tails + order
        table[:, -1] = np.arange(num_tails)
        return table


def _pieces(stretch: KeyStretch, end: int) -> list[KeyStretch]:
    """`stretch`, cut at the positions before `end` that divide by `PIECE_KEYS`."""
    pieces = [KeyStretch(stretch.position, [], stretch.run_idxs)]
    position = stretch.position
    for slot, length in stretch.ranges:
        stop = position + length
        while position < stop:
            border = position // PIECE_KEYS * PIECE_KEYS + PIECE_KEYS
            taken = (min(border, stop) if border < end else stop) - position
            pieces[-1].ranges.append((slot, taken))
            position, slot = position + taken, slot + taken
            if position == border < end:
                pieces.append(KeyStretch(position, [], stretch.run_idxs))
    return pieces
