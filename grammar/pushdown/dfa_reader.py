"""Reading tokens with an automaton: in Python where few nodes are alive, by numpy sweeps where many
are.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.closing_ways import ClosingWays, live_states
from umbel.grammar.pushdown.leaves import NO_TAG, DfaLeaf
from umbel.grammar.pushdown.reading import (
    DEAD,
    EMPTY_READING,
    Exits,
    Reading,
    joined,
    reading_of,
    united,
    without,
)
from umbel.grammar.pushdown.residual import NodeArray, Residual, ResidualSpace
from umbel.grammar.pushdown.sweep import DenseTable, StateArray, sweep
from umbel.grammar.pushdown.walk import walk

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_WIDE_STATE = 16  # bytes allowed next: more than in most literal texts
_WIDE_RESIDUAL = (
    500  # trie nodes; below, a walk in Python is quicker than one numpy level after the other
)
_DENSE_PART = 8  # sweep the whole trie if more than one in so many nodes may be alive
_FUEL = 1_500  # edges looked at before a walk turns out to be wide: 0.2 ms
_FEW_STATES = 8  # looked for one by one
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
        self._loops: dict[int, bytes] = {}
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

    def loop_bytes(self, state: int) -> bytes:
        """The bytes after which the automaton is where it was."""
        found = self._loops.get(state)
        if found is None:
            found = bytes(value for value, target in self.moves(state).items() if target == state)
            self._loops[state] = found
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
        if not is_small and self.tags[state] < 0:
            readable = self._readable(state, residual)
            if readable is not None:
                main, others, missing = readable
                reading = self.read(state, main)
                if missing is not None:
                    reading = without(reading, self.read(state, missing))
                return reading if others is None else joined(reading, self.read(state, others))
        if is_small or len(self.moves(state)) <= _WIDE_STATE:
            found = self._walk(state, residual, fuel=10**9 if is_small else _FUEL)
            if found is not None:
                return found
        if residual.parent is not None and self._is_dense(state, residual):
            return self._read_all(state, residual)
        nodes, states = sweep(residual, state, self.advance)
        exits = self._exits(state, residual, nodes, states)
        if self._live is not None:
            nodes = nodes[self._live[states]]
        return reading_of(self._vocabulary, residual.space.ids_of(nodes), exits)

    def _readable(
        self, state: int, residual: Residual
    ) -> tuple[Residual, Residual | None, Residual | None] | None:
        """The same rests, as far as the state can read them: a part that many residuals have in
        common, others, and what the common part has too much. None: the residual is such a part.

        What greedy leaves leave behind is nearly all of the vocabulary, each time without another
        few bytes; what white space leaves behind is what follows a blank, and a few rests more.
        """
        space, trie, nodes = residual.space, residual.space.trie, residual.nodes
        alive = nodes[~self._is_dead(state, nodes)]
        if residual.parent is not None or not len(alive):
            return None
        parents = trie.parent[alive]
        parent = int(parents[np.argmax(trie.num_below[alive])])
        is_main = parents == parent
        main = alive[is_main]
        size = int(trie.num_below[main].sum())
        if size < _WIDE_RESIDUAL:
            return None
        others = None if len(main) == len(alive) else space.of_nodes(alive[~is_main])
        whole = space.below(parent)
        assert whole is not None
        readable = whole.nodes[~self._is_dead(state, whole.nodes)]
        missing = readable[~np.isin(readable, main, assume_unique=True)]
        if int(trie.num_below[missing].sum()) < size:
            return whole, others, space.of_nodes(missing) if len(missing) else None
        if len(main) == len(nodes):
            return None
        return space.of_nodes(main), others, None

    def _is_dense(self, state: int, residual: Residual) -> bool:
        trie = self._vocabulary.trie
        alive = ~self._is_dead(state, residual.nodes)
        return int(trie.num_below[residual.nodes[alive]].sum()) * _DENSE_PART > trie.num_nodes

    def dense_table(self, root: Residual) -> DenseTable:
        if self._dense is None:
            self._dense = DenseTable(self._dfa, root.space)
        return self._dense

    def _read_all(self, state: int, residual: Residual) -> Reading:
        """Of all that follows one node."""
        space = residual.space
        assert residual.parent is not None
        dense = self.dense_table(residual)
        at = dense.sweep_below(state, residual.parent)
        at_tokens = at[space.node_of_token]
        if self._live is None:
            bits = at_tokens != dense.dead
        else:
            bits = self._live[at_tokens // dense.num_columns]
        row = np.packbits(bits, bitorder="little").view(np.uint32)
        is_tagged = self._tagged(at, dense)
        nodes = np.flatnonzero(is_tagged[:-1] & space.is_inner)
        if self.greedy:
            return Reading(row, (), self._greedy_exits(state, residual, nodes, at))
        states = (at[nodes] // dense.num_columns).astype(np.int32)
        return Reading(row, (), self._exits(state, residual, nodes, states))

    def _tagged(self, at: npt.NDArray[np.int64], dense: DenseTable) -> npt.NDArray[np.bool_]:
        """Which positions are of states where texts may end."""
        states = np.flatnonzero(self._tag_array >= 0).tolist()
        if len(states) > _FEW_STATES:
            many: npt.NDArray[np.bool_] = self._tag_array[at // dense.num_columns] >= 0
            return many
        found = np.zeros(len(at), bool)
        for state in states:
            found |= at == state * dense.num_columns
        return found

    def _greedy_exits(
        self,
        state: int,
        residual: Residual,
        nodes: npt.NDArray[np.integer],
        at: npt.NDArray[np.int64],
    ) -> Exits:
        """nodes: the inner ones where a text may end. at: the position at every node, see
        `DenseTable`. Looks at the smaller part: the nodes where texts may end, or those where the
        automaton is stuck.
        """
        space, dense = residual.space, self._dense
        assert dense is not None
        stuck = np.flatnonzero(at[:-1] == dense.dead)
        if len(stuck) < len(nodes):
            parents = space.trie.parent[stuck]
            outside = stuck[self._tagged(at[parents], dense)].astype(np.int32)
        else:
            outside = space.children_of(nodes)
            outside = outside[at[outside] == dense.dead]
        tags = self._tag_array[at[space.trie.parent[outside]] // dense.num_columns]
        found = sorted(set(tags.tolist()))
        exits = tuple((tag, space.of_nodes(outside[tags == tag])) for tag in found)
        return self._exit_at_once(state, residual) + exits

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
        """None: out of fuel."""
        visited = walk(residual, state, self._moves_at, fuel)
        if visited is None:
            return None
        space, tags, live = residual.space, self.tags, self._live_list
        ids: list[int] = []
        ended_at: list[tuple[int, int]] = []  # states where texts may end, and the trie nodes there
        token_at, child_count = space.token_at, space.child_count
        for target, node in visited:
            if token_at[node] >= 0 and (live is None or live[target]):
                ids += space.ids_at(node)
            if tags[target] >= 0 and child_count[node]:
                ended_at.append((target, node))
        found = self._exit_at_once(state, residual) + self._exits_behind(space, ended_at)
        return reading_of(self._vocabulary, ids, found) if ids or found else EMPTY_READING

    def _moves_at(self, state: int) -> dict[int, int]:
        return self._moves[state] or self.moves(state)

    def _exit_at_once(self, state: int, residual: Residual) -> Exits:
        tag = self.tags[state]
        if tag < 0:
            return ()
        if self.greedy:
            outside = residual.nodes[self._is_dead(state, residual.nodes)]
            return ((tag, residual.space.of_nodes(outside)),) if len(outside) else ()
        return ((tag, residual),)

    def _exits_behind(self, space: ResidualSpace, places: list[tuple[int, int]]) -> Exits:
        """The exits at places where texts may end: (state, trie node)."""
        if not places:
            return ()
        if self.greedy:
            nodes, tags = self.outside(space, places)
            found = sorted(set(tags.tolist()))
            return tuple((tag, space.of_nodes(np.sort(nodes[tags == tag]))) for tag in found)
        exits: dict[int, list[Residual]] = {}
        for state, node in places:
            rest = space.below(node)
            assert rest is not None
            exits.setdefault(self.tags[state], []).append(rest)
        return united(exits)

    def outside(
        self, space: ResidualSpace, places: list[tuple[int, int]]
    ) -> tuple[NodeArray, npt.NDArray[np.int32]]:
        """The nodes that a greedy leaf leaves behind at the places, and the tags they are left
        with.
        """
        at = np.array(places, np.int32)
        states = np.repeat(at[:, 0], space.trie.child_count[at[:, 1]])
        nodes = space.children_of(at[:, 1])
        outside = np.flatnonzero(self._is_dead(states, nodes))
        return nodes[outside], self._tag_array[states[outside]]

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
