"""The tokens that end inside a leaf by the state after them, kept: of these masks near a token
limit are put together.

A leaf has few states and the vocabulary many tokens, so what takes milliseconds to find out is a
few rows to keep, and all grammars with that leaf share them.
"""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.reading import MaskRow, Reader
from umbel.grammar.pushdown.residual import Residual

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

TokenIds = npt.NDArray[np.int32]
_MAX_SMALL = 64  # token ids kept as ids; more are a mask row
_MAX_KEPT_BYTES = 16 * 2**20
_BASE_BYTES = 512  # of an entry without its tokens, roughly


class EndSet:
    """The tokens after which a leaf is in `state`. Either `ids` or `row` is there."""

    __slots__ = ("ids", "row", "state")

    def __init__(self, state: int, ids: TokenIds, vocabulary: "Vocabulary") -> None:
        is_small = len(ids) <= _MAX_SMALL
        self.state = state
        self.ids = ids.copy() if is_small else None
        self.row: MaskRow | None = None if is_small else vocabulary.pack(ids)

    @property
    def size_bytes(self) -> int:
        kept = self.row if self.ids is None else self.ids
        assert kept is not None
        return _BASE_BYTES + kept.nbytes

    def token_ids(self) -> list[int]:
        ids: npt.NDArray[np.integer] | None = self.ids
        if ids is None:
            assert self.row is not None
            ids = np.flatnonzero(np.unpackbits(self.row.view(np.uint8), bitorder="little"))
        listed: list[int] = ids.tolist()
        return listed


class EndSets:
    """Of one vocabulary. The least recently used go first. Thread-safe."""

    def __init__(self, vocabulary: "Vocabulary") -> None:
        self._vocabulary = vocabulary
        self._kept: OrderedDict[tuple[Reader, int, Residual], tuple[EndSet, ...]] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Roughly what is kept."""
        return self._kept_bytes

    def of(self, reader: Reader, state: int, residual: Residual) -> tuple[EndSet, ...]:
        """What `reader.ends(state, residual)` tells, by the state after the tokens."""
        key = (reader, state, residual)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        found = self._find(reader, state, residual)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = found
                self._kept_bytes += _size_bytes(found)
            while self._kept_bytes > _MAX_KEPT_BYTES:
                _, oldest = self._kept.popitem(last=False)
                self._kept_bytes -= _size_bytes(oldest)
        return found

    def _find(self, reader: Reader, state: int, residual: Residual) -> tuple[EndSet, ...]:
        ids, ends = reader.ends(state, residual)
        if not len(ids):
            return ()
        order = ends.argsort(kind="stable")
        ids, ends = ids[order], ends[order]
        firsts = np.flatnonzero(np.diff(ends, prepend=ends[0] - 1))
        return tuple(
            EndSet(int(ends[first]), piece, self._vocabulary)
            for first, piece in zip(firsts, np.split(ids, firsts[1:]), strict=True)
        )


def _size_bytes(sets: tuple[EndSet, ...]) -> int:
    return _BASE_BYTES + sum(each.size_bytes for each in sets)
