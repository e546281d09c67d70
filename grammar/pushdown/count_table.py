"""How many items can still follow in an automaton, and at what cost: for all counts at once, by
their period.

D[r][q] is the fewest tokens from state q to a text's end that start exactly r more items. D[r]
depends on D[r - 1] alone, and adding a number to all of D[r - 1] adds it to D[r]; so once a row is
an earlier one plus a number, the rows repeat for ever, and counts of any size are looked up (the
min-plus form of an ultimately periodic sequence).
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa
from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.rules import UNREACHABLE

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_FAR = 2**40
_MAX_ROWS = 4_096  # without a period until then: an automaton that needs a product instead


class CountTable:
    """counts: [S + 1, C] bool, the steps that start an item; goal: [S + 1] bool, where a text may
    end.

    Steps are single bytes that are tokens, so a cost is an upper bound.
    """

    def __init__(
        self,
        dfa: ByteDfa,
        counts: npt.NDArray[np.bool_],
        goal: npt.NDArray[np.bool_],
        vocabulary: "Vocabulary",
    ) -> None:
        columns = np.unique(dfa.byte_class[vocabulary.has_byte])
        self._targets = dfa.table[:, columns]
        self._counts = counts[:, columns]
        self._rows = [self._closed(np.where(goal, 0, _FAR).astype(np.int64))]
        self._seen: dict[bytes, int] = {self._shape(self._rows[0]): 0}
        self.preperiod = 0
        self.period = 0  # unknown yet
        self._growth = 0
        self._firsts: dict[tuple[int, int], int] = {}
        while self.period == 0:
            self._extend()

    def _closed(self, row: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """With the steps that start no item added in front of any way."""
        while True:
            steps = np.where(self._counts, _FAR, row[self._targets])
            shorter = np.minimum(row, steps.min(axis=1, initial=_FAR) + 1)
            shorter[shorter >= _FAR] = _FAR
            if np.array_equal(shorter, row):
                return row
            row = shorter

    def _shape(self, row: npt.NDArray[np.int64]) -> bytes:
        """Equal for rows that differ by the same number everywhere."""
        return np.where(row >= _FAR, -1, row - row.min()).tobytes()

    def _extend(self) -> None:
        if len(self._rows) > _MAX_ROWS:
            raise UnsupportedGrammar(
                f"counting the items of a pattern with {len(self._targets)} states does not "
                f"settle within {_MAX_ROWS} items",
                keyword="pattern",
            )
        steps = np.where(self._counts, self._rows[-1][self._targets], _FAR)
        row = self._closed(np.minimum(steps.min(axis=1, initial=_FAR) + 1, _FAR))
        before = self._seen.setdefault(self._shape(row), len(self._rows))
        if before < len(self._rows):
            self.preperiod, self.period = before, len(self._rows) - before
            self._growth = int(row.min() - self._rows[before].min()) if row.min() < _FAR else 0
        else:
            self._rows.append(row)

    def _folded(self, count: int) -> int:
        """A count within the kept rows whose row has the same shape."""
        if count < self.preperiod:
            return count
        return self.preperiod + (count - self.preperiod) % self.period

    def first(self, state: int, least: int) -> int:
        """The smallest number of items >= `least` that can still follow; UNREACHABLE if there is
        none.
        """
        least = max(least, 0)
        at = self._folded(least)
        key = (state, at)
        found = self._firsts.get(key)
        if found is None:
            found = UNREACHABLE
            for count in range(at, max(at, self.preperiod) + self.period):
                if self._rows[self._folded(count)][state] < _FAR:
                    found = count
                    break
            self._firsts[key] = found
        return found if found >= UNREACHABLE else found + least - at

    def bound(self, need: int) -> int:
        """No `cost` with at most so many items needed is higher, as far as it is finite."""
        highest = max(int(row[row < _FAR].max(initial=0)) for row in self._rows)
        return highest + (max(need, 0) // self.period + 1) * self._growth

    def cost(self, state: int, need: int, room: int) -> int:
        """The fewest tokens with between `need` and `room` items more; only the lowest counts are
        tried.
        """
        need = max(need, 0)
        best = UNREACHABLE
        first = self.first(state, need)
        for count in range(first, min(room, first + self.period) + 1):
            at = self._folded(count)
            value = int(self._rows[at][state])
            if value < _FAR:
                best = min(best, value + (count - at) // self.period * self._growth)
        return best
