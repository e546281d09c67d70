"""Character automaton to byte automaton: each state gets the UTF-8 decoding tree of its character
classes.
"""

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa, shared_columns
from umbel.grammar.limits import Limits
from umbel.grammar.regex import charset
from umbel.grammar.regex.chardfa import CharDfa, Partition, too_many_states

_INVALID = -1  # in a decoding row: no character goes on with this byte
# (first lead byte, one past the last, bytes that follow, code point of the first lead byte's block)
_LEADS = ((0xC2, 0xE0, 1, 0x80), (0xE0, 0xF0, 2, 0x0), (0xF0, 0xF5, 3, 0x0))


class _Decoder:
    """The decoding tree of a partition with equal subtrees shared.

    rows: per node 256 entries: _INVALID, or a node (>= 0), or class c as -2 - c. Node 0 is the
    root.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.rows: list[tuple[int, ...]] = []
        self.numbers: dict[tuple[int, ...], int] = {}
        self.uniform: dict[tuple[int, int], int] = {}
        root = [_INVALID] * 256
        self.rows.append(())
        for value in range(0x80):
            root[value] = self._leaf(value)
        for first, stop, num_following, base in _LEADS:
            for lead in range(first, stop):
                block = base + ((lead - first) << 6 * num_following)
                root[lead] = self._block(block, num_following, lead)
        self.rows[0] = tuple(root)

    def _leaf(self, code_point: int) -> int:
        class_id = self.partition.class_of(code_point)
        return _INVALID if class_id < 0 else -2 - class_id

    def _block(self, base: int, num_following: int, lead: int = 0) -> int:
        """The node that decodes `num_following` more bytes of the characters from `base` on."""
        if base > charset.MAX_CODE_POINT:
            return _INVALID
        starts = self.partition.starts
        at = bisect_right(starts, base) - 1
        end = starts[at + 1] if at + 1 < len(starts) else charset.MAX_CODE_POINT + 1
        is_whole = lead not in (0xE0, 0xF0, 0xF4)  # these lack overlong forms or end at U+10FFFF
        is_uniform = is_whole and base + (1 << 6 * num_following) <= end
        key = (self.partition.ids[at], num_following)
        if is_uniform and key in self.uniform:
            return self.uniform[key]
        row = [_INVALID] * 256
        step = 1 << 6 * (num_following - 1)
        least = {0xE0: 0x800, 0xF0: 0x10000}.get(lead, 0)
        for value in range(64):
            part = base + value * step
            if part < least:
                continue
            if num_following > 1:
                row[0x80 + value] = self._block(part, num_following - 1)
            elif part <= charset.MAX_CODE_POINT:
                row[0x80 + value] = self._leaf(part)
        node = self._node(tuple(row))
        if is_uniform:
            self.uniform[key] = node
        return node

    def _node(self, row: tuple[int, ...]) -> int:
        if all(value == _INVALID for value in row):
            return _INVALID
        number = self.numbers.get(row)
        if number is None:
            number = self.numbers[row] = len(self.rows)
            self.rows.append(row)
        return number


def to_bytes(dfa: CharDfa, limits: Limits) -> ByteDfa:
    """Raises `UnsupportedGrammar` when the byte automaton is larger than the limits allow.

    A state of the result is (character state, decoding node); only pairs that some live character
    passes are made.
    """
    decoder = np.array(_Decoder(dfa.partition).rows, np.int64)  # [U, 256]
    columns, byte_class = shared_columns(decoder)  # [U, B], [256]
    alive = _alive_pairs(dfa, columns)  # [S, U] bool
    alive[:, 0] = True
    num_states = int(alive.sum())
    num_classes = columns.shape[1]
    if num_states > limits.max_states or num_states * num_classes > limits.max_table_entries:
        raise too_many_states(limits)
    states, nodes = np.nonzero(alive)
    # Characters before their inner nodes: state s of the character automaton keeps its order, the
    # start is 0.
    number = np.full(alive.shape, num_states, np.int64)
    number[states, nodes] = np.arange(num_states)
    entries = columns[nodes]  # [P, B]
    class_ids = np.where(entries <= -2, -2 - entries, 0)
    next_chars = dfa.table[states[:, None], class_ids]
    by_class = np.where(next_chars >= 0, number[next_chars, 0], num_states)
    by_node = number[states[:, None], np.maximum(entries, 0)]
    table = np.where(entries <= -2, by_class, np.where(entries >= 0, by_node, num_states))
    table = np.vstack([table, np.full((1, num_classes), num_states)]).astype(np.int32)
    accepting = np.zeros(num_states + 1, bool)
    accepting[number[:, 0]] = dfa.accepting
    # Columns that differ only in dead states were kept apart by the decoder: join them.
    table, joined = shared_columns(table)
    return ByteDfa(joined[byte_class], table, accepting)


def _alive_pairs(dfa: CharDfa, columns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """[S, U] bool: whether state s has a live transition on a character that node u can still
    become.
    """
    num_nodes = len(columns)
    reaches = np.zeros((num_nodes, dfa.table.shape[1]), np.float32)  # [U, C]
    nodes, at = np.nonzero(columns <= -2)
    reaches[nodes, -2 - columns[nodes, at]] = 1
    parents, at = np.nonzero(columns > 0)
    for _ in range(2):  # characters have at most three bytes after the first
        np.maximum.at(reaches, parents, reaches[columns[parents, at]])
    live = (dfa.table >= 0).astype(np.float32)  # [S, C]
    return np.asarray(live @ reaches.T > 0)
