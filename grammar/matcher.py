"""Constraint: a compiled grammar, immutable and shared. Matcher: the state of one request inside
it, a value.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from umbel.grammar.forced import ForcedText, forced_text, forced_tokens
from umbel.grammar.machine import TokenMachine
from umbel.grammar.pushdown.configs import Config
from umbel.grammar.pushdown.masks import fill_row
from umbel.grammar.pushdown.reading import MaskRow

if TYPE_CHECKING:
    from umbel.grammar.cfg.captures import Capture, CaptureReader

_RECENT_TOKENS = 32  # context in which forced text is tokenized
_MAX_KEPT_FORCED = 10_000


class Constraint:
    """A grammar compiled for one vocabulary. `key` is a content hash, `kind` the front end it came
    from. `warnings` says what the grammar asks for and the constraint does not enforce.
    """

    __slots__ = ("_forced", "capture_reader", "key", "kind", "machine", "warnings")

    def __init__(self, kind: str, key: str, machine: TokenMachine) -> None:
        self.kind = kind
        self.key = key
        self.machine = machine
        self.warnings: tuple[str, ...] = ()  # set by the front end
        # Set by the front end, of a grammar that names parts of its texts.
        self.capture_reader: CaptureReader | None = None
        self._forced: dict[Config, ForcedText] = {}

    def start(self) -> "Matcher":
        return Matcher(self, self.machine.start)

    def captures(self, token_ids: Sequence[int]) -> "tuple[Capture, ...]":
        """The named parts of a finished output; () if the grammar names none or the text is not
        complete.

        Takes milliseconds, for long and structured texts many: not for the step loop. Raises
        `UnsupportedGrammar` if the text can be read in too many ways.
        """
        return () if self.capture_reader is None else self.capture_reader.captures(token_ids)

    def forced_text(self, state: Config) -> ForcedText:
        """Kept per state: all matchers of the constraint share it."""
        found = self._forced.get(state)
        if found is None:
            if len(self._forced) >= _MAX_KEPT_FORCED:
                self._forced.clear()
            found = self._forced[state] = forced_text(self.machine, state)
        return found


# The tokens taken so far, newest first: (place before the token, token, older ones, number of
# them). Immutable, so clones share it; a plain tuple, because one is made for every token.
_History = tuple[Config, int, "_History | None", int]
_UINT32 = np.dtype(np.uint32)


class Matcher:
    """Where one output stands in its constraint. A value in all but name: a place, and the way to
    it.
    """

    __slots__ = ("_config", "_history", "_machine", "_row_shape", "constraint")

    def __init__(
        self, constraint: Constraint, config: Config, history: _History | None = None
    ) -> None:
        self.constraint = constraint
        self._machine = constraint.machine
        self._row_shape = (self._machine.vocabulary.num_words,)
        self._config = config
        self._history = history

    @property
    def num_tokens(self) -> int:
        """Tokens taken so far, EOS included."""
        return 0 if self._history is None else self._history[3]

    @property
    def accepting(self) -> bool:
        """The text so far is complete."""
        return self._config.can_end

    @property
    def finished(self) -> bool:
        """EOS was taken, or nothing but EOS can follow."""
        return self._machine.is_exhausted(self._config)

    @property
    def closing_cost(self) -> int:
        """Upper bound on the tokens still needed to be accepting; an output with that limit
        completes.
        """
        return self._machine.closing_cost(self._config)

    def fill_mask(self, row: MaskRow, *, budget: int | None = None) -> None:
        """Write the tokens allowed next into row [W] uint32: bit `i % 32` of word `i // 32` is
        token i.

        budget: tokens that may still be generated, this one included. Only tokens are allowed after
        which completion within `budget - 1` tokens is certain. With a budget below `closing_cost`
        that cannot be promised for any token, and the mask is the one without a budget. After EOS
        nothing is allowed.
        """
        if row.shape != self._row_shape or row.dtype != _UINT32:
            raise ValueError(
                f"row is {row.dtype} {list(row.shape)}, expected uint32 {list(self._row_shape)}"
            )
        mask = self._config.mask
        if budget is None and mask is not None:
            fill_row(mask, row)
        else:
            self._machine.fill(self._config, row, budget)

    def advance(self, token_id: int) -> bool:
        """Take a token. False: it is not allowed here, and the state is unchanged."""
        config = self._config
        target = config.moves.get(token_id) or self._machine.move(config, token_id)
        if target is None:
            return False
        history = self._history
        length = 1 if history is None else history[3] + 1
        self._history = (config, token_id, history, length)
        self._config = target
        return True

    def forced(self, *, budget: int | None = None) -> list[int]:
        """The tokens that must come next, as the tokenizer would have produced them; [] when there
        is a choice.

        Advance accepts them one after the other. budget: as in `fill_mask`; canonical tokens can be
        more than the fewest possible, so only as many are given as leave completion certain.
        """
        if self._machine.vocabulary.encode is None:
            return []
        forced = self.constraint.forced_text(self._config)
        if forced.safe_len == 0:
            return []
        tokens = forced_tokens(forced, self._machine.vocabulary, self._recent_ids())
        return self._sure_prefix(tokens, budget)

    def clone(self) -> "Matcher":
        return Matcher(self.constraint, self._config, self._history)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` tokens (EOS counts). Raises ValueError when there are
        fewer.
        """
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(
                f"rollback({num_tokens}) of a matcher that took {self.num_tokens} tokens"
            )
        for _ in range(num_tokens):
            assert self._history is not None
            self._config, _, self._history, _ = self._history

    def _recent_ids(self) -> list[int]:
        recent: list[int] = []
        history = self._history
        while history is not None and len(recent) < _RECENT_TOKENS:
            recent.append(history[1])
            history = history[2]
        return recent[::-1]

    def _sure_prefix(self, tokens: list[int], budget: int | None) -> list[int]:
        config = self._config
        if budget is not None and budget < self.closing_cost:
            budget = None
        for count, token_id in enumerate(tokens):
            target = self._machine.move(config, token_id)
            over = (
                budget is not None
                and target is not None
                and (self._machine.closing_cost(target) > budget - count - 1)
            )
            if target is None or over:
                return tokens[:count]
            config = target
        return tokens
