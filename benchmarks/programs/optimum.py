"""How few tokens the best prefix cache could compute for what a run asked: an offline trie.

A recorder stands between the programs and the engine and keeps, for every request, the tokens that
a model has to be fed to answer it: the prompt and the output before the last sampled token for a
generation (the last token, and what a constraint forces after it, is never fed), the context and
all but the last token of a continuation for a score. Fed one by one without a cache they are the
tokens *needed*. A cache that never evicts and that meets the requests in the best order feeds each
node of the trie over all these sequences once: the *fewest* tokens. Logits are free in this bound:
a real engine feeds the last token of a prompt again when all of it is cached.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from umbel.frontend_dsl import CallHandle, Client
from umbel.runtime.errors import UmbelError
from umbel.runtime.outputs import Chunk, Score
from umbel.runtime.params import SamplingParams


@dataclass(slots=True, eq=False)
class Fed:
    """The tokens of one request; the first `num_fed` of them are fed to a model."""

    tokens: list[int]
    num_fed: int
    is_constrained: bool = False
    num_prompt: int = 0  # of a greedy generation; what follows is its output

    def note(self, chunk: Chunk) -> None:
        """A chunk is what one step gave: guesses that came true, a sampled token, and what is
        forced after it; before the first there may be a chunk that is forced from the start. Which
        tokens of a chunk are forced is not known, so of a constrained one none counts as fed.
        """
        if chunk.token_ids:
            num_new = 0 if self.is_constrained else len(chunk.token_ids) - 1
            self.num_fed = len(self.tokens) + num_new
            self.tokens += chunk.token_ids
        done = chunk.completion
        if done is not None and done.usage.num_forced_tokens == len(done.token_ids):
            self.num_fed = 0  # nothing was sampled, so nothing had to be computed


class Recorder:
    """A client of the language that passes everything on to `client`, and keeps what was asked.
    Without `guesses` it asks the engine not to speculate.
    """

    def __init__(self, client: Client, *, guesses: bool = True) -> None:
        self._client = client
        self._guesses = guesses
        self.requests: list[Fed] = []
        self.encode = client.encode
        self.bos_ids, self.eos_ids = client.bos_ids, client.eos_ids
        self.open_role, self.close_role = client.open_role, client.close_role

    def sequences(self) -> list[tuple[int, ...]]:
        """What was fed, or would have been without a cache, per request."""
        return [tuple(fed.tokens[: fed.num_fed]) for fed in self.requests]

    def hold(self) -> AbstractContextManager[None]:
        return self._client.hold()

    def submit(
        self, token_ids: Sequence[int], params: SamplingParams, listener: Callable[[Chunk], None]
    ) -> CallHandle:
        if not self._guesses:
            params = replace(params, speculate="off")
        tokens, is_constrained = list(token_ids), params.constraint_kind is not None
        fed = Fed(tokens, len(tokens), is_constrained, len(tokens) * (params.temperature == 0))
        self.requests.append(fed)

        def listen(chunk: Chunk) -> None:
            fed.note(chunk)
            listener(chunk)

        return self._client.submit(token_ids, params, listen)

    def submit_score(
        self,
        token_ids: Sequence[int],
        continuation_ids: Sequence[int],
        listener: Callable[[Score | UmbelError], None],
    ) -> CallHandle:
        tokens = [*token_ids, *continuation_ids]
        self.requests.append(Fed(tokens, len(tokens) - 1))
        return self._client.submit_score(token_ids, continuation_ids, listener)

    def pin(self, token_ids: Sequence[int]) -> CallHandle:
        return self._client.pin(token_ids)


@dataclass(frozen=True)
class CacheUse:
    """Tokens of one run: `needed` without a cache, `fewest` with the best one, and `computed`."""

    needed: int
    fewest: int
    computed: int

    @property
    def hit_rate(self) -> float:
        return 1 - self.computed / self.needed

    @property
    def best_hit_rate(self) -> float:
        return 1 - self.fewest / self.needed

    @property
    def share_of_best(self) -> float:
        """The hit rate as a share of the best one; 1 where nothing could be reused."""
        return self.hit_rate / self.best_hit_rate if self.needed > self.fewest else 1.0


def cache_use(sequences: Sequence[Sequence[int]], computed: int) -> CacheUse:
    return CacheUse(sum(map(len, sequences)), fewest_tokens(sequences), computed)


def fewest_tokens(sequences: Iterable[Sequence[int]]) -> int:
    """The nodes of the trie over `sequences`: in sorted order each adds what it does not share with
    the one before.
    """
    total, before = 0, ()
    for tokens in sorted(map(tuple, sequences)):
        total += len(tokens) - num_common(before, tokens)
        before = tokens
    return total


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    for idx, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return idx
    return min(len(left), len(right))
