"""Deterministic automata over bytes: what every front end compiles to, and what tokens are walked
through.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# A counted automaton needs as many rounds as its count: it is left as it is.
_MAX_MINIMIZING_ROUNDS = 64
_MAX_MINIMIZING_ENTRIES = 2_000_000  # table entries looked at, all rounds together: about 30 ms


@dataclass(frozen=True, slots=True, eq=False)
class ByteDfa:
    """A byte automaton with an explicit dead state, so that walking needs no branch.

    byte_class: [256] uint8, the column of each byte. table: [S + 1, C] int32, the next state; state
    S is dead and absorbing. accepting: [S + 1] bool. The start is state 0; every state but S
    reaches an accepting one by some bytes (whether by tokens is a question of the vocabulary).
    """

    byte_class: npt.NDArray[np.uint8]
    table: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.bool_]

    @property
    def num_states(self) -> int:
        """S: the live states."""
        return len(self.table) - 1

    @property
    def dead(self) -> int:
        return len(self.table) - 1

    def run(self, text: bytes, state: int = 0) -> int:
        """The state after `text`, possibly `dead`."""
        for value in text:
            state = int(self.table[state, self.byte_class[value]])
        return state

    def accepts(self, text: bytes) -> bool:
        return bool(self.accepting[self.run(text)])


def shared_columns(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """The distinct columns of [S, B] rows, and which one each of the B (<= 256) is."""
    numbers: dict[bytes, int] = {}
    content = np.ascontiguousarray(rows.T).tobytes()
    size = len(content) // max(rows.shape[1], 1)
    column_of = [
        numbers.setdefault(content[at * size : (at + 1) * size], len(numbers))
        for at in range(rows.shape[1])
    ]
    first = [column_of.index(number) for number in range(len(numbers))]
    return np.ascontiguousarray(rows[:, first]), np.array(column_of, np.uint8)


def minimize(dfa: ByteDfa) -> ByteDfa:
    """Merge equivalent states (Moore's partition refinement), unless that takes too many rounds.

    Rows are compared by a 64-bit random hash and then by value, so a collision cannot merge
    wrongly.
    """
    blocks = dfa.accepting.astype(np.int64)
    num_blocks = len(np.unique(blocks))
    weights = np.random.default_rng(0).integers(
        1, 2**63, size=dfa.table.shape[1], dtype=np.uint64
    ) | np.uint64(1)
    for _ in range(min(_MAX_MINIMIZING_ROUNDS, _MAX_MINIMIZING_ENTRIES // dfa.table.size)):
        values = np.random.default_rng(1).integers(0, 2**63, size=num_blocks, dtype=np.uint64)
        hashes = (values[blocks[dfa.table]] * weights).sum(axis=1, dtype=np.uint64)
        hashes ^= values[blocks] * np.uint64(0x9E3779B97F4A7C15)
        _, refined = np.unique(hashes, return_inverse=True)
        count = int(refined.max()) + 1
        if count == num_blocks:
            return _merged(dfa, blocks)
        blocks, num_blocks = refined.reshape(-1), count
    return dfa


def _merged(dfa: ByteDfa, blocks: npt.NDArray[np.int64]) -> ByteDfa:
    """One state per block, the start first and the dead state last; the input itself if blocks
    disagree.
    """
    num_blocks = int(blocks.max()) + 1
    if num_blocks == len(dfa.table):
        return dfa
    first = np.full(num_blocks, len(dfa.table), np.int64)
    np.minimum.at(first, blocks, np.arange(len(dfa.table)))
    agree = np.array_equal(blocks[dfa.table], blocks[dfa.table[first]][blocks])
    if not agree or not np.array_equal(dfa.accepting, dfa.accepting[first][blocks]):
        return dfa
    order = np.argsort(first)  # by first member: keeps the start at 0
    dead_block = blocks[dfa.dead]
    order = np.concatenate([order[order != dead_block], [dead_block]])
    number = np.empty(num_blocks, np.int32)
    number[order] = np.arange(num_blocks, dtype=np.int32)
    representatives = first[order]
    table = number[blocks[dfa.table[representatives]]].astype(np.int32)
    return ByteDfa(dfa.byte_class, table, dfa.accepting[representatives])
