"""Splits a step's attention into parts of disjoint keys, each of which one dense product computes.

Called by `attention.AttentionStep`, once per step and window. Three kinds of part come out: a
shared stretch with all rows above it, the square of a long run with itself, and a padded batch of
short runs with their private tails. Arithmetic on positions and slots only: no keys, no queries.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# Fewer keys than this are gathered with others: a part costs about 20 us of dispatch in each layer.
MIN_SLICE_LEN = 256
# Runs with at most this many rows are padded to a common length and batched.
MAX_BATCHED_ROWS = 16
# Elements of a padded batch, of its keys or scores: what is gathered should still be in the cache
# when it is read.
MAX_BATCH_ELEMENTS = 1 << 23
# Rows of one masked tile: bounds the mask, and the keys outside of a window that are read in vain.
TILE_ROWS = 256
# From here on a mask is not repeated for each head of a GQA group.
MAX_FOLDED_MASK_ROWS = 64

Ints = NDArray[np.int64]


@dataclass(slots=True)
class QueryRun:
    """Query rows of one request at positions `start .. start + num_rows - 1`."""

    start: int
    num_rows: int

    @property
    def end(self) -> int:
        return self.start + self.num_rows


@dataclass(slots=True)
class KeyStretch:
    """Keys at positions `position ..`, in the slots of `ranges` (first slot, length), in order."""

    position: int
    ranges: list[tuple[int, int]]
    run_idxs: list[int] = field(default_factory=list)  # who sees all of it; unused in a tail

    @property
    def num_keys(self) -> int:
        return sum(length for _, length in self.ranges)


@dataclass(slots=True, eq=False)
class Part:
    """One dense product: `batch` sequences of n rows, each with its L keys."""

    batch: int
    rows: Ints  # [batch * n], rows of the step
    is_result: NDArray[
        np.bool_
    ]  # [batch * n]; False for padding and for rows that see none of the keys
    slots: slice | Ints  # of all keys (batch is 1), or [batch, L]
    mask: NDArray[np.float32] | None = (
        None  # [batch or 1, 1, n (times the group if folded), L], 0 or -inf
    )
    is_causal: bool = False  # row i sees keys 0..i
    is_folded: bool = True  # whether the heads of a GQA group are query rows of one product


def split_into_parts(
    runs: list[QueryRun],
    shared: list[KeyStretch],
    tails: list[KeyStretch],
    window: int | None,
    group: int,
) -> list[Part]:
    """All parts of a step, in order of position for each row. Arguments as in `AttentionStep`."""
    splitter = _Splitter(runs, window, group)
    for stretch in shared:
        rows = np.concatenate([splitter.rows_of(i) for i in stretch.run_idxs])
        positions = np.concatenate([splitter.positions_of(i) for i in stretch.run_idxs])
        splitter.add_stretch(rows, positions, stretch)
    short = []
    for i, (run, tail) in enumerate(zip(runs, tails, strict=True)):
        if run.num_rows <= MAX_BATCHED_ROWS:
            short.append(_Short(int(splitter.first_rows[i]), run, _in_window(run, tail, window)))
        else:
            splitter.add_long_run(i, tail)
    splitter.add_short_runs([s for s in short if s.tail.num_keys])
    return splitter.parts


@dataclass(slots=True)
class _Short:
    first_row: int
    run: QueryRun
    tail: KeyStretch


class _Splitter:
    def __init__(self, runs: list[QueryRun], window: int | None, group: int) -> None:
        self.parts: list[Part] = []
        self.first_rows = np.cumsum([0] + [run.num_rows for run in runs])
        self._runs = runs
        self._window = window
        self._group = group
        self._tile_masks: dict[tuple[int, int, int], NDArray[np.float32]] = {}

    def rows_of(self, run_idx: int) -> Ints:
        return np.arange(self.first_rows[run_idx], self.first_rows[run_idx + 1])

    def positions_of(self, run_idx: int) -> Ints:
        return np.arange(self._runs[run_idx].start, self._runs[run_idx].end)

    def add_stretch(self, rows: Ints, positions: Ints, stretch: KeyStretch) -> None:
        """Keys that are below all rows: long ranges as slices of the pool, the others gathered."""
        for slots, key_positions in _pieces(stretch):
            if self._window is None or len(rows) == 0:
                self._add_dense(rows, slots, None)
            else:
                self._add_windowed(rows, positions, slots, key_positions, self._window)

    def _add_windowed(
        self, rows: Ints, positions: Ints, slots: Ints, key_positions: Ints, window: int
    ) -> None:
        lowest = positions - window + 1  # [n], the first visible position of each row
        seeing = np.flatnonzero(lowest <= key_positions[-1])
        for first in range(0, len(seeing), TILE_ROWS):
            tile = seeing[first : first + TILE_ROWS]
            cut = np.searchsorted(key_positions, lowest[tile].min())
            mask = None
            if lowest[tile].max() > key_positions[cut]:
                mask = _as_mask(key_positions[cut:] >= lowest[tile][:, None])
            self._add_dense(rows[tile], slots[cut:], mask)

    def add_long_run(self, run_idx: int, tail: KeyStretch) -> None:
        run, rows = self._runs[run_idx], self.rows_of(run_idx)
        if self._window is not None and run.end - self._window > tail.position:
            return self._add_windowed_run(run, rows, tail, self._window)
        num_context = run.start - tail.position
        if num_context > 0:
            self.add_stretch(rows, self.positions_of(run_idx), _cut(tail, 0, num_context))
        # What is left is a square: a tail may begin above the first rows, which then see none of
        # it.
        square = _cut(tail, max(num_context, 0), tail.num_keys)
        rows = rows[max(-num_context, 0) :]
        if len(rows):
            self._add_dense(rows, _slots(square), None, is_causal=True)

    def _add_windowed_run(self, run: QueryRun, rows: Ints, tail: KeyStretch, window: int) -> None:
        for begin in range(max(run.start, tail.position), run.end, TILE_ROWS):
            end = min(begin + TILE_ROWS, run.end)
            low = max(tail.position, begin - window + 1)
            slots = _slots(_cut(tail, low - tail.position, end - tail.position))
            shape = (end - begin, end - low, low - begin)
            if shape not in self._tile_masks:  # inner tiles look alike
                distance = np.arange(shape[0])[:, None] - (np.arange(shape[1]) + shape[2])
                self._tile_masks[shape] = _as_mask((distance >= 0) & (distance < window))
            tile = rows[begin - run.start : end - run.start]
            self._add_dense(tile, slots, self._tile_masks[shape])

    def _add_dense(
        self, rows: Ints, slots: Ints, mask: NDArray[np.float32] | None, *, is_causal: bool = False
    ) -> None:
        """One part of all these rows with all these keys. mask: [n, L]."""
        is_folded = not is_causal and (mask is None or len(rows) <= MAX_FOLDED_MASK_ROWS)
        if mask is not None:
            mask = (mask.repeat(self._group, axis=0) if is_folded else mask)[None, None]
        is_stretch = int(slots[-1]) - int(slots[0]) == len(slots) - 1 and bool(
            np.all(np.diff(slots) == 1)
        )
        keys = slice(int(slots[0]), int(slots[-1]) + 1) if is_stretch else slots[None]
        is_result = np.ones(len(rows), dtype=np.bool_)
        self.parts.append(Part(1, rows, is_result, keys, mask, is_causal, is_folded))

    def add_short_runs(self, short: list[_Short]) -> None:
        """Batches of like size: padding wastes less than half of the keys."""
        classes: dict[tuple[int, int], list[_Short]] = {}
        for one in short:
            classes.setdefault(_size_class(one), []).append(one)
        for members in classes.values():
            num_keys = max(one.tail.num_keys for one in members)
            num_rows = max(one.run.num_rows for one in members)
            limit = max(1, MAX_BATCH_ELEMENTS // (num_keys * max(num_rows * self._group, 256)))
            for first in range(0, len(members), limit):
                self._add_batch(members[first : first + limit])

    def _add_batch(self, members: list[_Short]) -> None:
        num_keys = np.array([one.tail.num_keys for one in members])
        num_rows = np.array([one.run.num_rows for one in members])
        first_rows = np.array([one.first_row for one in members])
        starts = np.array([one.run.start for one in members])
        key_starts = np.array([one.tail.position for one in members])
        # Padding repeats a row's or a sequence's own last entry: a mask hides a finite value only.
        row_idxs = np.minimum(np.arange(num_rows.max()), num_rows[:, None] - 1)  # [B, n]
        key_idxs = np.arange(num_keys.max())  # [L]
        flat = np.concatenate([_slots(one.tail) for one in members])
        firsts = np.cumsum(num_keys) - num_keys
        slots = flat[firsts[:, None] + np.minimum(key_idxs, num_keys[:, None] - 1)]  # [B, L]
        positions = (starts[:, None] + row_idxs)[:, :, None]  # [B, n, 1]
        key_positions = key_starts[:, None, None] + key_idxs  # [B, 1, L]
        visible = (key_positions <= positions) & (key_idxs < num_keys[:, None, None])
        if self._window is not None:
            visible &= key_positions > positions - self._window
        is_result = visible.any(2) & (np.arange(row_idxs.shape[1]) < num_rows[:, None])
        rows = (first_rows[:, None] + row_idxs).reshape(-1)
        mask = None
        if not visible.all():
            mask = _as_mask(visible).repeat(self._group, axis=1)[:, None]
        keys: slice | Ints = slots
        if len(members) == 1 and len(members[0].tail.ranges) == 1:  # no need to gather
            keys = slice(int(slots[0, 0]), int(slots[0, -1]) + 1)
        self.parts.append(Part(len(members), rows, is_result.reshape(-1), keys, mask))


def _size_class(one: _Short) -> tuple[int, int]:
    num_rows, num_keys = one.run.num_rows, one.tail.num_keys
    row_class = 0 if num_rows == 1 else 1 if num_rows <= 4 else 2
    return row_class, max(0, math.ceil(2 * math.log2(num_keys / 64)))


def _in_window(run: QueryRun, tail: KeyStretch, window: int | None) -> KeyStretch:
    """The tail without what even the first row is too far from."""
    if window is None:
        return tail
    return _cut(tail, max(0, run.start - window + 1 - tail.position), tail.num_keys)


def _cut(stretch: KeyStretch, begin: int, end: int) -> KeyStretch:
    """Keys `begin .. end - 1` of a stretch."""
    ranges, offset = [], 0
    for slot, length in stretch.ranges:
        low, high = max(begin - offset, 0), min(end - offset, length)
        if low < high:
            ranges.append((slot + low, high - low))
        offset += length
    return KeyStretch(stretch.position + begin, ranges)


def _slots(stretch: KeyStretch) -> Ints:
    """[num_keys], the slot of each key."""
    if len(stretch.ranges) == 1:
        slot, length = stretch.ranges[0]
        return np.arange(slot, slot + length)
    table = np.array(stretch.ranges, dtype=np.int64).reshape(-1, 2)
    before = np.cumsum(table[:, 1]) - table[:, 1]
    return np.repeat(table[:, 0] - before, table[:, 1]) + np.arange(stretch.num_keys)


def _pieces(stretch: KeyStretch) -> Iterator[tuple[Ints, Ints]]:
    """Slots and positions of each long range, and of all short ranges together."""
    short_slots, short_positions = [], []
    position = stretch.position
    for slot, length in stretch.ranges:
        slots, positions = np.arange(slot, slot + length), np.arange(position, position + length)
        position += length
        if length >= MIN_SLICE_LEN:
            yield slots, positions
        elif length:
            short_slots.append(slots)
            short_positions.append(positions)
    if short_slots:
        yield np.concatenate(short_slots), np.concatenate(short_positions)


def _as_mask(visible: NDArray[np.bool_]) -> NDArray[np.float32]:
    return np.where(visible, np.float32(0), np.float32(-np.inf))
