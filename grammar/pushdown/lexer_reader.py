"""Reading with a lexer: many leaves at one place, told apart by the first byte of their texts.

One reading for all of them is kept for each rest of the vocabulary, and shared by all places of all
grammars where the same leaves may come.
"""

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.leaves import LexerLeaf
from umbel.grammar.pushdown.reading import DEAD, EMPTY_READING, Reader, Reading, plain_row
from umbel.grammar.pushdown.residual import Residual

_MAX_KEPT = 20_000


class LexerReader:
    """See `reading.Reader`. State 0 is before all leaves, state q of leaf i is 1 + i + q * leaves
    for so many leaves.
    """

    start = 0
    greedy = True

    def __init__(self, leaf: LexerLeaf, readers: list[Reader]) -> None:
        self._readers = readers
        self._num = len(readers)
        self._first_tag = leaf.first_tags
        self._num_tags = leaf.num_tags
        self._member_of: dict[int, int] = {}
        for member, reader in enumerate(readers):
            self._member_of.update((value, member) for value in reader.next_bytes(reader.start))
        self.has_gaps = any(reader.has_gaps for reader in readers)
        self._memo: dict[tuple[int, Residual], Reading] = {}

    def _inside(self, state: int) -> tuple[Reader, int, int]:
        """The leaf's reader, its state, and the first of its tags."""
        own, member = divmod(state - 1, self._num)
        return self._readers[member], own, self._first_tag[member]

    def _member(self, tag: int) -> int:
        return next(m for m in reversed(range(self._num)) if self._first_tag[m] <= tag)

    def step(self, state: int, value: int) -> int:
        if state:
            own, member = divmod(state - 1, self._num)
        else:
            found = self._member_of.get(value)
            if found is None:
                return DEAD
            member, own = found, self._readers[found].start
        target = self._readers[member].step(own, value)
        return DEAD if target == DEAD else 1 + member + target * self._num

    def run(self, state: int, text: bytes) -> tuple[int, int]:
        if state:
            own, member = divmod(state - 1, self._num)
        elif not text:
            return state, 0
        else:
            found = self._member_of.get(text[0])
            if found is None:
                return DEAD, 0
            member, own = found, self._readers[found].start
        target, at = self._readers[member].run(own, text)
        return (DEAD if target == DEAD else 1 + member + target * self._num), at

    def tag(self, state: int) -> int:
        if not state:
            return -1
        reader, own, first = self._inside(state)
        tag = reader.tag(own)
        return tag if tag < 0 else first + tag

    def next_bytes(self, state: int) -> Iterable[int]:
        if not state:
            return self._member_of
        reader, own, _ = self._inside(state)
        return reader.next_bytes(own)

    def is_final(self, state: int) -> bool:
        if not state:
            return False
        reader, own, _ = self._inside(state)
        return reader.is_final(own)

    def is_live(self, state: int) -> bool:
        if not state:
            return any(reader.is_live(reader.start) for reader in self._readers)
        reader, own, _ = self._inside(state)
        return reader.is_live(own)

    def cost(self, state: int, tag: int) -> int:
        member = self._member(tag)
        own = (state - 1) // self._num if state else self._readers[member].start
        return self._readers[member].cost(own, tag - self._first_tag[member])

    def bound(self, state: int, tag: int) -> int:
        member = self._member(tag)
        own = (state - 1) // self._num if state else self._readers[member].start
        return self._readers[member].bound(own, tag - self._first_tag[member])

    def tags_from(self, state: int) -> Collection[int]:
        if state:
            reader, own, first = self._inside(state)
            return [first + tag for tag in reader.tags_from(own)]
        return [
            first + tag
            for reader, first in zip(self._readers, self._first_tag, strict=True)
            for tag in reader.tags_from(reader.start)
        ]

    def read(self, state: int, residual: Residual) -> Reading:
        key = (state, residual)
        found = self._memo.get(key)
        if found is None:
            if state:
                reader, own, first = self._inside(state)
                found = _shifted(reader.read(own, residual), first)
            else:
                found = self._read_first(residual)
            if len(self._memo) >= _MAX_KEPT:
                self._memo.clear()
            self._memo[key] = found
        return found

    def _read_first(self, residual: Residual) -> Reading:
        member_of = self._member_of
        members = {member_of.get(value) for value in residual.edges or residual.fill_edges()}
        found = []
        for member in sorted(member for member in members if member is not None):
            reader = self._readers[member]
            reading = reader.read(reader.start, residual)
            if reading is not EMPTY_READING:
                found.append(_shifted(reading, self._first_tag[member]))
        if len(found) < 2:
            return found[0] if found else EMPTY_READING
        rows = [reading for reading in found if reading.row is not None]
        row, removed = (rows[0].row, rows[0].removed) if rows else (None, ())
        if len(rows) > 1:
            row, removed = plain_row(rows[0]), ()
            for reading in rows[1:]:
                row |= plain_row(reading)
        ids = tuple(i for reading in found for i in reading.ids)
        return Reading(row, ids, tuple(e for reading in found for e in reading.exits), removed)

    def ends(
        self, state: int, residual: Residual
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        if state:
            own, member = divmod(state - 1, self._num)
            ids, states = self._readers[member].ends(own, residual)
            return ids, 1 + member + states * self._num
        all_ids, all_states = [], []
        for member, reader in enumerate(self._readers):
            ids, states = reader.ends(reader.start, residual)
            all_ids.append(ids)
            all_states.append(1 + member + states * self._num)
        return np.concatenate(all_ids), np.concatenate(all_states)


def _shifted(reading: Reading, first_tag: int) -> Reading:
    if not first_tag or not reading.exits:
        return reading
    exits = tuple((first_tag + tag, rest) for tag, rest in reading.exits)
    return Reading(reading.row, reading.ids, exits, reading.removed)
