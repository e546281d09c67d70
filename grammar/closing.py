"""How many tokens a state still needs to be complete: the liveness and the budget of every mask.

A shortest way is found over the smallest tokens (those that spell everything the vocabulary can
spell), then its bytes are cut into as few tokens as possible. The result is an upper bound, exact
for forced text.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa
from umbel.grammar.vocabulary import Vocabulary

UNREACHABLE = np.iinfo(np.int32).max
_MAX_TOKEN_BYTES = (
    32  # longest token tried when a way is cut into tokens; longer ones only save a little
)

# The first step of a state's shortest way: the bytes of one atom, and where they lead.
_Step = tuple[bytes, int]


def closing_costs(dfa: ByteDfa, vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    """[S + 1] int32: at most so many tokens from each state to an accepting one; UNREACHABLE: none
    suffice.

    Where the cost is c > 0 there is a token after which it is at most c - 1, so a text kept within
    its budget token by token always completes.
    """
    order, steps = _shortest_ways(dfa, vocabulary)
    texts = vocabulary.ids_by_bytes
    longest = min(vocabulary.trie.max_token_len, _MAX_TOKEN_BYTES)
    costs = [int(UNREACHABLE)] * len(dfa.table)
    for state in order:  # nearest first, so that the rest of every way is known
        if dfa.accepting[state]:
            costs[state] = 0
            continue
        atom, at = steps[state]
        best = 1 + costs[at]
        text = atom
        while at in steps:
            atom, at = steps[at]
            text += atom
            if len(text) > longest:
                break
            if text in texts and costs[at] < best:
                best = 1 + costs[at]
        costs[state] = best
    return np.array(costs, np.int32)


def _shortest_ways(dfa: ByteDfa, vocabulary: Vocabulary) -> tuple[list[int], dict[int, _Step]]:
    """The states that tokens can complete, nearest first, and the first step from each of them."""
    backward: dict[int, list[tuple[int, bytes]]] = {}
    for source, atom, target in _atom_edges(dfa, vocabulary):
        backward.setdefault(target, []).append((source, atom))
    order = np.flatnonzero(dfa.accepting).tolist()
    seen = set(order)
    steps: dict[int, _Step] = {}
    pending = deque(order)
    while pending:
        target = pending.popleft()
        for source, atom in backward.get(target, ()):
            if source not in seen:
                seen.add(source)
                steps[source] = (atom, target)
                order.append(source)
                pending.append(source)
    return order, steps


def _atom_edges(dfa: ByteDfa, vocabulary: Vocabulary) -> Iterator[tuple[int, bytes, int]]:
    """(source, atom, target) for all live moves by one smallest token, equal moves once."""
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
    for atom, ends in moves:
        sources = np.flatnonzero(ends != dfa.dead)
        for source, target in zip(sources.tolist(), ends[sources].tolist(), strict=True):
            yield source, atom, target
