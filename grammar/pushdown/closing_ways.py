"""The cheapest ways out of an automaton in tokens: which states are alive, and what closing costs.

A shortest way is found over the smallest tokens (those that spell all that the vocabulary can
spell), then its bytes are cut into as few tokens as possible. An upper bound, exact for forced
text.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa
from umbel.grammar.pushdown.rules import UNREACHABLE

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_FAR = np.iinfo(np.int32).max // 2
_MAX_TOKEN_BYTES = 32  # longest token tried when a way is cut; longer ones only save a little


class ClosingWays:
    """Ways from all states of `dfa` to the states of `goal` ([S + 1] bool)."""

    def __init__(self, dfa: ByteDfa, goal: npt.NDArray[np.bool_], vocabulary: "Vocabulary") -> None:
        self._vocabulary = vocabulary
        self._moves = smallest_moves(dfa, vocabulary)
        self.distances = _distances(self._moves, goal)
        near = self.distances[self.distances < _FAR]
        self.bound = int(near.max(initial=0))  # no finite cost is higher
        self._costs: dict[int, int] = {}

    def is_reachable(self, state: int) -> bool:
        return bool(self.distances[state] < _FAR)

    def cost(self, state: int) -> int:
        """Tokens to the goal. Where it is c > 0, some token leads to where it is at most c - 1."""
        known = self._costs.get(state)
        if known is None:
            known = self._cut(state) if self.is_reachable(state) else UNREACHABLE
            self._costs[state] = known
        return known

    def _cut(self, state: int) -> int:
        """The way from `state` in the fewest tokens; keeps the costs of all states on it."""
        steps: list[tuple[int, bytes]] = []  # state, bytes from there to the next
        while self.distances[state] > 0 and state not in self._costs:
            text, target = self._first_step(state)
            steps.append((state, text))
            state = target
        path = [source for source, _ in steps] + [state]
        ahead: list[tuple[int, bytes]] = []  # the way behind, nearest first
        self._costs.setdefault(state, 0)
        rest, at = b"", state
        # A known state's own way goes on from there: tokens may reach past it.
        while len(rest) < _MAX_TOKEN_BYTES and self.distances[at] > 0:
            text, at = self._first_step(at)
            rest += text
            ahead.append((at, text))
        texts = self._vocabulary.ids_by_bytes
        for source, text in reversed(steps):
            ahead.insert(0, (path[path.index(source) + 1], text))
            best, joined = UNREACHABLE, b""
            for target, part in ahead:
                joined += part
                if len(joined) > _MAX_TOKEN_BYTES and best < UNREACHABLE:
                    break
                if joined in texts:
                    best = min(best, 1 + self._costs.get(target, UNREACHABLE))
            self._costs[source] = best
        return self._costs[path[0]]

    def _first_step(self, state: int) -> tuple[bytes, int]:
        wanted = self.distances[state] - 1
        for text, targets in self._moves:
            if self.distances[targets[state]] == wanted:
                return text, int(targets[state])
        raise AssertionError("a state at a distance has a neighbour that is nearer")


def smallest_moves(
    dfa: ByteDfa, vocabulary: "Vocabulary"
) -> list[tuple[bytes, npt.NDArray[np.int32]]]:
    """(token text, [S + 1] the state after it from each): one single byte of each class that has
    any, and the longer tokens that single bytes do not spell."""
    spelled = np.flatnonzero(vocabulary.has_byte)
    classes, first = np.unique(dfa.byte_class[spelled], return_index=True)
    moves: list[tuple[bytes, npt.NDArray[np.int32]]] = [
        (bytes([spelled[at]]), dfa.table[:, column])
        for column, at in zip(classes, first, strict=True)
    ]
    for atom in vocabulary.compound_atoms:
        ends = np.arange(len(dfa.table), dtype=np.int32)
        for value in atom:
            ends = dfa.table[ends, dfa.byte_class[value]]
        moves.append((atom, ends))
    return moves


def live_states(dfa: ByteDfa, vocabulary: "Vocabulary") -> npt.NDArray[np.bool_] | None:
    """[S + 1] bool: from where tokens inside the automaton complete a text; None: everywhere but
    `dead`.

    Quick where every class of bytes has a token, which is nearly always.
    """
    spelled = np.zeros(dfa.table.shape[1], bool)
    spelled[dfa.byte_class[vocabulary.has_byte]] = True
    if spelled.all() or (dfa.table[:, ~spelled] == dfa.dead).all():
        return None
    alive = _distances(smallest_moves(dfa, vocabulary), dfa.accepting) < _FAR
    return None if alive[:-1].all() else alive


def _distances(
    moves: list[tuple[bytes, npt.NDArray[np.int32]]], goal: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int32]:
    """[S + 1] the fewest moves to a goal state."""
    distances = np.where(goal, 0, _FAR).astype(np.int32)
    targets = np.array([ends for _, ends in moves], np.int32).reshape(len(moves), -1)  # [M, S + 1]
    while len(moves):
        shorter = np.minimum(distances, distances[targets].min(axis=0) + 1)
        if np.array_equal(shorter, distances):
            break
        distances = shorter
    return distances
