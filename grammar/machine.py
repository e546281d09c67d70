"""A grammar read through a token vocabulary: masks, moves and closing costs of its places.

The matcher knows a constraint only through the methods of this class; places (`Config`) are opaque
to it. All results are functions of the place alone and are kept there, so the hot path of a mask or
a move is one look-up.
"""

from collections import deque

import numpy as np

from umbel.grammar.pushdown.budgets import budget_row, worst_cost
from umbel.grammar.pushdown.configs import Config, Configs
from umbel.grammar.pushdown.forcing import forced_bytes, next_bytes
from umbel.grammar.pushdown.masks import fill_row, has_any, make_mask
from umbel.grammar.pushdown.reading import MaskRow
from umbel.grammar.pushdown.rules import RuleState
from umbel.grammar.vocabulary import Vocabulary

# Behind EOS: complete, and nothing is allowed.
ENDED = Config((), True)
ENDED.mask = (np.zeros(0, np.int64), np.zeros(0, np.uint32))
ENDED.closing_cost = ENDED.worst_cost = 0

_MAX_ROW_BYTES = (
    4 * 2**20
)  # mask rows kept per constraint, those shared with other constraints included


class TokenMachine:
    """Deterministic moves by tokens from place to place.

    is_careful=False: the caller knows that every text of the grammar has tokens, also if the
    vocabulary lacks some bytes.
    """

    def __init__(self, root: RuleState, vocabulary: Vocabulary, *, is_careful: bool = True) -> None:
        self.root = root
        self.vocabulary = vocabulary
        self._space = vocabulary.readings
        is_careful = is_careful and not self._space.is_complete
        self._configs = Configs(root, self._space, is_careful=is_careful)
        self._dense: deque[Config] = deque()
        self._max_dense = max(16, _MAX_ROW_BYTES // (4 * vocabulary.num_words))

    @property
    def start(self) -> Config:
        return self._configs.start

    def is_accepting(self, config: Config) -> bool:
        return config.can_end

    def is_exhausted(self, config: Config) -> bool:
        """Complete, and no token but EOS can follow."""
        if not config.can_end:
            return False
        return not config.threads or not has_any(config.threads, self._space.root)

    def is_stuck(self, config: Config) -> bool:
        """Neither complete nor to be completed by any tokens."""
        return not config.can_end and not config.threads

    def closing_cost(self, config: Config) -> int:
        return self._configs.closing_cost(config)

    def move(self, config: Config, token_id: int) -> Config | None:
        """The place after a token, or None when it is not allowed. Behind EOS is `ENDED`."""
        if token_id in self.vocabulary.eos_ids and config.can_end and config is not ENDED:
            return ENDED
        return self._configs.after_token(config, token_id)

    def move_byte(self, config: Config, value: int) -> Config | None:
        """The place after one byte, whether there is a token for it or not."""
        return self._configs.after_byte(config, value)

    def next_bytes(self, config: Config) -> set[int]:
        """The bytes that `move_byte` takes."""
        return next_bytes(config)

    @property
    def num_states(self) -> int:
        """The places and stacks made so far."""
        return self._configs.num_states

    def fill(self, config: Config, row: MaskRow, budget: int | None) -> None:
        """Write the tokens allowed next into row [W] uint32, EOS ids exactly when accepting.

        With a budget (tokens that may still be generated, this one included), only tokens after
        which `budget - 1` tokens certainly suffice to complete. If the budget is below the closing
        cost there may be none; then the plain mask is the answer: the text will be cut off, and
        should read well until then.
        """
        if budget is not None:
            worst = config.worst_cost
            if worst is None:
                worst = worst_cost(config, self._space)
            if budget <= worst and budget >= self.closing_cost(config):
                row[:] = budget_row(self._configs, config, self._space, budget - 1)
                return
        mask = config.mask
        if mask is None:
            mask = config.mask = make_mask(self._configs, config, self._space)
            if not isinstance(mask, tuple):
                self._remember(config)
        fill_row(mask, row)

    def _remember(self, config: Config) -> None:
        self._dense.append(config)
        if len(self._dense) > self._max_dense:
            self._dense.popleft().mask = None

    def allows_below(self, config: Config, node: int) -> bool:
        """Whether some token strictly below the trie node is allowed, read from there on."""
        rest = self._space.below(node)
        return rest is not None and has_any(config.threads, rest)

    def forced_bytes(self, config: Config, limit: int) -> tuple[bytes, list[Config]]:
        """The bytes that must come next while there is no choice, and the places around each."""
        return forced_bytes(self._configs, config, limit)
