"""What comes back: completions, the chunks of a stream, and their accounting. Plain records."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from umbel.runtime.errors import UmbelError


class FinishReason(Enum):
    STOP = "stop"  # end token, stop string, stop id, or a constraint that is complete
    LENGTH = "length"  # max_tokens or the end of the context


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its natural-log probability, and the most likely alternatives."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token_id, logprob), most likely first


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one sequence, by where they came from.

    `num_prompt_tokens = num_cached_tokens + computed prompt tokens`; `num_forced_tokens` of the
    output were given by the constraint and rode along in another token's step; `num_drafted_tokens`
    were guessed and fed ahead, whether they came true or not; `num_preemptions` counts restarts. It
    was in `num_steps` steps, which fed `num_step_rows` rows in all, those of others included.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_forced_tokens: int = 0
    num_drafted_tokens: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    num_step_rows: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds since the request was submitted."""

    queue_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CapturedText:
    """A part of an output that its grammar names: `output.text[start:end]`."""

    text: str
    start: int  # characters
    end: int


# By name, in the order of the text.
Captures = dict[str, tuple[CapturedText, ...]]


def no_captures() -> Captures:
    return {}


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sequence.

    `token_ids` is all that was generated, an end token included; `text_token_ids` are tokens that
    spell exactly `text`
    (a stop string cut off, inside a token if need be): what a branch goes on from.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    text_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None  # the stop string or stop token that ended it
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None  # the first prompt token has none
    usage: Usage
    timing: Timing
    find_captures: Callable[[], Captures] = field(default=no_captures, repr=False, compare=False)

    def captures(self) -> Captures:
        """The parts that the constraint names (`rule[capture]` in Lark); {} if the output is not
        complete. Found out anew each time, off the engine's thread.

        Raises `UnsupportedConstraint` if the output can be read in too many ways.
        """
        return self.find_captures()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream. Exactly the last one of each sequence has `completion` or `error`."""

    index: int  # which of the n sequences
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    completion: Completion | None = None
    error: UmbelError | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """All n sequences of one `generate` call; the properties are those of the first."""

    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]

    @property
    def text(self) -> str:
        return self.completions[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.completions[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        return self.completions[0].finish_reason

    @property
    def usage(self) -> Usage:
        return self.completions[0].usage


@dataclass(frozen=True, slots=True)
class Score:
    """Log-probabilities of the tokens of one continuation, in order, given its context (natural
    log).
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    usage: Usage

    @property
    def total(self) -> float:
        return sum(self.logprobs)
