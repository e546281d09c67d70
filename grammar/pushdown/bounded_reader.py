"""Reading a leaf that a limited number of tokens may write: the number left is kept beside the
automaton's state, and only a token's end changes it.

So a state is (automaton state, tokens left), the present token included: inside a token all is as
without a limit. A token may end inside the leaf only where the tokens left still complete it.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.interrupt import check_interrupt
from umbel.grammar.pushdown.dfa_reader import DfaReader
from umbel.grammar.pushdown.reading import (
    DEAD,
    EMPTY_READING,
    Reading,
    reading_of,
    run_bytes,
)
from umbel.grammar.pushdown.residual import Residual
from umbel.grammar.pushdown.rules import UNREACHABLE

if TYPE_CHECKING:
    from umbel.grammar.pushdown.leaves import BoundedLeaf
    from umbel.grammar.vocabulary import Vocabulary

_TAG = 0  # the only one
_MAX_KEPT = 10_000


class BoundedReader:
    """See `reading.Reader`."""

    greedy = False
    has_gaps = True

    def __init__(self, leaf: "BoundedLeaf", base: DfaReader, vocabulary: "Vocabulary") -> None:
        self._base = base
        self._vocabulary = vocabulary
        self._size = leaf.base.dfa.num_states
        # [S] the fewest tokens from each state to the end of a text, UNREACHABLE if there are none
        self._costs = fewest_tokens(base, self._size, vocabulary)
        self._cost_of = np.array(self._costs, np.int64)
        self._bound = max((cost for cost in self._costs if cost < UNREACHABLE), default=0)
        self.start = base.start + leaf.max_tokens * self._size
        self._memo: dict[tuple[int, Residual], Reading] = {}

    def after_token(self, state: int) -> int:
        """The state when a token has ended: one token less is left."""
        return state - self._size

    def is_live(self, state: int) -> bool:
        left, own = divmod(state, self._size)
        return self._costs[own] < left

    def tag(self, state: int) -> int:
        return self._base.tag(state % self._size)

    def step(self, state: int, value: int) -> int:
        left, own = divmod(state, self._size)
        target = self._base.step(own, value) if left else DEAD
        return DEAD if target == DEAD else target + left * self._size

    def run(self, state: int, text: bytes) -> tuple[int, int]:
        return run_bytes(self, state, text)

    def next_bytes(self, state: int) -> Iterable[int]:
        return self._base.next_bytes(state % self._size) if state >= self._size else ()

    def is_final(self, state: int) -> bool:
        return not self.next_bytes(state)

    def cost(self, state: int, tag: int) -> int:
        left, own = divmod(state, self._size)
        return self._costs[own] if self._costs[own] <= left else UNREACHABLE

    def bound(self, state: int, tag: int) -> int:
        return self._bound

    def tags_from(self, state: int) -> Collection[int]:
        return (_TAG,)

    def read(self, state: int, residual: Residual) -> Reading:
        left, own = divmod(state, self._size)
        if not left:
            # A leaf that may write no more is no thread, unless it may end: see `Configs`.
            return EMPTY_READING
        if self._bound < left:
            return self._base.read(own, residual)
        key = (state, residual)
        found = self._memo.get(key)
        if found is None:
            if len(self._memo) >= _MAX_KEPT:
                self._memo.clear()
            ids, _ = self.ends(state, residual)
            exits = self._base.read(own, residual).exits
            found = self._memo[key] = reading_of(self._vocabulary, ids, exits)
        return found

    def ends(
        self, state: int, residual: Residual
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        left, own = divmod(state, self._size)
        ids, ends = self._base.ends(own, residual)
        is_near = self._cost_of[ends] < left
        return ids[is_near], ends[is_near] + (left - 1) * self._size


def fewest_tokens(base: DfaReader, num_states: int, vocabulary: "Vocabulary") -> list[int]:
    """For each state the fewest tokens of which the last one ends where a text may end.

    `DfaReader.cost` is an upper bound, exact up to 1. What is farther is found out from where all
    tokens lead: milliseconds for each state, so the front end bounds their number.
    """
    costs = [base.cost(state, _TAG) for state in range(num_states)]
    root = vocabulary.readings.root
    farther: dict[int, list[int]] = {}
    for state, cost in enumerate(costs):
        if cost > 1:
            check_interrupt()
            _, ends = base.ends(state, root)
            farther[state] = np.unique(ends).tolist()
            costs[state] = UNREACHABLE
    is_settled = not farther
    while not is_settled:
        is_settled = True
        for state, targets in reversed(farther.items()):  # ends mostly lie behind
            cost = 1 + min((costs[target] for target in targets), default=UNREACHABLE)
            if cost < costs[state]:
                costs[state] = cost
                is_settled = False
    return costs
