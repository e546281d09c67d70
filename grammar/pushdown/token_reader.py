"""Reading a special token: a token without bytes, that stands between the others."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.leaves import NO_TAG, TokenLeaf
from umbel.grammar.pushdown.reading import DEAD, EMPTY_READING, Reading, run_bytes
from umbel.grammar.pushdown.residual import Residual
from umbel.grammar.pushdown.rules import UNREACHABLE

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_BEFORE, _AFTER = 0, 1


class TokenReader:
    """See `reading.Reader`. Read only where a token starts: from any other residual nothing is left
    of it.
    """

    start = _BEFORE
    greedy = False
    has_gaps = False

    def __init__(self, leaf: TokenLeaf, vocabulary: "Vocabulary") -> None:
        self.token_ids = frozenset(i for i in leaf.token_ids if 0 <= i < vocabulary.size)
        self._reading = Reading(None, tuple(sorted(self.token_ids)), ())

    def read(self, state: int, residual: Residual) -> Reading:
        is_at_start = state == _BEFORE and residual is residual.space.root
        return self._reading if is_at_start else EMPTY_READING

    def step(self, state: int, value: int) -> int:
        return DEAD

    def step_token(self, state: int, token_id: int) -> int:
        return _AFTER if state == _BEFORE and token_id in self.token_ids else DEAD

    def run(self, state: int, text: bytes) -> tuple[int, int]:
        return run_bytes(self, state, text)

    def tag(self, state: int) -> int:
        return NO_TAG if state == _BEFORE else 0

    def is_live(self, state: int) -> bool:
        return bool(self.token_ids)

    def next_bytes(self, state: int) -> Iterable[int]:
        return ()

    def is_final(self, state: int) -> bool:
        return state == _AFTER

    def bound(self, state: int, tag: int) -> int:
        return 1

    def tags_from(self, state: int) -> Collection[int]:
        return (0,)

    def cost(self, state: int, tag: int) -> int:
        if state == _AFTER:
            return 0
        return 1 if self.token_ids else UNREACHABLE

    def ends(
        self, state: int, residual: Residual
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        ids = self.read(state, residual).ids
        return np.array(ids, np.int32), np.full(len(ids), _AFTER, np.int64)
