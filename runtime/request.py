"""One sequence on its way through the engine: what was asked, how far it is, and when it ends.

Made by the engine, changed by the scheduler only (and by `accept`, which the scheduler calls). The
one idea: a request is a list of tokens, of which the first `num_prompt` were given; whatever it
still wants from the model is a range of positions whose next-token logits must be scored, then,
unless it ended, one more position to sample from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from umbel.radix_cache.tree import Lease, Namespace
from umbel.runtime.errors import EngineError, UmbelError
from umbel.runtime.outputs import FinishReason, TokenLogprob, Usage
from umbel.runtime.params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from umbel.runtime.speculation.drafter import Lookup


class TokenMatcher(Protocol):
    """The part of `umbel.grammar` matchers that a request uses."""

    @property
    def finished(self) -> bool: ...

    def fill_mask(self, row: "NDArray[np.uint32]", *, budget: int | None = None) -> None: ...

    def advance(self, token_id: int) -> bool: ...

    def forced(self, *, budget: int | None = None) -> Sequence[int]: ...

    def clone(self) -> "TokenMatcher": ...


class TextOutput(Protocol):
    """The part of `OutputText` that a request uses."""

    @property
    def stop_hit(self) -> str | None: ...

    @property
    def text(self) -> str: ...

    def push(self, token_ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...

    def text_token_ids(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended, and the stop string or stop token that ended it."""

    reason: FinishReason
    stop: str | int | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One sequence to generate, or (with `is_score`) to score: then `tokens` holds the continuation
    already.
    """

    # What was asked; set once.
    request_id: int
    group_id: int  # the n sequences of one call have the same
    tokens: list[int]  # prompt, then output; the output is appended by `accept`
    num_prompt: int
    max_output: int  # tokens
    params: SamplingParams
    namespace: Namespace
    index: int = 0  # which of the n sequences
    seed: int = 0
    is_score: bool = False
    matcher: TokenMatcher | None = None
    text: TextOutput | None = None

    # How far it is; set by the scheduler.
    arrival: int = 0  # its age: the lower, the older
    lease: Lease | None = None  # held while running
    is_caught_up: bool = False  # everything but its newest tokens is computed: goes first in a step
    finish: Finish | None = None
    score_next: int = 0  # positions [score_next, score_end) are still to be scored
    score_end: int = 0
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of the output
    num_cached: int = 0  # prompt tokens that others had computed
    num_seen: int = 0  # positions reached so far, before any preemption too
    num_forced: int = 0
    num_drafted: int = 0
    num_preemptions: int = 0
    num_steps: int = 0  # that it was part of
    num_step_rows: int = 0  # of those steps, the rows of others included
    num_emitted: int = 0  # output tokens handed out in updates
    unsent_text: str = ""
    lookup: "Lookup | None" = None  # set by the drafter

    def __post_init__(self) -> None:
        if self.is_score:
            self.score_next, self.score_end = self.num_prompt - 1, len(self.tokens) - 1
        elif self.params.prompt_logprobs is not None:
            self.score_end = self.num_prompt - 1
            self.prompt_logprobs.append(None)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        return self.max_output - self.num_output

    @property
    def wants_token(self) -> bool:
        """Whether a next token is to be sampled (once everything before is computed and scored)."""
        return not self.is_score and self.finish is None

    @property
    def target(self) -> int:
        """Positions that must be computed before the request can go on."""
        return len(self.tokens) if self.wants_token else self.score_end

    @property
    def is_done(self) -> bool:
        return not self.wants_token and self.score_next >= self.score_end

    def next_wanted(self, position: int) -> int:
        """The first position at or after `position` whose logits are wanted; `target` if there is
        none.
        """
        if position < self.score_end and self.score_next < self.score_end:
            return max(position, self.score_next)
        return max(position, self.target - 1) if self.wants_token else self.target

    def num_top(self, position: int) -> int:
        """How many alternatives are wanted along with the score of the token after `position`."""
        is_prompt = position + 1 < self.num_prompt
        return (self.params.prompt_logprobs if is_prompt else self.params.logprobs) or 0

    def may_end(self, offset: int = 0) -> bool:
        """Whether `min_tokens` is reached `offset` tokens from now, so that the next one may be an
        end token.
        """
        return self.num_output + offset >= self.params.min_tokens

    def count_step(self, num_rows: int) -> None:
        """It was part of a step of so many rows."""
        self.num_steps += 1
        self.num_step_rows += num_rows

    def add_score(self, logprob: TokenLogprob) -> None:
        """Take the score of the token after position `score_next`."""
        self.score_next += 1
        if self.score_next < self.num_prompt:
            self.prompt_logprobs.append(logprob)
        else:
            self.logprobs.append(logprob)

    def accept_sampled(
        self, token_id: int, logprob: TokenLogprob | None, eos_ids: frozenset[int]
    ) -> None:
        """Append a sampled token and the tokens that its constraint now forces; sets `finish` at an
        end.
        """
        if logprob is not None and self.params.logprobs is not None:
            self.logprobs.append(logprob)
        self._accept(token_id, eos_ids)
        self.accept_forced(eos_ids)

    def accept_forced(self, eos_ids: frozenset[int]) -> None:
        """Append what the constraint forces from here on; sets `finish` at an end."""
        if self.matcher is None or self.finish is not None:
            return
        if self.matcher.finished:  # a constraint whose only text is empty
            self._end(Finish(FinishReason.STOP))
            return
        for token_id in self.matcher.forced(budget=self.num_left):
            if self.params.logprobs is not None:
                if self.score_next == self.score_end:
                    self.score_next = len(self.tokens) - 1
                self.score_end = len(self.tokens)
            self.num_forced += 1
            self._accept(token_id, eos_ids)
            if self.finish is not None:
                return

    def take_update(self, error: UmbelError | None = None) -> "Update | None":
        """What is new since the last update; None if there is nothing, or if its logprobs are still
        to come.
        """
        is_last = error is not None or self.is_done
        if self.params.logprobs is not None and self.score_next < self.score_end and not is_last:
            return None
        token_ids = self.tokens[self.num_prompt + self.num_emitted :]
        if not (token_ids or self.unsent_text or is_last):
            return None
        logprobs = None
        if self.params.logprobs is not None:
            logprobs = self.logprobs[self.num_emitted :]
        update = Update(self, token_ids, self.unsent_text, logprobs, is_last, error)
        self.num_emitted += len(token_ids)
        self.unsent_text = ""
        return update

    def usage(self) -> Usage:
        return Usage(
            num_prompt_tokens=self.num_prompt,
            num_cached_tokens=self.num_cached,
            num_output_tokens=self.num_output,
            num_forced_tokens=self.num_forced,
            num_drafted_tokens=self.num_drafted,
            num_preemptions=self.num_preemptions,
            num_steps=self.num_steps,
            num_step_rows=self.num_step_rows,
        )

    def _accept(self, token_id: int, eos_ids: frozenset[int]) -> None:
        self.tokens.append(token_id)
        if self.matcher is not None and not self.matcher.advance(token_id):
            raise EngineError(
                f"token {token_id} was chosen, although the constraint of request "
                f"{self.request_id} forbids it"
            )
        is_eos = token_id in eos_ids and (self.matcher is not None or not self.params.ignore_eos)
        if is_eos:
            self._end(Finish(FinishReason.STOP))
        elif token_id in self.params.stop_token_ids:
            self._end(Finish(FinishReason.STOP, token_id))
        else:
            self._push_text(token_id)
        if self.finish is not None:
            return
        if self.matcher is not None and self.matcher.finished:
            self._end(Finish(FinishReason.STOP))
        elif self.num_left <= 0:
            self._end(Finish(FinishReason.LENGTH))

    def _push_text(self, token_id: int) -> None:
        if self.text is None:
            return
        self.unsent_text += self.text.push((token_id,))
        if self.text.stop_hit is not None:
            self._end(Finish(FinishReason.STOP, self.text.stop_hit))

    def _end(self, finish: Finish) -> None:
        self.finish = finish
        if self.text is not None:
            self.unsent_text += self.text.finish()


@dataclass(slots=True)
class Update:
    """News of one request, made by the scheduler. After one with `is_last` there are no more."""

    request: Request
    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprob] | None
    is_last: bool
    error: UmbelError | None
