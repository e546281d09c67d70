"""Reading many tokens at once: the trie and an automaton walked together, one level of the trie at
a time.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa
from umbel.grammar.pushdown.residual import NodeArray, Residual

if TYPE_CHECKING:
    from umbel.grammar.pushdown.residual import ResidualSpace

StateArray = npt.NDArray[np.int32]
_THIN_LEVEL = 2_000  # nodes
# (states, bytes) -> the states after the bytes, negative where an automaton is stuck
Advance = Callable[[StateArray, npt.NDArray[np.uint8]], StateArray]


def sweep(residual: Residual, state: int, advance: Advance) -> tuple[NodeArray, StateArray]:
    """All trie nodes that the automaton reaches from the residual, ascending, and its states there.

    About 2 ns for each node looked at, and 10 us for each level: for residuals that are wide.
    """
    trie = residual.space.trie
    byte, child_count, child_start = trie.byte, trie.child_count, trie.child_start
    nodes = residual.nodes
    states = advance(np.full(len(nodes), state, np.int32), byte[nodes])
    all_nodes: list[NodeArray] = []
    all_states: list[StateArray] = []
    while True:
        alive = np.flatnonzero(states >= 0)
        if len(alive) != len(nodes):
            nodes, states = nodes[alive], states[alive]
        all_nodes.append(nodes)
        all_states.append(states)
        counts = child_count[nodes]
        inner = np.flatnonzero(counts)
        if not len(inner):
            return np.concatenate(all_nodes), np.concatenate(all_states)
        counts, states = counts[inner], states[inner]
        ends = np.cumsum(counts, dtype=np.int32)
        repeated = np.repeat(np.arange(len(inner), dtype=np.int32), counts)
        offsets = child_start[nodes[inner]] - (ends - counts)
        nodes = offsets[repeated] + np.arange(ends[-1], dtype=np.int32)
        states = advance(states[repeated], byte[nodes])


class DenseTable:
    """An automaton's table laid out for sweeps over the whole trie, its dead state included.

    Positions are row starts (state times number of columns), so that a step is one addition and one
    look-up.
    """

    def __init__(self, dfa: ByteDfa, space: "ResidualSpace") -> None:
        self.num_columns = dfa.table.shape[1]
        self.dead = dfa.dead * self.num_columns
        self._flat = dfa.table.reshape(-1).astype(np.int64) * self.num_columns
        self._column = dfa.byte_class[space.trie.byte]  # [N]
        self._space = space

    def sweep(self, state: int) -> npt.NDArray[np.int64]:
        """[N + 1] the position at every node from the root in `state`; the last entry is dead.

        Three gathers per node, about 8 ns together.
        """
        trie, flat, column = self._space.trie, self._flat, self._column
        found = np.full(trie.num_nodes + 1, self.dead, np.int64)
        found[0] = state * self.num_columns
        starts = trie.level_start
        for start, end in pairwise(starts[1:]):
            at = found[trie.parent[start:end]]
            if end - start < _THIN_LEVEL and (at == self.dead).all():
                break
            at += column[start:end]
            np.take(flat, at, out=found[start:end])
        return found
