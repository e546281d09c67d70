"""A byte automaton read through a token vocabulary: masks, moves and closing costs of its states.

The matcher knows a constraint only through the methods of this class; states are opaque to it.
Everything is a pure function of the state, so results are kept per state and shared by all matchers
of the constraint.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa
from umbel.grammar.closing import UNREACHABLE, closing_costs
from umbel.grammar.vocabulary import Vocabulary

MaskRow = npt.NDArray[np.uint32]
IntArray = npt.NDArray[np.int64]

_MAX_KEPT_ROW_BYTES = 32 * 2**20  # mask rows kept per constraint; the oldest are dropped first
_MAX_KEPT_MOVES = 200_000
_WIDE_PART = 8  # sweep the whole trie when more than one in so many nodes may be alive


class TokenMachine:
    """Deterministic moves by tokens. `start` is the first state; a state is an int."""

    start = 0

    def __init__(self, dfa: ByteDfa, vocabulary: Vocabulary) -> None:
        self.dfa = dfa
        self.vocabulary = vocabulary
        self._costs = closing_costs(dfa, vocabulary)
        self._live_tokens = self._costs != UNREACHABLE  # [S + 1] bool: some tokens can complete
        self._byte_class: list[int] = dfa.byte_class.tolist()
        self._flat = dfa.table.reshape(-1)
        self._edge_class = dfa.byte_class[vocabulary.trie.byte].astype(np.int64)  # [N]
        self._rows: dict[tuple[int, int | None], MaskRow] = {}
        self._worst_costs: dict[int, int] = {}
        self._moves: dict[tuple[int, int], int | None] = {}
        self._max_rows = max(16, _MAX_KEPT_ROW_BYTES // (4 * vocabulary.num_words))

    def is_accepting(self, state: int) -> bool:
        return bool(self.dfa.accepting[state])

    def is_exhausted(self, state: int) -> bool:
        """Complete, and no text token can follow."""
        if not self.dfa.accepting[state]:
            return False
        targets = self.dfa.table[state, self.dfa.byte_class[self.vocabulary.has_byte]]
        if self._live_tokens[targets].any():
            return False
        return len(self.tokens(state)[0]) == 0

    def closing_cost(self, state: int) -> int:
        return int(self._costs[state])

    def move(self, state: int, token_id: int) -> int | None:
        """The state after a text token, or None when it is not allowed."""
        key = (state, token_id)
        if key in self._moves:
            return self._moves[key]
        text = self.vocabulary.text_of(token_id)
        target = self.dfa.dead if text is None else self.dfa.run(text, state)
        found = target if self._live_tokens[target] else None
        if len(self._moves) >= _MAX_KEPT_MOVES:
            self._moves.clear()
        self._moves[key] = found
        return found

    def mask(self, state: int, budget: int | None) -> MaskRow:
        """[W] uint32, not to be written to: the tokens allowed next, EOS ids exactly when
        accepting.

        With a budget (tokens that may still be generated, this one included), only tokens after
        which `budget - 1` tokens certainly suffice to complete. If the budget is below the closing
        cost there may be none; then the plain mask is the answer: the text will be cut off, and
        should read well until then.
        """
        if budget is not None and (budget < self._costs[state] or budget > self._worst_cost(state)):
            budget = None
        key = (state, budget)
        row = self._rows.get(key)
        if row is None:
            row = self._make_row(state, budget)
        return row

    def _worst_cost(self, state: int) -> int:
        """The highest closing cost after any allowed token: with a larger budget the mask is the
        plain one.
        """
        worst = self._worst_costs.get(state)
        if worst is None:
            self._make_row(state, None)
            worst = self._worst_costs[state]
        return worst

    def _make_row(self, state: int, budget: int | None) -> MaskRow:
        token_ids, targets = self.tokens(state)
        costs = self._costs[targets]
        self._worst_costs[state] = int(costs.max(initial=0))
        if budget is not None:
            token_ids = token_ids[costs <= budget - 1]
        row = self.vocabulary.pack(token_ids)
        if self.dfa.accepting[state]:
            row |= self.vocabulary.eos_row
        if len(self._rows) >= self._max_rows:
            self._rows.pop(next(iter(self._rows)), None)
        self._rows[(state, budget)] = row
        return row

    def tokens(self, state: int, node: int = 0) -> tuple[IntArray, IntArray]:
        """The allowed tokens below a trie node, walked from `state`, and the state after each."""
        if node == 0 and self._is_wide(state):
            return self._tokens_of_all(state)
        trie = self.vocabulary.trie
        found_nodes: list[IntArray] = []
        found_states: list[IntArray] = []
        for nodes, states in self._levels(state, node):
            ends = (trie.token_count[nodes] > 0) & self._live_tokens[states]
            if ends.any():
                found_nodes.append(nodes[ends])
                found_states.append(states[ends])
        if not found_nodes:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        nodes, states = np.concatenate(found_nodes), np.concatenate(found_states)
        counts = trie.token_count[nodes]
        at = _ranges(trie.token_start[nodes], counts)
        return trie.token_ids[at].astype(np.int64), np.repeat(states, counts)

    def _is_wide(self, state: int) -> bool:
        """Whether the first bytes that are alive lead to a good part of the whole trie."""
        trie = self.vocabulary.trie
        top = slice(1, 1 + int(trie.child_count[0]))
        alive = self.dfa.table[state, self._edge_class[top]] != self.dfa.dead
        return bool(trie.num_below[top][alive].sum() * _WIDE_PART > trie.num_nodes)

    def _tokens_of_all(self, state: int) -> tuple[IntArray, IntArray]:
        """Like `tokens`, by one sweep over all nodes: a third of the work per node of the sparse
        walk.
        """
        trie = self.vocabulary.trie
        num_classes = self.dfa.table.shape[1]
        states = np.empty(trie.num_nodes, np.int64)
        states[0] = state
        for start, end in zip(trie.level_start[1:-1], trie.level_start[2:], strict=True):
            at = states[trie.parent[start:end]] * num_classes + self._edge_class[start:end]
            states[start:end] = self._flat[at]
        ends = states[trie.token_node]
        alive = self._live_tokens[ends]
        return trie.token_ids[alive].astype(np.int64), ends[alive]

    def _levels(self, state: int, node: int) -> Iterator[tuple[IntArray, IntArray]]:
        """Walk trie and automaton together, one level of the trie at a time: (nodes, states) that
        are alive.
        """
        trie = self.vocabulary.trie
        num_classes = self.dfa.table.shape[1]
        nodes, states = np.array([node], np.int64), np.array([state], np.int64)
        while True:
            counts = trie.child_count[nodes]
            nodes_next = _ranges(trie.child_start[nodes], counts)
            if not len(nodes_next):
                return
            at = np.repeat(states * num_classes, counts) + self._edge_class[nodes_next]
            states_next = self._flat[at].astype(np.int64)
            alive = states_next != self.dfa.dead
            nodes, states = nodes_next[alive], states_next[alive]
            yield nodes, states

    def allows_below(self, state: int, node: int) -> bool:
        """Whether some token strictly below the trie node is allowed when walked from `state`."""
        trie = self.vocabulary.trie
        return any(
            bool(((trie.token_count[nodes] > 0) & self._live_tokens[states]).any())
            for nodes, states in self._levels(state, node)
        )

    def forced_bytes(self, state: int, limit: int) -> tuple[bytes, list[int]]:
        """The bytes that must come next as long as there is no choice, and the states before and
        after each.
        """
        forced = bytearray()
        states = [state]
        while len(forced) < limit and not self.dfa.accepting[state]:
            live = np.flatnonzero(self.dfa.table[state, self.dfa.byte_class] != self.dfa.dead)
            if len(live) != 1:
                break
            forced.append(int(live[0]))
            state = self.dfa.run(bytes(forced[-1:]), state)
            states.append(state)
        return bytes(forced), states


def _ranges(starts: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]) -> IntArray:
    """The numbers start, start + 1, ..., start + count - 1 for every pair, one after the other."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    offsets = np.repeat(starts.astype(np.int64) - (ends - counts), counts)
    return offsets + np.arange(total)
