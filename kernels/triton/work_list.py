"""Turns a step's attention plan into work items, which one launch computes whatever their level.

An item is a tile of query rows with a stretch of their keys. Rows of a shared stretch are stacked
into one tile with all heads of their GQA group, so the stretch's keys are read once per tile. Keys
are cut at multiples of one chunk length, counted from position 0 of the path, so with a given
chunk a row's partial results do not depend on what else is in the step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.triton.work_split import (
    DeviceRates,
    HeadShape,
    best_chunk,
    cut_keys,
    longest_first,
    place_partials,
)

Ints = NDArray[np.int32]

MIN_TILE = 16  # rows of the smallest tensor-core product
MAX_NARROW_TILE = 64
WIDE_TILE = 128


@dataclass(slots=True, eq=False)
class WorkList:
    """The work of one step for one kind of layer; plain arrays, to be loaded to the device."""

    num_rows: int  # T, query rows of the step
    block_size: int
    group: int
    window: int | None
    chunk: int
    narrow: Ints  # [items, 8], for tiles of `narrow_tile` products of query row and group head
    wide: Ints  # [items, 8], for tiles of WIDE_TILE: the rows of long runs
    narrow_tile: int
    rows: Ints  # the query rows of all tiles
    positions: Ints  # [T], the last position that each row sees
    pages: Ints  # blocks of the pool
    merge_begin: Ints  # [T + 1]: row t merges the partials merge_list[begin[t]:begin[t + 1]];
    merge_list: Ints  # none where one item computes all of the row
    num_partials: int


def plan_work(
    runs: Sequence[QueryRun],
    shared: Sequence[KeyStretch],
    tails: Sequence[KeyStretch],
    *,
    heads: HeadShape,
    block_size: int,
    rates: DeviceRates,
    window: int | None = None,
    chunk: int | None = None,
) -> WorkList:
    """The work items of a step. Runs, shared stretches and tails as in `attention.AttentionStep`.

    block_size: slots of a block of the pool. window: as in `AttentionStep.attend`. chunk: keys
    between cuts; None: what the rates make fastest. Raises `ValueError` for slots that do not lie
    at their positions' offsets in blocks, and for a group that no tile holds.
    """
    if heads.group > WIDE_TILE:
        raise ValueError(f"group={heads.group} is not supported: expected at most {WIDE_TILE}")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk={chunk} is not valid: expected at least 1, or None")
    tiling = _Tiling(runs, heads.group, block_size, window)
    for stretch in shared:
        tiling.add_shared(stretch)
    for run_idx, tail in enumerate(tails):
        tiling.add_tail(run_idx, tail)
    tiles, num_narrow = tiling.tiles()
    if chunk is None:
        chunk = best_chunk(tiles, heads, rates)
    items, tile_idxs = cut_keys(tiles, chunk)
    rows = tiling.rows()
    begin, merge_list, num_partials = place_partials(items, rows, len(tiling.positions))
    is_wide = tile_idxs >= num_narrow
    return WorkList(
        num_rows=len(tiling.positions),
        block_size=block_size,
        group=heads.group,
        window=window,
        chunk=chunk,
        narrow=longest_first(items[~is_wide]),
        wide=longest_first(items[is_wide]),
        narrow_tile=tiling.narrow_tile,
        rows=rows,
        positions=tiling.positions,
        pages=tiling.pages(),
        merge_begin=begin,
        merge_list=merge_list,
        num_partials=num_partials,
    )


def list_pages(stretches: Iterable[KeyStretch], block_size: int) -> Ints:
    """`WorkList.pages` for shared stretches and tails, in that order: all that depends on slots.

    Two steps whose runs and stretches are of the same positions and lengths differ in nothing else.
    Raises as `plan_work` does.
    """
    pages: list[int] = []
    for stretch in stretches:
        pages += _pages_of(stretch, block_size)
    return np.array(pages, dtype=np.int32)


def _pages_of(stretch: KeyStretch, size: int) -> list[int]:
    """Where two ranges meet inside of a block, the later one's block holds a copy of what comes
    before it (the contract of the radix tree)."""
    position = stretch.position
    first = position // size
    pages: list[int] = []
    for slot, length in stretch.ranges:
        if (slot - position) % size:
            raise ValueError(
                f"slot {slot} holds position {position}; expected a slot at the same offset "
                f"in a block of {size}"
            )
        del pages[position // size - first :]
        pages += range(slot // size, (slot + length - 1) // size + 1)
        position += length
    return pages


@dataclass(slots=True)
class _Part:
    """Query rows with a stretch of keys. `start` is the position of the first row of a run whose
    tail this is; None: all rows come after all keys."""

    rows: Ints
    rows_begin: int  # in the list of all rows
    key_begin: int
    key_end: int
    page_offset: int  # page n of the path is pages[page_offset + n]
    start: int | None


class _Tiling:
    """Collects rows and pages of all parts, then divides the parts into tiles of query rows."""

    def __init__(
        self, runs: Sequence[QueryRun], group: int, block_size: int, window: int | None
    ) -> None:
        self._runs = runs
        self._group = group
        self._block_size = block_size
        self._window = window
        sizes = [run.num_rows for run in runs]
        firsts = np.cumsum([0, *sizes])
        starts = np.array([run.start for run in runs], dtype=np.int64)
        self.positions = (np.repeat(starts - firsts[:-1], sizes) + np.arange(firsts[-1])).astype(
            np.int32
        )
        every = np.arange(firsts[-1], dtype=np.int32)
        self._rows_of = [every[a:b] for a, b in pairwise(firsts)]
        self._is_long = [size * group > MAX_NARROW_TILE for size in sizes]
        self._parts: dict[bool, list[_Part]] = {False: [], True: []}  # by whether wide
        self._row_list: list[Ints] = []
        self._num_listed = 0
        self._pages: list[int] = []

    @property
    def narrow_tile(self) -> int:
        """The least power of two that holds the largest narrow part, within the limits."""
        most = max((len(part.rows) for part in self._parts[False]), default=1) * self._group
        return max(_power_of_two(self._group), min(MAX_NARROW_TILE, _power_of_two(most)))

    def rows(self) -> Ints:
        return np.concatenate([*self._row_list, np.zeros(0, np.int32)])

    def pages(self) -> Ints:
        return np.array(self._pages, dtype=np.int32)

    def add_shared(self, stretch: KeyStretch) -> None:
        """Rows of long runs and of short ones go to tiles of their own size."""
        offset = self._add_pages(stretch)
        for is_wide in (False, True):
            rows = [self._rows_of[i] for i in stretch.run_idxs if self._is_long[i] == is_wide]
            if rows:
                self._add_part(is_wide, np.concatenate(rows), stretch, offset, None)

    def add_tail(self, run_idx: int, tail: KeyStretch) -> None:
        offset = self._add_pages(tail)
        rows = self._rows_of[run_idx]
        self._add_part(self._is_long[run_idx], rows, tail, offset, self._runs[run_idx].start)

    def _add_part(
        self, is_wide: bool, rows: Ints, keys: KeyStretch, offset: int, start: int | None
    ) -> None:
        end = keys.position + keys.num_keys
        part = _Part(rows, self._num_listed, keys.position, end, offset, start)
        self._parts[is_wide].append(part)
        self._row_list.append(rows)
        self._num_listed += len(rows)

    def _add_pages(self, stretch: KeyStretch) -> int:
        """List the stretch's blocks; returns where block 0 of its path would be listed."""
        offset = len(self._pages) - stretch.position // self._block_size
        self._pages += _pages_of(stretch, self._block_size)
        return offset

    def tiles(self) -> tuple[Ints, int]:
        """[tiles, 6]: rows_begin, num_rows, key_begin, key_end, all_visible_end, page_offset; the
        narrow ones first, and how many they are."""
        narrow = self._tiles_of(self._parts[False], self.narrow_tile // self._group)
        wide = self._tiles_of(self._parts[True], WIDE_TILE // self._group)
        return np.array(narrow + wide, dtype=np.int32).reshape(-1, 6), len(narrow)

    def _tiles_of(self, parts: list[_Part], height: int) -> list[tuple[int, ...]]:
        tiles: list[tuple[int, ...]] = []
        for part in parts:
            for first in range(0, len(part.rows), height):
                num_rows = min(height, len(part.rows) - first)
                begin, end = part.key_begin, part.key_end
                visible_end = end
                if part.start is not None:
                    visible_end = min(end, part.start + first + 1)
                    end = min(end, part.start + first + num_rows)
                if self._window is not None:
                    lowest = int(self.positions[part.rows[first : first + num_rows]].min())
                    begin = max(begin, lowest - self._window + 1)
                if begin < end:
                    where = part.rows_begin + first
                    tiles.append((where, num_rows, begin, end, visible_end, part.page_offset))
        return tiles


def _power_of_two(least: int) -> int:
    return int(max(MIN_TILE, 1 << (least - 1).bit_length()))
