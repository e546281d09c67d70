"""The pool of KV blocks: which are free, and which to take so that a path is few runs of slots.

Free blocks are kept as maximal runs. A path grows into the block after its last one if it is
free; a new path starts in the middle of the longest run, so that the one before it can grow.
"""

import heapq
from collections.abc import Sequence


class BlockPool:
    """The free ones of blocks `0 .. num_blocks - 1`; every call costs O(log n) for each run."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks} is not valid: expected at least 1")
        self.num_blocks = num_blocks
        self.num_free = 0
        self._is_free = bytearray(num_blocks)
        self._stop_of: dict[int, int] = {}  # first block of a free run -> block after its last
        self._start_of: dict[int, int] = {}  # the other way round
        self._longest: list[
            tuple[int, int]
        ] = []  # heap of (-length, start); may hold stale entries
        self.free(range(num_blocks))

    def allocate(self, num_blocks: int, *, after: int | None = None) -> list[int]:
        """Take `num_blocks` free blocks, the first one right after block `after` if that is free.

        Raises ValueError when fewer are free.
        """
        if num_blocks > self.num_free:
            raise ValueError(f"{num_blocks} blocks wanted, {self.num_free} are free: evict first")
        blocks: list[int] = []
        while len(blocks) < num_blocks:
            wanted = num_blocks - len(blocks)
            if after is not None and after + 1 in self._stop_of:
                start = at = after + 1
            else:
                start, at = self._start_for(wanted)
            stop = min(at + wanted, self._stop_of[start])
            self._carve(start, at, stop)
            blocks.extend(range(at, stop))
            after = stop - 1
        return blocks

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back. Raises ValueError for one that is free already."""
        idx = 0
        while idx < len(blocks):
            start = stop = blocks[idx]
            while idx < len(blocks) and blocks[idx] == stop:
                idx += 1
                stop += 1
            if any(self._is_free[start:stop]):
                raise ValueError(f"blocks {start}..{stop - 1} are not all in use: freed twice")
            self._is_free[start:stop] = b"\x01" * (stop - start)
            self.num_free += stop - start
            self._add_run(start, stop)

    def is_free(self, block: int) -> bool:
        return bool(self._is_free[block])

    def runs(self) -> list[tuple[int, int]]:
        """All free runs as (first block, block after the last), ascending."""
        return sorted(self._stop_of.items())

    def _start_for(self, wanted: int) -> tuple[int, int]:
        """The longest free run and the block in it where a new path should start."""
        while True:
            negative_length, start = self._longest[0]
            if self._stop_of.get(start) == start - negative_length:
                break
            heapq.heappop(self._longest)
        half = -negative_length // 2
        return start, start + half if start > 0 and half >= wanted else start

    def _carve(self, start: int, at: int, stop: int) -> None:
        """Take blocks at..stop-1 out of the free run that begins at `start`."""
        run_stop = self._stop_of.pop(start)
        del self._start_of[run_stop]
        if start < at:
            self._insert_run(start, at)
        if stop < run_stop:
            self._insert_run(stop, run_stop)
        self._is_free[at:stop] = bytes(stop - at)
        self.num_free -= stop - at

    def _add_run(self, start: int, stop: int) -> None:
        """Insert a free run, joined with the free runs that touch it."""
        before = self._start_of.pop(start, None)
        if before is not None:
            del self._stop_of[before]
            start = before
        after = self._stop_of.pop(stop, None)
        if after is not None:
            del self._start_of[after]
            stop = after
        self._insert_run(start, stop)

    def _insert_run(self, start: int, stop: int) -> None:
        self._stop_of[start] = stop
        self._start_of[stop] = start
        heapq.heappush(self._longest, (start - stop, start))
        if len(self._longest) > 4 * len(self._stop_of) + 64:
            self._longest = [(first - last, first) for first, last in self._stop_of.items()]
            heapq.heapify(self._longest)
