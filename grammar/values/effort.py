"""How much a compilation has done: over budget or cancelled, it stops with an error that says
so.
"""

from collections.abc import Callable

from umbel.grammar.errors import CompileCancelled, UnsupportedGrammar
from umbel.grammar.interrupt import check_interrupt

_CHECK_EVERY = 256  # units between two looks at the caller's wish to stop


class Effort:
    """Counts elementary steps of one compilation."""

    def __init__(self, budget: int, cancelled: Callable[[], bool] | None = None) -> None:
        self._left = budget
        self._budget = budget
        self._cancelled = cancelled
        self._next_check = budget - _CHECK_EVERY

    def spend(self, units: int = 1) -> None:
        """Raises `UnsupportedGrammar` when the budget is used up and `CompileCancelled` when told
        to stop.
        """
        self._left -= units
        if self._left < self._next_check:
            self._next_check = self._left - _CHECK_EVERY
            check_interrupt()
            if self._cancelled is not None and self._cancelled():
                raise CompileCancelled("compiling the grammar was cancelled or ran out of time")
        if self._left < 0:
            raise UnsupportedGrammar(
                f"the schema takes more than {self._budget} steps to normalize; "
                "use fewer overlapping alternatives and negations",
                keyword="budget",
            )

    def release(self) -> None:
        """The grammar is compiled: what is left to do, state by state, must not fail any more."""
        self._left, self._next_check = 1 << 62, 0
        self._cancelled = None
