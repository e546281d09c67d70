"""Puts requests into one step: which tokens each feeds, and which row of logits each reads.

Used by the scheduler, one builder a step. The one idea: a row is known by the slot that its
position has in the pool. A slot holds one token of one path of the tree, so requests that want the
logits of the same tree position find the same slot, and share the row.
"""

from collections.abc import Iterator
from enum import Enum, auto

from umbel.radix_cache.plan import CutCost, RunSpan, plan_attention
from umbel.radix_cache.tree import AppendOutcome, Lease, TokenKind
from umbel.runtime.request import Request
from umbel.runtime.speculation.draft import Draft
from umbel.runtime.step import Run, Sample, Scored, StepPlan


class Placement(Enum):
    PLACED = auto()  # the request gets on in this step
    WAITS = auto()  # nothing to do for it before the next step
    NO_BLOCKS = auto()  # it needs more blocks than are free; its lease is as before


class StepBuilder:
    """Collects runs until the token budget is spent; `build` turns them into a `StepPlan`."""

    def __init__(
        self,
        max_step_tokens: int,
        *,
        jump_forward: bool,
        share_attention: bool,
        cut_cost: CutCost | None = None,
    ) -> None:
        self.budget = max_step_tokens  # token rows left
        self.num_rows = 0  # in the step so far
        self._cut_cost = cut_cost
        self._jump_forward = jump_forward
        self._share_attention = share_attention
        self._plan = StepPlan()
        self._rows: dict[
            int, tuple[Run, int]
        ] = {}  # slot -> run and position of the row that feeds it
        self._wanted: list[tuple[Request, Run, int]] = []
        self._drafts: dict[int, Draft] = {}  # those that are fed, by request id
        self._placed: set[int] = set()  # request ids

    def __contains__(self, request: Request) -> bool:
        return request.request_id in self._placed

    def count_reused(self, request: Request, start: int, num_tokens: int) -> None:
        """Account for tokens `start ..` of a request that needed no computing."""
        self._plan.num_reused += num_tokens
        stop = start + num_tokens
        new_start = max(start, request.num_seen)  # what came before a preemption was counted then
        request.num_cached += max(0, min(stop, request.num_prompt) - new_start)
        request.num_seen = max(request.num_seen, stop)

    def place(self, request: Request, draft: Draft | None = None) -> Placement:
        """Give the request as many rows as it needs and the budget allows; with a draft as many
        more, unless its own take all there is.
        """
        self._reuse(request)
        lease, target = _lease(request), request.target
        if draft is not None:
            draft = self._fitting(draft, lease)
        end = lease.num_tokens
        start, shared = self._share_rows(request, lease, end, draft)
        stop = min(target, start + self.budget, self._longest_stop(request, end))
        outcome = AppendOutcome.OK
        if stop > end:
            outcome, stop = self._append(request, lease, end, stop)
        if draft is not None:
            stop = self._append_draft(draft, lease, target) if stop == target else stop
        if stop <= start and not shared:
            return Placement.NO_BLOCKS if outcome is AppendOutcome.NO_BLOCKS else Placement.WAITS
        self._wanted += shared
        self._register(request)
        if stop > start:
            tokens = request.tokens[start:stop]
            if draft is not None and stop > target:
                tokens += draft.tokens[max(0, start - target) : stop - target]
            self._add_run(request, Run(lease, tokens, start, end, []))
        return Placement.PLACED

    def build(self) -> StepPlan | None:
        """The plan of the step; None if no request was placed."""
        plan = self._plan
        if not plan.requests:
            return None
        numbers = _number_rows(plan.runs, self._wanted)
        for request, run, position in self._wanted:
            row = numbers[id(run), position]
            if position >= request.target:
                offset = position - request.target + 1
                plan.samples.append(Sample(request, row, offset, self._draft_of(request)))
            elif position < request.score_end:
                plan.scored.append(
                    Scored(request, row, request.tokens[position + 1], request.num_top(position))
                )
            else:
                plan.samples.append(Sample(request, row, draft=self._draft_of(request)))
        if plan.runs:
            spans = [RunSpan(run.lease, run.start, len(run.tokens)) for run in plan.runs]
            plan.attention = plan_attention(spans, share=self._share_attention, cost=self._cut_cost)
        return plan

    def _reuse(self, request: Request) -> None:
        """Walk the lease over all that is computed already, or is about to be in this step."""
        lease = _lease(request)
        before, target = lease.num_tokens, request.target
        if before >= target:
            return
        self.count_reused(request, before, lease.advance(request.tokens, before, target))

    def _fitting(self, draft: Draft, lease: Lease) -> Draft | None:
        """The draft as far as the budget allows it, once its request can be caught up in this step;
        the lease walks over what the tree has of it.
        """
        request = draft.request
        end, target = lease.num_tokens, request.target
        num_own = max(1, target - end)
        if self._longest_stop(request, end) < target or self.budget <= num_own:
            return None
        draft.cut(self.budget - num_own)
        if end == target:
            lease.advance(draft.tokens, 0, len(draft.tokens))
        return draft

    def _append_draft(self, draft: Draft, lease: Lease, target: int) -> int:
        """Append what the lease lacks of a draft, or leave it out where that takes blocks that
        others hold; where the draft ends now.
        """
        at = lease.num_tokens - target
        if at < len(draft.tokens):
            result = lease.append(draft.tokens, at, len(draft.tokens), kind=TokenKind.OUTPUT)
            if result.outcome is AppendOutcome.OK:
                self._plan.copies += result.copies
            else:
                draft.cut(at)
        if draft.tokens:
            self._drafts[draft.request.request_id] = draft
            self._plan.drafts.append(draft)
        return target + len(draft.tokens)

    def _draft_of(self, request: Request) -> Draft | None:
        return self._drafts.get(request.request_id)

    def _share_rows(
        self, request: Request, lease: Lease, end: int, draft: Draft | None
    ) -> tuple[int, list[tuple[Request, Run, int]]]:
        """Take from other runs the first wanted rows that they have; also the first position to
        feed itself.
        """
        shared: list[tuple[Request, Run, int]] = []
        position = end
        for position in _wanted_positions(request, 0, end, draft):
            row = self._rows.get(lease.slots(position, position + 1)[0])
            if row is None:
                return position, shared
            shared.append((request, *row))
        return end, shared

    def _longest_stop(self, request: Request, end: int) -> int:
        """Without jump-forward, output tokens are fed one at a time."""
        if self._jump_forward or request.is_score:
            return request.target
        return max(request.num_prompt, request.num_seen, end + 1)

    def _append(
        self, request: Request, lease: Lease, end: int, stop: int
    ) -> tuple[AppendOutcome, int]:
        """Append tokens `end..stop` to the lease; also where the tokens that found room end."""
        edge = min(
            max(request.num_prompt, end), stop
        )  # prompt and output are evicted in different order
        for piece_start, piece_stop, kind in (
            (end, edge, TokenKind.PROMPT),
            (edge, stop, TokenKind.OUTPUT),
        ):
            if piece_start == piece_stop:
                continue
            result = lease.append(request.tokens, piece_start, piece_stop, kind=kind)
            if result.outcome is not AppendOutcome.OK:
                return result.outcome, piece_start
            self._plan.copies += result.copies
        return AppendOutcome.OK, stop

    def _add_run(self, request: Request, run: Run) -> None:
        stop = run.start + len(run.tokens)
        self._plan.runs.append(run)
        self.budget -= len(run.tokens)
        self.num_rows += len(run.tokens)
        request.num_seen = max(request.num_seen, min(stop, request.target))
        for offset, slot in enumerate(run.lease.slots(run.start, stop)):
            self._rows[slot] = (run, run.start + offset)
        draft = self._draft_of(request)
        for position in _wanted_positions(request, run.start, stop, draft):
            self._wanted.append((request, run, position))

    def _register(self, request: Request) -> None:
        self._placed.add(request.request_id)
        self._plan.requests.append(request)


def _lease(request: Request) -> Lease:
    assert request.lease is not None, "a request without a lease cannot be in a step"
    return request.lease


def _wanted_positions(
    request: Request, start: int, stop: int, draft: Draft | None
) -> Iterator[int]:
    """Positions start .. stop - 1 whose logits are wanted, ascending."""
    position, target = request.next_wanted(start), request.target
    while position < min(stop, target):
        yield position
        position = request.next_wanted(position + 1)
    if draft is not None:
        for offset in draft.offsets():
            if start <= target - 1 + offset < stop:
                yield target - 1 + offset


def _number_rows(
    runs: list[Run], wanted: list[tuple[Request, Run, int]]
) -> dict[tuple[int, int], int]:
    """Fill `logits_positions` of the runs; the number of each wanted row by (id of its run,
    position).
    """
    positions: dict[int, set[int]] = {id(run): set() for run in runs}
    for _, run, position in wanted:
        positions[id(run)].add(position)
    numbers: dict[tuple[int, int], int] = {}
    for run in runs:
        run.logits_positions = sorted(positions[id(run)])
        for position in run.logits_positions:
            numbers[id(run), position] = len(numbers)
    return numbers
