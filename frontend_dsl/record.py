"""What is known of one finished call: read by `s.meta(name)` and the report."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from umbel.frontend_dsl.errors import ProgramError, Site
from umbel.runtime.outputs import CapturedText, FinishReason, Timing, TokenLogprob, Usage

_USAGE_FIELDS = [one.name for one in fields(Usage)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One `gen` or `select`, done or failed (`error`).

    `usage` of a `select` is the sum over its choices; their own tokens are `num_scored_tokens`.
    `method`, `scores` and `distribution` are those of a `select`: by choice, as `scoring` defines
    them. `captures` has the parts of `text` that a Lark grammar names (`rule[capture]`), by name.
    """

    kind: str  # "gen" or "select"
    name: str | None
    branch: str
    site: Site
    text: str | None = None  # None: failed
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    usage: Usage = field(default_factory=Usage)
    num_scored_tokens: int = 0
    timing: Timing = field(default_factory=Timing)
    method: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    distribution: Mapping[str, float] = field(default_factory=dict)
    captures: Mapping[str, tuple[CapturedText, ...]] = field(default_factory=dict)
    error: ProgramError | None = None
    retries: tuple[str, ...] = ()  # why it was sent again, each time

    @property
    def num_computed_tokens(self) -> int:
        """Prompt and scored tokens that had to be computed because no cache had them."""
        usage = self.usage
        return usage.num_prompt_tokens - usage.num_cached_tokens + self.num_scored_tokens


def sum_usage(usages: Iterable[Usage]) -> Usage:
    total = dict.fromkeys(_USAGE_FIELDS, 0)
    for usage in usages:
        for name in _USAGE_FIELDS:
            total[name] += getattr(usage, name)
    return Usage(**total)
