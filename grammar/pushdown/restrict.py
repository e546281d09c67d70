"""Leaves without some of their tags, for a vocabulary that cannot spell what follows them."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa
from umbel.grammar.pushdown.leaves import (
    NO_TAG,
    CountedLeaf,
    DfaLeaf,
    Leaf,
    LiteralLeaf,
    OverrideLeaf,
    SelectedLeaf,
    literal_leaf,
)


def without_tags(leaf: Leaf, tags: Collection[int]) -> Leaf | None:
    """The texts of the leaf that end with another tag; None when there is none."""
    match leaf:
        case LiteralLeaf():
            kept = [(text, tag) for text, tag in leaf.literals if tag not in tags]
            return literal_leaf(kept) if kept else None
        case SelectedLeaf():
            return without_tags(leaf.plain(), tags)
        case DfaLeaf():
            return _trimmed(leaf, tags)
        case CountedLeaf():
            counted = _trimmed(leaf.base, tags)
            return None if counted is None else replace(leaf, base=counted)
        case OverrideLeaf():
            kept = [(text, NO_TAG if tag in tags else tag) for text, tag in leaf.literals]
            base = without_tags(leaf.base, tags)
            if base is None:
                named = [(text, tag) for text, tag in kept if tag != NO_TAG]
                return literal_leaf(named) if named else None
            assert isinstance(base, DfaLeaf | CountedLeaf)
            return OverrideLeaf(base, tuple(kept))
        case _:
            return None


def _trimmed(leaf: DfaLeaf, tags: Collection[int]) -> DfaLeaf | None:
    """States keep their numbers; those that reach no tag any more become unreachable."""
    dfa = leaf.dfa
    kept = np.where(np.isin(leaf.tags, list(tags)), NO_TAG, leaf.tags).astype(np.int32)
    alive: npt.NDArray[np.bool_] = kept >= 0
    while True:
        wider = alive | alive[dfa.table].any(axis=1)
        if np.array_equal(wider, alive):
            break
        alive = wider
    if not alive[0]:
        return None
    table = np.where(alive[dfa.table], dfa.table, dfa.dead).astype(np.int32)
    return DfaLeaf(ByteDfa(dfa.byte_class, table, kept >= 0), kept, leaf.greedy)
