"""Closing costs of grammar states for one vocabulary: the least solution of the states' own cost
formulas.
"""

import threading
from collections.abc import Callable

from umbel.grammar.pushdown.leaves import Leaf
from umbel.grammar.pushdown.rules import UNREACHABLE, RuleState

_MAX_DEPTH = 100  # states evaluated inside one another; deeper ones wait for the next round


class Costs:
    """Implements `rules.Measure`. leaf_cost(leaf, tag) answers for leaves. Thread-safe."""

    def __init__(self, leaf_cost: Callable[[Leaf, int | None], int]) -> None:
        self._leaf_cost = leaf_cost
        self._known: dict[RuleState, int] = {}
        # States under evaluation, with the best cost found so far: those that call each other start
        # as unreachable and only get cheaper, so repeating until nothing changes gives the least
        # fixed point.
        self._open: dict[RuleState, int] = {}
        self._running: set[RuleState] = set()
        self._is_settled = True
        self._lock = threading.RLock()

    def leaf(self, leaf: Leaf, tag: int | None = None) -> int:
        return self._leaf_cost(leaf, tag)

    def state(self, state: RuleState) -> int:
        known = self._known.get(state)
        if known is not None:
            return known
        with self._lock:
            if not self._running:
                return self._solve(state)
            found = self._open.get(state)
            if found is None:
                found = self._open[state] = UNREACHABLE
                if len(self._running) < _MAX_DEPTH:
                    return self._evaluate(state)
                self._is_settled = False
            elif state in self._running:
                self._is_settled = False
            return found

    def _evaluate(self, state: RuleState) -> int:
        self._running.add(state)
        try:
            cost = min(state.cost(self), self._open[state], UNREACHABLE)
        finally:
            self._running.discard(state)
        self._open[state] = cost
        return cost

    def _solve(self, root: RuleState) -> int:
        self._open = {root: UNREACHABLE}
        self._is_settled = True
        self._evaluate(root)
        while not self._is_settled:
            self._is_settled = True
            before = dict(self._open)
            for state in reversed(before):
                self._evaluate(state)
            self._is_settled = before == self._open
        self._known.update(self._open)
        cost = self._open[root]
        self._open = {}
        return cost
