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
    """An automaton's table laid out for sweeps over whole subtries, its dead state included.

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
        """[N + 1] the position at every node below `parent`, where the state is `state`; elsewhere,
        and in the last entry, it is dead.

        Three gathers per node, about 8 ns together.
        """
        return self._sweep(state, None)[0]

    def sweep_below(self, state: int, parent: int) -> npt.NDArray[np.int64]:
        """As `sweep`, of the nodes below `parent` only, itself and all others being dead."""
        if parent == 0:
            found = self.sweep(state)
            found[0] = self.dead
            return found
        trie, flat, column = self._space.trie, self._flat, self._column
        found = np.full(trie.num_nodes + 1, self.dead, np.int64)
        found[parent] = state * self.num_columns
        start, end = trie.children(parent, parent + 1)
        while start < end:  # the nodes of one level below a node stand side by side
            at = found[trie.parent[start:end]]
            if end - start < _THIN_LEVEL and (at == self.dead).all():
                break
            at += column[start:end]
            np.take(flat, at, out=found[start:end], mode="clip")
            start, end = trie.children(start, end)
        found[parent] = self.dead
        return found

    def sweep_counted(
        self, state: int, counts: npt.NDArray[np.int16]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int16]]:
        """As `sweep`, and [N + 1] the sum of counts ([S + 1, C], flat) on the way to each node."""
        found, items = self._sweep(state, counts)
        assert items is not None
        return found, items

    def _sweep(
        self, state: int, counts: npt.NDArray[np.int16] | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int16] | None]:
        trie, flat, column = self._space.trie, self._flat, self._column
        found = np.full(trie.num_nodes + 1, self.dead, np.int64)
        found[0] = state * self.num_columns
        items = None if counts is None else np.zeros(trie.num_nodes + 1, np.int16)
        for start, end in pairwise(trie.level_start[1 : trie.num_wide_levels + 1]):
            parents = trie.parent[start:end]
            at = found[parents]
            at += column[start:end]
            # All places are valid; the default mode would copy the output once more.
            np.take(flat, at, out=found[start:end], mode="clip")
            if items is not None and counts is not None:
                np.add(items[parents], counts[at], out=items[start:end])
        self._sweep_thin_levels(found, items, counts)
        return found, items

    def _sweep_thin_levels(
        self,
        found: npt.NDArray[np.int64],
        items: npt.NDArray[np.int16] | None,
        counts: npt.NDArray[np.int16] | None,
    ) -> None:
        """Node by node: the longest tokens are few, and a level of numpy costs as much as fifty."""
        trie = self._space.trie
        start, end = trie.level_start[trie.num_wide_levels - 1 : trie.num_wide_levels + 1]
        last = found[start:end]
        pending: list[int] = (np.flatnonzero(last != self.dead) + start).tolist()
        flat, column, places = self._flat.data, self._column.data, found.data
        child_start, child_count = trie.child_start.data, trie.child_count.data
        for node in pending:
            first, number = child_start[node], child_count[node]
            for child in range(first, first + number):
                at = places[node] + column[child]
                target = flat[at]
                if target != self.dead:
                    places[child] = target
                    if items is not None and counts is not None:
                        items[child] = items[node] + counts[at]
                    pending.append(child)
