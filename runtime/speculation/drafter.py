"""Looks up what may come next, and decides how much of it is fed. Called by the scheduler.

A guess costs no model: it is what followed the same context in the radix tree (an earlier answer to
the same prompt), or what followed the same few tokens in the request's own prompt and output
(quoted text, edited code). Guessed tokens ride in the step as further positions of the request's
run; the sampler chooses at each of them as it would have one step later, and what it chose
otherwise is thrown away. So the output is that of plain decoding.

The one idea of the choice: a row more costs its share of the step's time, a token more is worth
the time that a token takes. Chances are counted per request and kind of guess, also of guesses that
were not fed: looking one up and comparing it later costs no row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from umbel.runtime.request import Request
from umbel.runtime.speculation.draft import Draft, make_draft, may_draft
from umbel.runtime.speculation.history import History
from umbel.runtime.speculation.step_curve import (
    LONGEST_DRAFT,
    Ledger,
    StepCurve,
    worth_feeding,
)
from umbel.runtime.step import StepPlan

LONGEST_PAUSE = 8  # tokens between two look-ups where none helps
MARGIN = 1.25  # a guess must be worth this many times its row: host time, and errors of estimates
PRIOR_WEIGHT = 2.0  # tokens that the engine's own experience counts for in a new request
OWN_MEMORY = 32.0  # tokens of a request that its rate remembers
SHARED_MEMORY = 512.0
# Kinds of guesses with the rate that is taken for them at first; numbers: the least length of the
# match. What an engine sees counts from its first tokens on.
FIRST_RATES = {"tree": 0.8, "8": 0.7, "5": 0.6, "3": 0.45, "2": 0.3}
FIRST_WEIGHT = 8.0


class Tally:
    """How often the next token of a guess came true, of late."""

    __slots__ = ("memory", "num_right", "num_tested")

    def __init__(self, memory: float, num_right: float = 0.0, num_tested: float = 0.0) -> None:
        self.memory = memory
        self.num_right = num_right
        self.num_tested = num_tested

    def add(self, num_right: int, num_tested: int) -> None:
        if self.num_tested > self.memory:
            shrink = self.memory / self.num_tested
            self.num_right *= shrink
            self.num_tested *= shrink
        self.num_right += num_right
        self.num_tested += num_tested

    def rate(self, prior: float = 0.0, weight: float = 0.0) -> float:
        """From 0 to 1; with `prior` and `weight`, as if so many tokens had had that rate."""
        return (self.num_right + weight * prior) / (self.num_tested + weight)


@dataclass(slots=True)
class Guess:
    """Tokens that may follow, and where they were found: a key of `FIRST_RATES`."""

    kind: str
    tokens: list[int]


@dataclass(slots=True)
class Lookup:
    """What the drafter remembers of one request."""

    history: History = field(default_factory=History)
    tallies: dict[str, Tally] = field(default_factory=dict)
    pause: int = 1  # tokens until the next look-up
    next_at: int = 0  # length of the request at which that is
    unfed: Guess | None = None  # a guess that was not fed, to be compared with what comes
    unfed_at: int = 0


class Drafter:
    """Makes the drafts of each step; belongs to the scheduler."""

    def __init__(self, curve: StepCurve | None = None) -> None:
        self._curve = curve or StepCurve()
        self._ledger = Ledger()
        self._tallies = {
            kind: Tally(SHARED_MEMORY, rate * FIRST_WEIGHT, FIRST_WEIGHT)
            for kind, rate in FIRST_RATES.items()
        }

    def drafts(self, requests: Sequence[Request], max_rows: int) -> dict[int, Draft]:
        """Drafts for some of `requests`, by request id; at most `max_rows` tokens in all. Each
        request is decoding and has its newest tokens still to be computed.
        """
        max_rows = min(max_rows, self._curve.reach(len(requests)))
        row_cost = MARGIN * self._curve.row_cost(len(requests))
        if max_rows < 1 or row_cost * len(requests) >= 1:  # not even a sure guess is worth a row
            return {}
        if not self._ledger.allows(len(requests)):
            return {}
        found = [
            (request, guess)
            for request in requests
            if may_draft(request) and (guess := self._look_up(request)) is not None
        ]
        if not found:
            return {}
        counts = worth_feeding(
            [self._rate(request, guess.kind) for request, guess in found],
            [min(len(guess.tokens), request.num_left - 1) for request, guess in found],
            len(requests),
            row_cost,
        )
        drafts: dict[int, Draft] = {}
        for (request, guess), count in zip(found, counts, strict=True):
            draft = None
            if count and max_rows:
                draft = make_draft(request, guess.kind, guess.tokens[:count], max_rows)
            if draft is None:
                _keep_unfed(request, guess)
            else:
                drafts[request.request_id] = draft
                max_rows -= len(draft.tokens)
        return drafts

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """The plan was committed, after `seconds`, host time included."""
        self._curve.learn(plan.num_tokens, seconds)
        num_requests = len(plan.requests)
        plain_s = self._curve.step_s(num_requests)
        is_decoding = len({sample.request.request_id for sample in plan.samples}) == num_requests
        if plan.drafts and is_decoding and plain_s is not None:
            num_confirmed = sum(draft.num_confirmed for draft in plan.drafts)
            self._ledger.enter(num_requests, num_requests + num_confirmed, seconds, plain_s)

    def settle(self, draft: Draft) -> None:
        """Learn from a draft whose step is over."""
        self._count(draft.request, draft.kind, draft.num_confirmed, len(draft.tokens))

    def _look_up(self, request: Request) -> Guess | None:
        lookup = request.lookup
        if lookup is None:
            lookup = request.lookup = Lookup()
        if len(request.tokens) < lookup.next_at:
            return None
        self._compare_unfed(request, lookup)
        guess = self._guess(request, lookup)
        if guess is None:
            _pause(request, lookup)
        return guess

    def _guess(self, request: Request, lookup: Lookup) -> Guess | None:
        """The whole context tells more than its last tokens, so the tree comes first, as long as
        it is right more often than not: sampled outputs leave the ways of earlier ones.
        """
        lease = request.lease
        assert lease is not None, "a request that decodes has a lease"
        tokens = lease.continuation(request.tokens, LONGEST_DRAFT)
        of_tree = Guess("tree", tokens) if tokens else None
        if of_tree is not None and self._rate(request, "tree") >= 0.5:
            return of_tree
        lookup.history.take(request.tokens)
        num_matched, tokens = lookup.history.continuation(LONGEST_DRAFT)
        if not tokens:
            return of_tree
        kind = next(kind for kind in ("8", "5", "3", "2") if num_matched >= int(kind))
        return Guess(kind, tokens)

    def _rate(self, request: Request, kind: str) -> float:
        assert request.lookup is not None
        prior, own = self._tallies[kind].rate(), request.lookup.tallies.get(kind)
        return prior if own is None else own.rate(prior, PRIOR_WEIGHT)

    def _compare_unfed(self, request: Request, lookup: Lookup) -> None:
        """Count a guess that was not fed as if it had been."""
        guess, lookup.unfed = lookup.unfed, None
        if guess is None:
            return
        came = request.tokens[lookup.unfed_at :]
        num_compared = min(len(came), len(guess.tokens))
        num_right = 0
        while num_right < num_compared and came[num_right] == guess.tokens[num_right]:
            num_right += 1
        self._count(request, guess.kind, num_right, num_compared)

    def _count(self, request: Request, kind: str, num_right: int, num_guessed: int) -> None:
        lookup = request.lookup
        assert lookup is not None
        num_tested = min(num_right + 1, num_guessed)
        lookup.tallies.setdefault(kind, Tally(OWN_MEMORY)).add(num_right, num_tested)
        self._tallies[kind].add(num_right, num_tested)
        if num_right:
            lookup.pause, lookup.next_at = 1, 0
        else:
            _pause(request, lookup)


def _pause(request: Request, lookup: Lookup) -> None:
    lookup.pause = min(2 * lookup.pause, LONGEST_PAUSE)
    lookup.next_at = len(request.tokens) + lookup.pause


def _keep_unfed(request: Request, guess: Guess) -> None:
    lookup = request.lookup
    assert lookup is not None
    lookup.unfed, lookup.unfed_at = guess, len(request.tokens)
    lookup.next_at = len(request.tokens) + lookup.pause
