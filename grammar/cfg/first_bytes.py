"""The bytes that texts begin with, as bit sets: bit `b` stands for byte `b`."""

from collections.abc import Iterable

import numpy as np

from umbel.grammar.automaton import ByteDfa
from umbel.grammar.pushdown.leaves import (
    NO_TAG,
    BoundedLeaf,
    CountedLeaf,
    DfaLeaf,
    Leaf,
    LexerLeaf,
    LiteralLeaf,
    OverrideLeaf,
    SelectedLeaf,
)
from umbel.grammar.pushdown.rules import RuleState, Sequence


def live_bytes(dfa: ByteDfa, state: int) -> int:
    """The bytes that lead on from a state."""
    alive = dfa.table[state, dfa.byte_class] != dfa.dead
    return int.from_bytes(np.packbits(alive, bitorder="little").tobytes(), "little")


def first_bytes(state: RuleState) -> int:
    """The bytes that texts of a state begin with."""
    first = 0
    seen: set[RuleState] = set()
    pending: list[Sequence] = [(state,)]
    while pending:
        sequence = pending.pop()
        if not sequence or sequence[0] in seen:
            continue
        seen.add(sequence[0])
        expansion = sequence[0].expand()
        for head in expansion.heads:
            first |= _first_of_leaf(head.leaf)
        pending += expansion.calls
        if () in expansion.calls:
            pending.append(sequence[1:])
    return first


def _first_of_leaf(leaf: Leaf) -> int:
    match leaf:
        case DfaLeaf():
            return live_bytes(leaf.dfa, 0)
        case OverrideLeaf():
            return _first_of_leaf(leaf.base) | _first_of_literals(leaf.literals)
        case CountedLeaf() | BoundedLeaf():
            return _first_of_leaf(leaf.base)
        case LiteralLeaf():
            return _first_of_literals(leaf.literals)
        case SelectedLeaf():
            return _first_of_leaf(leaf.plain())
        case LexerLeaf():
            first = 0
            for member in leaf.leaves:
                first |= _first_of_leaf(member)
            return first
        case _:
            return 0


def _first_of_literals(literals: Iterable[tuple[bytes, int]]) -> int:
    first = 0
    for text, tag in literals:
        if tag != NO_TAG:
            first |= 1 << text[0]
    return first
