"""Cuts the tiles of a work list along their keys: how long, where, and where partial results go.

The cost of a chunk length is that of the roofline: bytes of keys and partial results over the
device's bandwidth, or the longest chunk over what one program can read, and the programs' starts.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]

# Columns of an item; one without rows is padding. The first six are those of a tile.
ROWS_BEGIN, NUM_ROWS, KEY_BEGIN, KEY_END, ALL_VISIBLE_END, PAGE_OFFSET, PARTIAL = range(7)
ITEM_WIDTH = 8  # a sector of 32 bytes
CHUNKS = tuple(256 << i for i in range(10))  # keys
_PARTIAL_BYTES = 8  # a float32 written once and read once
_SLACK = 0.03
_DIRECT = -1  # the item's rows go straight to the output


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """The attention heads of one layer on one device."""

    num_kv_heads: int
    group: int  # query heads per KV head
    head_dim: int
    element_bytes: int  # of a key or value in the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What the split of the keys depends on. The defaults are assumed for an H200: its measured
    copy bandwidth, 64 KB of loads in flight a microsecond, and 1.5 us to start a program."""

    bandwidth: float = 4.3e12  # bytes/s
    program_bandwidth: float = 65e9  # bytes/s that one program alone can read
    program_s: float = 1.5e-6
    num_processors: int = 132
    programs_per_processor: int = 2  # resident together, as the kernel is compiled


def best_chunk(tiles: Ints, heads: HeadShape, rates: DeviceRates) -> int:
    """The keys between cuts: the fewest whose estimated time is within `_SLACK` of the best, since
    short items even out what the estimate leaves out. tiles: [n, 6]."""
    longest = int((tiles[:, KEY_END] - tiles[:, KEY_BEGIN]).max(initial=0))
    num_useful = 1 + sum(chunk < longest for chunk in CHUNKS[:-1])
    times = [_time_s(tiles, chunk, heads, rates) for chunk in CHUNKS[:num_useful]]
    limit = (1 + _SLACK) * min(times)
    return next(chunk for chunk, time_s in zip(CHUNKS, times, strict=False) if time_s <= limit)


def _time_s(tiles: Ints, chunk: int, heads: HeadShape, rates: DeviceRates) -> float:
    """max((keys + partial results) / bandwidth, one chunk / program bandwidth) + starts."""
    key_bytes = 2 * heads.head_dim * heads.element_bytes
    row_bytes = heads.group * (heads.head_dim + 1) * _PARTIAL_BYTES
    begins, ends = tiles[:, KEY_BEGIN].astype(np.int64), tiles[:, KEY_END].astype(np.int64)
    counts = -(-ends // chunk) - begins // chunk
    num_partials = int((tiles[:, NUM_ROWS] * counts)[counts > 1].sum())
    moved = (int((ends - begins).sum()) * key_bytes + num_partials * row_bytes) * heads.num_kv_heads
    longest = min(chunk, int((ends - begins).max(initial=0)))
    resident = rates.num_processors * rates.programs_per_processor
    num_waves = -(-int(counts.sum()) * heads.num_kv_heads // resident)
    busy_s = max(moved / rates.bandwidth, longest * key_bytes / rates.program_bandwidth)
    return busy_s + num_waves * rates.program_s


def cut_keys(tiles: Ints, chunk: int) -> tuple[Ints, Ints]:
    """Items [n, 8] of at most `chunk` keys, and the tile that each comes from; cuts lie at
    multiples of `chunk`."""
    first = tiles[:, KEY_BEGIN] // chunk
    counts = -(-tiles[:, KEY_END] // chunk) - first
    tile_idxs = np.repeat(np.arange(len(tiles), dtype=np.int32), counts)
    inside = np.arange(len(tile_idxs)) - np.repeat(np.cumsum(counts) - counts, counts)
    number = first[tile_idxs] + inside
    items = np.zeros((len(tile_idxs), ITEM_WIDTH), dtype=np.int32)
    items[:, :6] = tiles[tile_idxs]
    items[:, KEY_BEGIN] = np.maximum(items[:, KEY_BEGIN], number * chunk)
    items[:, KEY_END] = np.minimum(items[:, KEY_END], (number + 1) * chunk)
    items[:, PARTIAL] = _DIRECT
    return items, tile_idxs


def place_partials(items: Ints, rows: Ints, num_rows: int) -> tuple[Ints, Ints, int]:
    """Give a place in the list of partial results to every row of an item that does not compute all
    of all its rows; sets the items' PARTIAL.

    Returns where each row's part of the merge list begins [T + 1], the merge list in order of
    position, and how many partial results there are.
    """
    sizes = items[:, NUM_ROWS]
    begins = np.cumsum(sizes) - sizes
    inside = np.arange(int(sizes.sum())) - np.repeat(begins, sizes)
    item_rows = rows[np.repeat(items[:, ROWS_BEGIN], sizes) + inside]
    counts = np.bincount(item_rows, minlength=num_rows)
    is_split = np.zeros(len(items), dtype=np.bool_)
    if len(items):
        is_split = np.maximum.reduceat(counts[item_rows], begins) > 1
    kept = np.where(is_split, sizes, 0)
    items[is_split, PARTIAL] = (np.cumsum(kept) - kept)[is_split]
    partial_rows = item_rows[np.repeat(is_split, sizes)]
    merge_list = np.argsort(partial_rows, kind="stable").astype(np.int32)
    merge_begin = np.zeros(num_rows + 1, dtype=np.int32)
    np.cumsum(np.bincount(partial_rows, minlength=num_rows), out=merge_begin[1:])
    return merge_begin, merge_list, len(partial_rows)


def longest_first(items: Ints) -> Ints:
    """A long item that starts last would keep the device waiting."""
    order = np.argsort(items[:, KEY_BEGIN] - items[:, KEY_END], kind="stable")
    return np.ascontiguousarray(items[order])
