"""Constraint: a compiled grammar, immutable and shared. Matcher: the state of one request inside
it, a value.
"""

import numpy as np

from umbel.grammar.forced import ForcedText, forced_text, forced_tokens
from umbel.grammar.machine import MaskRow, TokenMachine

_RECENT_TOKENS = 32  # context in which forced text is tokenized
_MAX_KEPT_FORCED = 10_000


class Constraint:
    """A grammar compiled for one vocabulary. `key` is a content hash, `kind` the front end it came
    from.
    """

    __slots__ = ("_forced", "key", "kind", "machine")

    def __init__(self, kind: str, key: str, machine: TokenMachine) -> None:
        self.kind = kind
        self.key = key
        self.machine = machine
        self._forced: dict[int, ForcedText] = {}

    def start(self) -> "Matcher":
        return Matcher(self, _Link(self.machine.start, None, None, 0))

    def forced_text(self, state: int) -> ForcedText:
        """Kept per state: all matchers of the constraint share it."""
        found = self._forced.get(state)
        if found is None:
            if len(self._forced) >= _MAX_KEPT_FORCED:
                self._forced.clear()
            found = self._forced[state] = forced_text(self.machine, state)
        return found


class _Link:
    """One token of a history: immutable, so shared by clones. `ended`: it was an EOS id."""

    __slots__ = ("before", "ended", "length", "state", "token_id")

    def __init__(
        self,
        state: int,
        before: "_Link | None",
        token_id: int | None,
        length: int,
        *,
        ended: bool = False,
    ) -> None:
        self.state = state
        self.before = before
        self.token_id = token_id
        self.length = length
        self.ended = ended


class Matcher:
    """Where one output stands in its constraint. Cheap to clone: the history is a shared linked
    list.
    """

    __slots__ = ("_at", "_machine", "constraint")

    def __init__(self, constraint: Constraint, at: _Link) -> None:
        self.constraint = constraint
        self._machine = constraint.machine
        self._at = at

    @property
    def num_tokens(self) -> int:
        """Tokens taken so far, EOS included."""
        return self._at.length

    @property
    def accepting(self) -> bool:
        """The text so far is complete."""
        return self._machine.is_accepting(self._at.state)

    @property
    def finished(self) -> bool:
        """EOS was taken, or nothing but EOS can follow."""
        return self._at.ended or self._machine.is_exhausted(self._at.state)

    @property
    def closing_cost(self) -> int:
        """Upper bound on the tokens still needed to be accepting; an output with that limit
        completes.
        """
        return self._machine.closing_cost(self._at.state)

    def fill_mask(self, row: MaskRow, *, budget: int | None = None) -> None:
        """Write the tokens allowed next into row [W] uint32: bit `i % 32` of word `i // 32` is
        token i.

        budget: tokens that may still be generated, this one included. Only tokens are allowed after
        which completion within `budget - 1` tokens is certain. With a budget below `closing_cost`
        that cannot be promised for any token, and the mask is the one without a budget. After EOS
        nothing is allowed.
        """
        if row.shape != (self._machine.vocabulary.num_words,) or row.dtype != np.uint32:
            raise ValueError(
                f"row is {row.dtype} {list(row.shape)}, expected uint32 "
                f"[{self._machine.vocabulary.num_words}]"
            )
        if self._at.ended:
            row.fill(0)
        else:
            row[:] = self._machine.mask(self._at.state, budget)

    def advance(self, token_id: int) -> bool:
        """Take a token. False: it is not allowed here, and the state is unchanged."""
        at = self._at
        if at.ended:
            return False
        if token_id in self._machine.vocabulary.eos_ids:
            if not self._machine.is_accepting(at.state):
                return False
            self._at = _Link(at.state, at, token_id, at.length + 1, ended=True)
            return True
        target = self._machine.move(at.state, token_id)
        if target is None:
            return False
        self._at = _Link(target, at, token_id, at.length + 1)
        return True

    def forced(self, *, budget: int | None = None) -> list[int]:
        """The tokens that must come next, as the tokenizer would have produced them; [] when there
        is a choice.

        Advance accepts them one after the other. budget: as in `fill_mask`; canonical tokens can be
        more than the fewest possible, so only as many are given as leave completion certain.
        """
        at = self._at
        if at.ended or self._machine.vocabulary.encode is None:
            return []
        forced = self.constraint.forced_text(at.state)
        if forced.safe_len == 0:
            return []
        tokens = forced_tokens(forced, self._machine.vocabulary, self._recent_ids())
        return self._sure_prefix(tokens, budget)

    def clone(self) -> "Matcher":
        return Matcher(self.constraint, self._at)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` tokens (EOS counts). Raises ValueError when there are
        fewer.
        """
        if not 0 <= num_tokens <= self._at.length:
            raise ValueError(
                f"rollback({num_tokens}) of a matcher that took {self._at.length} tokens"
            )
        at = self._at
        for _ in range(num_tokens):
            assert at.before is not None
            at = at.before
        self._at = at

    def _recent_ids(self) -> list[int]:
        recent: list[int] = []
        at = self._at
        while at.before is not None and at.token_id is not None and len(recent) < _RECENT_TOKENS:
            recent.append(at.token_id)
            at = at.before
        return recent[::-1]

    def _sure_prefix(self, tokens: list[int], budget: int | None) -> list[int]:
        state = self._at.state
        if budget is not None and budget < self.closing_cost:
            budget = None
        for count, token_id in enumerate(tokens):
            target = self._machine.move(state, token_id)
            over = (
                budget is not None
                and target is not None
                and (self._machine.closing_cost(target) > budget - count - 1)
            )
            if target is None or over:
                return tokens[:count]
            state = target
        return tokens
