"""Reading tokens with an automaton: in Python where few nodes are alive, by numpy sweeps where many
are.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.closing_ways import ClosingWays, live_states
from umbel.grammar.pushdown.leaves import NO_TAG, DfaLeaf
from umbel.grammar.pushdown.reading import DEAD, EMPTY_READING, Exits, Reading, reading_of, united
from umbel.grammar.pushdown.residual import NodeArray, Residual
from umbel.grammar.pushdown.sweep import DenseTable, StateArray, sweep

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_WIDE_STATE = 16  # bytes allowed next: more than in most literal texts
_WIDE_RESIDUAL = (
    2_000  # trie nodes; below, a walk in Python is quicker than one numpy level after the other
)
_DENSE_PART = 8  # sweep the whole trie if more than one in so many nodes may be alive
_FUEL = 1_500  # edges looked at before a walk turns out to be wide: 0.2 ms
_MAX_KEPT = 50_000


class DfaReader:
    """See `reading.Reader`."""

    start = 0

    def __init__(self, leaf: DfaLeaf, vocabulary: "Vocabulary") -> None:
        dfa = leaf.dfa
        self._dfa = dfa
        self._vocabulary = vocabulary
        self.greedy = leaf.greedy
        self.tags: list[int] = leaf.tags.tolist()
        self._tag_array = leaf.tags
        self._num_columns = dfa.table.shape[1]
        flat = dfa.table.reshape(-1)
        self._flat = np.where(flat == dfa.dead, DEAD, flat).astype(np.int32)
        self._column_of = dfa.byte_class.astype(np.int32)
        self._moves: list[dict[int, int] | None] = [None] * (dfa.num_states + 1)
        live = live_states(dfa, vocabulary)
        self._live = live
        self._live_list: list[bool] | None = None if live is None else live.tolist()
        self.has_gaps = live is not None
        self._dense: DenseTable | None = None
        self._memo: dict[tuple[int, Residual], Reading] = {}
        self._ways: dict[int, ClosingWays] = {}
        self._tags_from: dict[int, tuple[int, ...]] = {}

    def moves(self, state: int) -> dict[int, int]:
        """byte -> next state, of the bytes that are allowed."""
        found = self._moves[state]
        if found is None:
            row = self._flat[state * self._num_columns :][self._dfa.byte_class]
            values = np.flatnonzero(row >= 0)
            found = dict(zip(values.tolist(), row[values].tolist(), strict=True))
            self._moves[state] = found
        return found

    def step(self, state: int, value: int) -> int:
        return (self._moves[state] or self.moves(state)).get(value, DEAD)

    def run(self, state: int, text: bytes) -> tuple[int, int]:
        moves, tags = self._moves, self.tags
        for at, value in enumerate(text):
            if tags[state] >= 0:
                return state, at
            state = (moves[state] or self.moves(state)).get(value, DEAD)
            if state == DEAD:
                return DEAD, at
        return state, len(text)

    def tag(self, state: int) -> int:
        return self.tags[state]

    def is_live(self, state: int) -> bool:
        return self._live_list is None or self._live_list[state]

    def next_bytes(self, state: int) -> Iterable[int]:
        return self.moves(state)

    def is_final(self, state: int) -> bool:
        return not self.moves(state)

    def cost(self, state: int, tag: int) -> int:
        return self._ways_to(tag).cost(state)

    def bound(self, state: int, tag: int) -> int:
        return self._ways_to(tag).bound

    def _ways_to(self, tag: int) -> ClosingWays:
        ways = self._ways.get(tag)
        if ways is None:
            goal = self._tag_array == tag
            ways = self._ways[tag] = ClosingWays(self._dfa, goal, self._vocabulary)
        return ways

    def tags_from(self, state: int) -> tuple[int, ...]:
        found = self._tags_from.get(state)
        if found is None:
            seen, pending = {state}, [state]
            table = self._dfa.table
            while pending:
                for target in set(table[pending.pop()].tolist()) - seen:
                    seen.add(target)
                    pending.append(target)
            found = tuple(sorted({self.tags[at] for at in seen} - {NO_TAG}))
            self._tags_from[state] = found
        return found

    def read(self, state: int, residual: Residual) -> Reading:
        key = (state, residual)
        found = self._memo.get(key)
        if found is None:
            found = self._read(state, residual)
            if len(self._memo) >= _MAX_KEPT:
                self._memo.clear()
            self._memo[key] = found
        return found

    def _read(self, state: int, residual: Residual) -> Reading:
        is_small = residual.num_below <= _WIDE_RESIDUAL
        if is_small or len(self.moves(state)) <= _WIDE_STATE:
            found = self._walk(state, residual, fuel=10**9 if is_small else _FUEL)
            if found is not None:
                return found
        if residual is residual.space.root and self._is_dense(state, residual):
            return self._read_all(state, residual)
        nodes, states = sweep(residual, state, self.advance)
        exits = self._exits(state, residual, nodes, states)
        if self._live is not None:
            nodes = nodes[self._live[states]]
        return reading_of(self._vocabulary, residual.space.ids_of(nodes), exits)

    def _is_dense(self, state: int, root: Residual) -> bool:
        trie = self._vocabulary.trie
        alive = ~self._is_dead(state, root.nodes)
        return int(trie.num_below[root.nodes[alive]].sum()) * _DENSE_PART > trie.num_nodes

    def dense_table(self, root: Residual) -> DenseTable:
        if self._dense is None:
            self._dense = DenseTable(self._dfa, root.space)
        return self._dense

    def _read_all(self, state: int, root: Residual) -> Reading:
        space = root.space
        dense = self.dense_table(root)
        at = dense.sweep(state)
        at_tokens = at[space.node_of_token]
        if self._live is None:
            bits = at_tokens != dense.dead
        else:
            bits = self._live[at_tokens // dense.num_columns]
        row = np.packbits(bits, bitorder="little").view(np.uint32)
        is_tagged = np.zeros(len(at), bool)
        for tagged in np.flatnonzero(self._tag_array >= 0).tolist():
            is_tagged |= at == tagged * dense.num_columns
        nodes = np.flatnonzero(is_tagged[1:-1] & space.is_inner[1:]) + 1
        states = (at[nodes] // dense.num_columns).astype(np.int32)
        return Reading(row, (), self._exits(state, root, nodes, states))

    def ends(
        self, state: int, residual: Residual
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        nodes, states = sweep(residual, state, self.advance)
        ids, ends = residual.space.ends_of(nodes, states)
        if self._live is not None:
            ids, ends = ids[self._live[ends]], ends[self._live[ends]]
        return ids, ends.astype(np.int64)

    def advance(self, states: StateArray, values: npt.NDArray[np.uint8]) -> StateArray:
        found: StateArray = self._flat[states * self._num_columns + self._column_of[values]]
        return found

    def _walk(self, state: int, residual: Residual, fuel: int) -> Reading | None:
        """Depth first, over the smaller set of bytes at each place. None: out of fuel."""
        ids: list[int] = []
        exits: dict[int, list[Residual]] = {}
        tags, moves, live = self.tags, self._moves, self._live_list
        stack = [(state, residual)]
        while stack:
            at, rest = stack.pop()
            targets = moves[at]
            if targets is None:
                targets = self.moves(at)
            edges = rest.edges or rest.fill_edges()
            few = targets if len(targets) < len(edges) else edges
            fuel -= len(few)
            if fuel < 0:
                return None
            for value in few:
                target = targets.get(value)
                edge = edges.get(value)
                if target is None or edge is None:
                    continue
                if type(edge) is not tuple:
                    edge = rest.edge(value)
                    assert edge is not None
                ended, below = edge
                if ended and (live is None or live[target]):
                    ids += ended
                if below is not None:
                    if tags[target] >= 0:
                        self._add_exit(exits, target, below)
                    stack.append((target, below))
        found = self._exit_at_once(state, residual) + united(exits)
        return reading_of(self._vocabulary, ids, found) if ids or found else EMPTY_READING

    def _exit_at_once(self, state: int, residual: Residual) -> Exits:
        here: dict[int, list[Residual]] = {}
        if self.tags[state] >= 0:
            self._add_exit(here, state, residual)
        return united(here)

    def _add_exit(self, exits: dict[int, list[Residual]], state: int, rest: Residual) -> None:
        if self.greedy:
            inside = rest.nodes[self._is_dead(state, rest.nodes)]
            if not len(inside):
                return
            rest = rest.space.of_nodes(inside)
        exits.setdefault(self.tags[state], []).append(rest)

    def _is_dead(self, states: "int | StateArray", nodes: NodeArray) -> npt.NDArray[np.bool_]:
        """Which of the nodes' bytes the automaton cannot read in the states."""
        values = self._vocabulary.trie.byte[nodes]
        at = states * self._num_columns + self._column_of[values]
        found: npt.NDArray[np.bool_] = self._flat[at] == DEAD
        return found

    def _exits(
        self, state: int, residual: Residual, nodes: npt.NDArray[np.integer], states: StateArray
    ) -> Exits:
        exits: dict[int, list[Residual]] = {}
        space = residual.space
        tags = self._tag_array[states]
        accepted = np.flatnonzero(tags >= 0)
        tags = tags[accepted]
        for tag in set(tags.tolist()):
            of_tag = accepted[tags == tag]
            children = space.children_of(nodes[of_tag])
            if self.greedy and len(children):
                counts = space.trie.child_count[nodes[of_tag]]
                children = children[self._is_dead(np.repeat(states[of_tag], counts), children)]
            if len(children):
                exits.setdefault(tag, []).append(space.of_nodes(children))
        return self._exit_at_once(state, residual) + united(exits)
