"""Decides what every step computes, and what follows from its result.

Called by the engine between steps; plain data only: no tensors, no clock, no I/O, so that a
simulated runner can drive it. Requests are admitted by arrival and by what they share with the
cache (see `waiting`). Order is by arrival everywhere else: when blocks run out the youngest gives
its own up, computes again later, and so the oldest always gets on. What is pinned goes before that.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

from umbel.radix_cache.plan import CutCost
from umbel.radix_cache.tree import RadixCache
from umbel.runtime.config import EngineConfig
from umbel.runtime.constraints import failure_while_running
from umbel.runtime.errors import EngineError, InvalidRequest, RequestCancelled, UmbelError
from umbel.runtime.outputs import TokenLogprob
from umbel.runtime.request import Request, Update
from umbel.runtime.speculation.draft import Draft
from umbel.runtime.speculation.drafter import Drafter
from umbel.runtime.step import Sample, StepPlan
from umbel.runtime.step_builder import Placement, StepBuilder
from umbel.runtime.waiting import WaitingQueue

if TYPE_CHECKING:
    from umbel.runtime.sampler import Sampled  # imports torch, which scheduling does not need


_NONE: Mapping[int, Draft] = {}


@dataclass(slots=True)
class SchedulerCounts:
    """What happened since the start, in tokens unless the name says otherwise."""

    num_steps: int = 0
    num_computed: int = 0  # rows fed to the model
    num_reused: int = 0  # taken from the cache, or from another request of the same step
    num_sampled: int = 0
    num_forced: int = 0
    num_drafted: int = 0  # guessed and fed
    num_confirmed: int = 0  # of these, so many came true
    num_requests: int = 0  # finished, failed and cancelled ones included
    num_preemptions: int = 0


class Scheduler:
    """Waiting and running requests over one radix cache.

    `cut_cost`: what the attention plan pays for reading a stretch apart. `chunk_beside`: how many
    rows of prompts may stand beside so many decoding rows, at least one; None: as many as fit.
    `drafter`: guesses ahead; None: nobody does.
    """

    def __init__(
        self,
        cache: RadixCache,
        config: EngineConfig,
        eos_ids: Collection[int],
        *,
        cut_cost: CutCost | None = None,
        chunk_beside: Callable[[int], int] | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self.counts = SchedulerCounts()
        self._cache = cache
        self._num_blocks = cache.stats().num_blocks
        self._config = config
        self._eos_ids = frozenset(eos_ids)
        self._cut_cost = cut_cost
        self._chunk_beside = chunk_beside
        self._drafter = drafter
        self._waiting = WaitingQueue(self._num_matched)
        self._running: list[Request] = []  # by arrival, oldest first
        self._requests: dict[int, Request] = {}  # both of them, by id

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def add(self, request: Request) -> list[Update]:
        """Take a request into the queue; the updates tell what its constraint forces from the
        start.

        Raises `InvalidRequest` if it could never fit into the pool.
        """
        check_fits(request, self._num_blocks, self._config.block_size)
        request.arrival = self.counts.num_requests
        self.counts.num_requests += 1
        self._requests[request.request_id] = request
        self._waiting.add(request)
        try:
            request.accept_forced(self._eos_ids)
        except Exception as exc:
            return [self._fail(request, _as_error(exc, request))]
        self.counts.num_forced += request.num_forced
        return self._report(request)

    def abort(self, request_id: int) -> list[Update]:
        """Forget a request and free what it holds; nothing happens if it is gone already."""
        request = self._requests.get(request_id)
        if request is None:
            return []
        return [self._fail(request, RequestCancelled(f"request {request_id} was cancelled"))]

    def plan(self) -> StepPlan | None:
        """The next step; None when there is nothing to do. Commit or fail each plan."""
        builder = self._new_builder()
        self._place_running(builder)
        self._admit(builder)
        plan = builder.build()
        if plan is None and (self._running or self._waiting):
            # The cache lets a path that fits the pool have it; nothing can be planned without that.
            raise EngineError(
                f"none of {self.num_running} running and {self.num_waiting} waiting requests can "
                f"go on: {self._cache.stats()}"
            )
        return plan

    def commit(
        self, plan: StepPlan, sampled: "Sequence[Sampled]", scored: Sequence[TokenLogprob]
    ) -> list[Update]:
        """Take the results of a step: `sampled` for `plan.samples`, `scored` for `plan.scored`."""
        self.counts.num_steps += 1
        self.counts.num_computed += plan.num_tokens
        self.counts.num_reused += plan.num_reused
        errors: dict[Request, UmbelError] = {}
        for wanted, logprob in zip(plan.scored, scored, strict=True):
            if isnan(logprob.logprob):
                errors.setdefault(wanted.request, _no_score(logprob.token_id))
            else:
                wanted.request.add_score(logprob)
        for sample, choice in zip(plan.samples, sampled, strict=True):
            error = self._accept(sample, choice)
            if error is not None:
                errors.setdefault(sample.request, error)
        for draft in plan.drafts:
            self._settle(draft)
        self._cache.commit_step()
        updates = [self._fail(request, error) for request, error in errors.items()]
        num_rows = plan.num_tokens
        for request in plan.requests:
            if request.request_id in self._requests:
                request.count_step(num_rows)
                updates += self._report(request)
        return updates

    def fail_step(self, plan: StepPlan, error: UmbelError) -> list[Update]:
        """The step raised: end its requests with `error`, and forget what it was to compute."""
        self._cache.discard_step()  # the leases of all others move back to what is computed
        return [
            self._fail(request, _own(error))
            for request in plan.requests
            if request.request_id in self._requests
        ]

    def fail_all(self, error: UmbelError) -> list[Update]:
        """End every request with `error`; also the way out when `plan` or `commit` raised."""
        self._cache.discard_step()
        return [self._fail(request, _own(error)) for request in list(self._requests.values())]

    def _new_builder(self) -> StepBuilder:
        config = self._config
        return StepBuilder(
            config.max_step_tokens,
            jump_forward=config.jump_forward,
            share_attention=config.share_attention,
            cut_cost=self._cut_cost,
        )

    def _place_running(self, builder: StepBuilder) -> None:
        """Decoding requests first, so that a long prompt never holds up the streams of others."""
        decoding = [request for request in self._running if request.is_caught_up]
        prefilling = [request for request in self._running if not request.is_caught_up]
        drafts: Mapping[int, Draft] = _NONE
        if self._drafter is not None and decoding:
            drafts = self._drafter.drafts(decoding, builder.budget - len(decoding))
        self._place_all(builder, decoding, drafts)
        if builder.num_rows and self._chunk_beside is not None:
            builder.budget = min(builder.budget, self._chunk_beside(builder.num_rows))
        self._place_all(builder, prefilling)

    def _place_all(
        self, builder: StepBuilder, requests: list[Request], drafts: Mapping[int, Draft] = _NONE
    ) -> None:
        for request in requests:
            if request.lease is not None:  # else it was preempted a moment ago
                self._place(builder, request, drafts.get(request.request_id))

    def _place(self, builder: StepBuilder, request: Request, draft: Draft | None = None) -> None:
        while builder.place(request, draft) is Placement.NO_BLOCKS:
            if self._cache.drop_pin():
                continue
            victim = next(self._victims(builder, request), None)
            if victim is None:
                return  # younger ones are in the step already: they end, or give way in the next
            self._preempt(victim)

    def _victims(self, builder: StepBuilder, request: Request) -> Iterator[Request]:
        """Running requests younger than `request`, and not in this step; youngest first."""
        for other in reversed(self._running):
            if other.arrival <= request.arrival:
                return
            if other not in builder:
                yield other

    def _admit(self, builder: StepBuilder) -> None:
        if not self._waiting or len(self._running) >= self._config.max_running:
            return
        num_reserved = sum(self._num_missing_blocks(request) for request in self._running)
        self._waiting.begin_step()
        last_group = None
        while self._waiting and len(self._running) < self._config.max_running:
            request = self._waiting.choose()
            if builder.budget == 0 and request.group_id != last_group:
                return  # siblings of the last one may still share its rows
            request.lease = self._cache.lease(request.namespace)
            num_reused = request.lease.advance(request.tokens, 0, request.target)
            num_missing = self._num_missing_blocks(request)
            if self._running and not self._make_available(num_reserved + num_missing):
                request.lease.release()
                request.lease = None
                return
            num_reserved += num_missing
            self._start(request)
            builder.count_reused(request, 0, num_reused)
            self._place(builder, request)
            last_group = request.group_id

    def _num_matched(self, request: Request) -> int:
        return self._cache.num_matched(request.tokens, request.namespace)

    def _num_missing_blocks(self, request: Request) -> int:
        """Blocks that a request will ask for soon: those of its known tokens, and one to go on."""
        assert request.lease is not None
        size = self._config.block_size
        return -(-request.target // size) - -(-request.lease.num_tokens // size) + 1

    def _make_available(self, num_blocks: int) -> bool:
        """Whether so many blocks are free or can be evicted; pins go if they are not."""
        while self._cache.num_free_blocks + self._cache.num_cached_blocks < num_blocks:
            if not self._cache.drop_pin():
                return False
        return True

    def _start(self, request: Request) -> None:
        self._waiting.admit(request)
        insort(self._running, request, key=_arrival)

    def _preempt(self, request: Request) -> None:
        assert request.lease is not None
        request.lease.release()
        request.lease = None
        request.is_caught_up = False
        request.num_preemptions += 1
        self.counts.num_preemptions += 1
        _remove(self._running, request)
        self._waiting.add(request)

    def _accept(self, sample: Sample, choice: "Sampled") -> UmbelError | None:
        """Take a choice, unless the guesses that it was made after did not come true."""
        request, draft = sample.request, sample.draft
        if draft is not None and not draft.leads_to(sample.offset):
            return None
        if choice.error is not None:
            if draft is not None:
                draft.close()
            return choice.error
        num_forced = request.num_forced
        try:
            request.accept_sampled(choice.token_id, choice.logprob, self._eos_ids)
        except Exception as exc:  # a fault of one constraint must not touch the others
            if draft is not None:
                draft.close()
            return _as_error(exc, request)
        if draft is not None:
            draft.confirm()
        self.counts.num_sampled += 1
        self.counts.num_forced += request.num_forced - num_forced
        request.is_caught_up = True
        return None

    def _settle(self, draft: Draft) -> None:
        """Before `commit_step`: what was computed for wrong guesses is forgotten with the step."""
        assert self._drafter is not None
        lease = draft.request.lease
        assert lease is not None
        lease.truncate(min(lease.num_tokens, draft.num_before + draft.num_confirmed))
        draft.request.num_drafted += len(draft.tokens)
        self.counts.num_drafted += len(draft.tokens)
        self.counts.num_confirmed += draft.num_confirmed
        self._drafter.settle(draft)

    def _report(self, request: Request) -> list[Update]:
        update = request.take_update()
        if request.is_done:
            self._forget(request)
        return [] if update is None else [update]

    def _fail(self, request: Request, error: UmbelError) -> Update:
        self._forget(request)
        update = request.take_update(error)
        assert update is not None
        return update

    def _forget(self, request: Request) -> None:
        del self._requests[request.request_id]
        if request.lease is None:
            self._waiting.remove(request)
        else:
            request.lease.release()
            request.lease = None
            _remove(self._running, request)


def num_blocks_needed(request: Request, block_size: int) -> int:
    """Blocks of a request at its longest; the KV of its last token is never needed."""
    num_positions = (
        request.score_end if request.is_score else request.num_prompt + request.max_output - 1
    )
    return -(-num_positions // block_size)


def check_fits(request: Request, num_blocks: int, block_size: int) -> None:
    """Raise `InvalidRequest` if the request could not run even with the whole pool for itself."""
    num_needed = num_blocks_needed(request, block_size)
    if num_needed > num_blocks:
        raise InvalidRequest(
            f"the request needs {num_needed} KV blocks of {block_size} tokens "
            f"({request.num_prompt} prompt tokens, max_tokens={request.max_output}), but the pool "
            f"has {num_blocks}; shorten the prompt, lower max_tokens, or give the engine more "
            "kv_cache_bytes"
        )


def _arrival(request: Request) -> int:
    return request.arrival


def _remove(requests: list[Request], request: Request) -> None:
    index = bisect_left(requests, request.arrival, key=_arrival)
    assert requests[index] is request, "the queues are ordered by arrival"
    del requests[index]


def _no_score(token_id: int) -> EngineError:
    return EngineError(
        f"the log-probability of token {token_id} is nan: the model or its weights are at fault"
    )


def _own(error: UmbelError) -> UmbelError:
    """A copy for one request: an object raised in several threads would mix their traces."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def _as_error(exc: Exception, request: Request) -> UmbelError:
    return failure_while_running(exc, request.params, request.request_id)
