"""The plan of one step: what the scheduler hands to the runner and the sampler. Plain data."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from umbel.radix_cache.plan import AttentionPlan
from umbel.radix_cache.tree import BlockCopy, Lease

if TYPE_CHECKING:
    from umbel.runtime.request import Request, TokenMatcher
    from umbel.runtime.speculation.draft import Draft


@dataclass(slots=True)
class Run:
    """New tokens of one request: rows at positions `start .. start + len(tokens) - 1` of the
    lease's path.

    Rows at positions below `write_from` are query-only: their KV is in the cache and is not written
    again. `logits_positions` are the positions whose logits are wanted, ascending.
    """

    lease: Lease
    tokens: list[int]
    start: int
    write_from: int
    logits_positions: list[int]


@dataclass(slots=True)
class Sample:
    """A request that takes its next token from row `logits_row` of the step's logits.

    With `offset` > 0 it is the token after so many tokens of `draft`: it counts only if all of them
    come true.
    """

    request: "Request"
    logits_row: int
    offset: int = 0
    draft: "Draft | None" = None

    @property
    def matcher(self) -> "TokenMatcher | None":
        """The constraint's state before the token."""
        if self.draft is None or self.offset == 0:
            return self.request.matcher
        return self.draft.matchers[self.offset]


@dataclass(slots=True)
class Scored:
    """A request that wants the log-probability of `token_id`, its token after that row, from row
    `logits_row`.

    The token is one that was given: of the prompt, of a continuation to score, or forced by the
    constraint.
    """

    request: "Request"
    logits_row: int
    token_id: int
    num_top: int  # the most likely alternatives that are wanted with it


@dataclass(slots=True)
class StepPlan:
    """Rows of logits are numbered over `runs` in order, and within a run over `logits_positions` in
    order.
    """

    copies: list[BlockCopy] = field(default_factory=list)  # done before the first write
    runs: list[Run] = field(default_factory=list)
    attention: AttentionPlan | None = None  # None only when there are no runs
    samples: list[Sample] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    requests: list["Request"] = field(
        default_factory=list
    )  # all that a failure of this step would hit
    num_reused: int = 0  # tokens passed over because the cache had them
    drafts: list["Draft"] = field(default_factory=list)  # those whose tokens are fed

    @property
    def num_tokens(self) -> int:
        return sum(len(run.tokens) for run in self.runs)

    @property
    def num_logits_rows(self) -> int:
        return sum(len(run.logits_positions) for run in self.runs)
