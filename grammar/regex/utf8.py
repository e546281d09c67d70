"""Character automaton to byte automaton: each state gets the decoding tree of its character
classes.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa, shared_columns
from umbel.grammar.limits import Limits
from umbel.grammar.regex import charset
from umbel.grammar.regex.chardfa import CharDfa, Partition, too_many_states

INVALID = -1  # in a decoding row: no character goes on with this byte
# (first lead byte, one past the last, bytes that follow, code point of the first lead byte's block)
_LEADS = ((0xC2, 0xE0, 1, 0x80), (0xE0, 0xF0, 2, 0x0), (0xF0, 0xF5, 3, 0x0))
_LEAST = {0xE0: 0x800, 0xF0: 0x10000}  # below are overlong forms
_MAX_CHUNK = 2_000_000  # table entries worked on at a time

Row = list[int]


def class_entry(class_id: int) -> int:
    """The entry of a decoding row where a character of the class is complete."""
    return INVALID if class_id < 0 else -2 - class_id


@dataclass(frozen=True, slots=True, eq=False)
class DecodingTree:
    """rows: [U, 256] int32: per node the entry of each next byte, which is INVALID, or another node
    (> 0), or -2 - c where a character of class c is complete. Node 0 is between two characters.
    """

    rows: npt.NDArray[np.int32]


class _Decoder:
    """Builds the tree of UTF-8, equal subtrees shared."""

    def __init__(self, partition: Partition) -> None:
        self.starts = partition.starts
        self.ids = partition.ids
        self.rows: list[Row] = [[INVALID] * 256]
        self.numbers: dict[tuple[int, ...], int] = {}
        self.uniform: dict[tuple[int, int], int] = {}
        for value in range(0x80):
            self.rows[0][value] = class_entry(partition.class_of(value))
        for first, stop, num_following, base in _LEADS:
            for lead in range(first, stop):
                block = base + ((lead - first) << 6 * num_following)
                self.rows[0][lead] = self._block(block, num_following, _LEAST.get(lead, 0))

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(start, stop, class) of the pieces of a range of characters."""
        at = bisect_right(self.starts, start) - 1
        while start < stop:
            end = self.starts[at + 1] if at + 1 < len(self.starts) else stop
            yield start, min(end, stop), self.ids[at]
            start, at = end, at + 1

    def _block(self, base: int, num_following: int, least: int = 0) -> int:
        """The node that decodes `num_following` more bytes of the characters from `base` on."""
        span = 1 << 6 * (num_following - 1)  # characters with the same next byte
        row: Row = [INVALID] * 256
        done = 0  # next bytes
        stop = min(base + 64 * span, charset.MAX_CODE_POINT + 1)
        for start, end, class_id in self._ranges(max(base, least), stop):
            first, last = (start - base) // span, (end - base) // span
            if (start - base) % span:  # in the midst of a next byte: its classes differ
                if first >= done:
                    row[0x80 + first] = self._block(base + first * span, num_following - 1)
                first += 1
            if last > first:
                entry = class_entry(class_id)
                if num_following > 1 and class_id >= 0:
                    entry = self._uniform(class_id, num_following - 1)
                row[0x80 + first : 0x80 + last] = [entry] * (last - first)
            done = max(done, first, last)
        return self._node(row)

    def _uniform(self, class_id: int, num_following: int) -> int:
        key = (class_id, num_following)
        if key not in self.uniform:
            inner = class_entry(class_id)
            if num_following > 1:
                inner = self._uniform(class_id, num_following - 1)
            row: Row = [INVALID] * 256
            row[0x80:0xC0] = [inner] * 64
            self.uniform[key] = self._node(row)
        return self.uniform[key]

    def _node(self, row: Row) -> int:
        key = tuple(row[0x80:0xC0])
        if max(key) == min(key) == INVALID:
            return INVALID
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.rows)
            self.rows.append(row)
        return number


@lru_cache(256)
def decoding_tree(partition: Partition) -> DecodingTree:
    """The UTF-8 of the classes of a partition."""
    return DecodingTree(np.array(_Decoder(partition).rows, np.int32))


def to_bytes(dfa: CharDfa, limits: Limits) -> ByteDfa:
    """Raises `UnsupportedGrammar` when the byte automaton is larger than the limits allow."""
    return in_spelling(dfa, decoding_tree(dfa.partition), limits)


def in_spelling(dfa: CharDfa, tree: DecodingTree, limits: Limits) -> ByteDfa:
    """The byte automaton of texts whose characters are spelled as the tree says.

    Its first states are those of `dfa`, in their order; it is minimal if `dfa` is.
    """
    columns, byte_class = shared_columns(tree.rows)  # [U, B], [256]
    heights = _heights(columns)
    num_chars = len(dfa.table)
    # A node may be inside a character of any state: number[u, s] is the state of the pair. Equal
    # pairs are one. The last entries are those of an invalid byte: dead.
    number = np.full((len(columns) + 1, num_chars), INVALID, np.int32)
    number[0] = np.arange(num_chars)
    targets = np.vstack([dfa.table.T, np.full((1, num_chars), INVALID)]).astype(np.int32)
    numbers: dict[bytes, int] = {}
    inner: list[npt.NDArray[np.int32]] = []
    for height in range(int(heights.max(initial=0))):
        for nodes in _chunks(np.flatnonzero(heights == height), num_chars * columns.shape[1]):
            if nodes[0] == 0 and len(nodes) == 1:
                continue
            rows = _rows_of(nodes[nodes > 0], columns, number, targets)
            found = _numbered(rows.reshape(-1, columns.shape[1]), num_chars, numbers, inner, limits)
            number[nodes[nodes > 0]] = found.reshape(-1, num_chars)
    chars = _rows_of(np.zeros(1, np.int64), columns, number, targets)[0]
    dead = num_chars + len(numbers)
    if dead > limits.max_states or dead * columns.shape[1] > limits.max_table_entries:
        raise too_many_states(limits)
    table = np.vstack([chars, *inner, np.full((1, columns.shape[1]), INVALID, np.int32)])
    table[table == INVALID] = dead
    accepting = np.zeros(dead + 1, bool)
    accepting[:num_chars] = dfa.accepting
    # Columns that differ only in dead states were kept apart by the decoder: join them.
    table, joined = shared_columns(table)
    return ByteDfa(joined[byte_class], table, accepting)


def _heights(columns: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """[U] the most nodes on a way from below each node to the end of a character."""
    heights = np.zeros(len(columns), np.int64)
    while True:
        higher = np.where(columns > 0, heights[np.maximum(columns, 0)] + 1, 0).max(axis=1)
        if np.array_equal(higher, heights):
            return heights
        heights = higher


def _chunks(nodes: npt.NDArray[np.int64], cost: int) -> Iterator[npt.NDArray[np.int64]]:
    size = max(1, _MAX_CHUNK // max(cost, 1))
    for start in range(0, len(nodes), size):
        yield nodes[start : start + size]


def _rows_of(
    nodes: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int32],
    number: npt.NDArray[np.int32],
    targets: npt.NDArray[np.int32],
) -> npt.NDArray[np.int32]:
    """[n, S, B] the states after each byte, for all pairs of the nodes with character states."""
    entries = columns[nodes]  # [n, B]
    ends = entries <= -2
    of_class = targets[np.where(ends, -2 - entries, -1)]  # [n, B, S]
    of_node = number[np.where(entries > 0, entries, -1)]
    return np.where(ends[:, :, None], of_class, of_node).transpose(0, 2, 1)


def _numbered(
    rows: npt.NDArray[np.int32],
    first: int,
    numbers: dict[bytes, int],
    kept: list[npt.NDArray[np.int32]],
    limits: Limits,
) -> npt.NDArray[np.int32]:
    """[n] the number of each row, equal for equal rows, INVALID for dead ones; new rows are kept.

    Rows are told apart by a 64-bit hash, which is checked.
    """
    alive = np.flatnonzero(rows.max(axis=1) >= 0)
    found = np.full(len(rows), INVALID, np.int32)
    if not len(alive):
        return found
    rows = rows[alive]
    weights = np.random.default_rng(0).integers(1, 2**63, size=rows.shape[1], dtype=np.uint64)
    hashes = ((rows + 1).astype(np.uint64) * (weights | np.uint64(1))).sum(axis=1, dtype=np.uint64)
    _, index, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    if not np.array_equal(rows[index][inverse], rows):  # two rows with one hash
        index = inverse = np.arange(len(rows))
    distinct = np.empty(len(index), np.int32)
    for at in np.argsort(index).tolist():
        row = rows[index[at]]
        key = row.tobytes()
        known = numbers.get(key)
        if known is None:
            known = numbers[key] = first + len(numbers)
            kept.append(row)
            if known > limits.max_states:
                raise too_many_states(limits)
        distinct[at] = known
    found[alive] = distinct[inverse]
    return found
