"""A model without arithmetic, which drives the real scheduler and the real radix cache.

The pool is an array of slots. A row writes its token and position into its slot, then reads its
whole context back through the attention plan; the next token is a hash of what it read. So a wrong
copy, a stale block, a shared row of the wrong path, a position covered twice or not at all shows at
once, here or as a wrong output.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from umbel.radix_cache.plan import SlotRange
from umbel.radix_cache.tree import Namespace, RadixCache
from umbel.runtime.config import EngineConfig
from umbel.runtime.outputs import TokenLogprob
from umbel.runtime.params import SamplingParams
from umbel.runtime.request import Request, Update
from umbel.runtime.sampler import Sampled
from umbel.runtime.scheduler import Scheduler
from umbel.runtime.speculation.draft import Draft, make_draft, may_draft
from umbel.runtime.speculation.drafter import Drafter
from umbel.runtime.step import StepPlan

EOS_ID = 0
NAMESPACE = Namespace("simulated")
_ROOT = 17
_MODULUS = (1 << 61) - 1


def extend_state(state: int, token_id: int) -> int:
    return (state * 1_000_003 + token_id * 7_919 + 12_345) % _MODULUS


def state_of(tokens: Sequence[int]) -> int:
    """The hash of a prefix: all that the next token depends on."""
    state = _ROOT
    for token_id in tokens:
        state = extend_state(state, token_id)
    return state


def choose_token(state: int, vocab_size: int, *, end_every: int) -> int:
    """The next token; about one in `end_every` is EOS."""
    if (state >> 7) % end_every == 0:
        return EOS_ID
    return 1 + (state >> 11) % (vocab_size - 1)


def logprob_of(state: int, token_id: int) -> float:
    return -((state ^ (token_id * 2_654_435_761)) % 1_000_000) / 1_000.0


@dataclass(slots=True)
class _Slot:
    token_id: int
    position: int
    state: int | None  # of the prefix up to here; None until the row has read its context


class SimulatedRunner:
    """`execute` returns, for each wanted row of logits, the state of the prefix that ends in that
    row.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.steps: list[StepPlan] = []
        self.before_step: Callable[[StepPlan], None] = lambda plan: None
        self._slots: list[_Slot | None] = [None] * (num_blocks * block_size)

    def execute(self, plan: StepPlan) -> list[int]:
        self.before_step(plan)
        self.steps.append(plan)
        self._copy(plan)
        self._write(plan)
        states = []
        for index, run in enumerate(plan.runs):
            assert run.logits_positions == sorted(set(run.logits_positions))
            context = _context_slots(plan, index)
            wanted = set(run.logits_positions)
            for offset, token_id in enumerate(run.tokens):
                position = run.start + offset
                state = self._read(context, position, token_id)
                if position in wanted:
                    states.append(state)
        assert len(states) == plan.num_logits_rows, "a wanted row lies outside its run"
        return states

    def _copy(self, plan: StepPlan) -> None:
        size = self.block_size
        for copy in plan.copies:
            for offset in range(copy.num_tokens):
                source = self._slots[copy.src * size + offset]
                assert source is not None, f"block {copy.src} is copied before it was written"
                assert source.state is not None
                self._slots[copy.dst * size + offset] = _Slot(
                    source.token_id, source.position, source.state
                )

    def _write(self, plan: StepPlan) -> None:
        written: set[int] = set()
        for run in plan.runs:
            assert run.tokens
            assert run.start <= run.write_from
            stop = run.start + len(run.tokens)
            for position in range(run.write_from, stop):
                (slot,) = run.lease.slots(position, position + 1)
                assert slot not in written, f"slot {slot} is written twice in one step"
                written.add(slot)
                self._slots[slot] = _Slot(run.tokens[position - run.start], position, None)

    def _read(self, context: dict[int, int], position: int, token_id: int) -> int:
        state = _ROOT
        for at in range(position + 1):
            slot = self._slots[context[at]]
            assert slot is not None, f"position {at} reads a slot that was never written"
            assert slot.position == at, f"position {at} reads the KV of position {slot.position}"
            state = extend_state(state, slot.token_id)
            if slot.state is None:
                slot.state = state
            assert slot.state == state, f"position {at} reads the KV of another prefix"
        own = self._slots[context[position]]
        assert own is not None
        assert own.token_id == token_id
        return state


def _context_slots(plan: StepPlan, run_idx: int) -> dict[int, int]:
    """Slot by position of all that a run's rows see; each position must be covered exactly once."""
    assert plan.attention is not None
    context: dict[int, int] = {}

    def cover(position: int, ranges: Sequence[SlotRange]) -> None:
        for piece in ranges:
            for slot in range(piece.start, piece.start + piece.length):
                assert position not in context, f"position {position} is covered twice"
                context[position] = slot
                position += 1

    run = plan.runs[run_idx]
    for segment in plan.attention.segments:
        if run_idx in segment.run_idxs:
            cover(segment.position, segment.ranges)
            end = segment.position + sum(piece.length for piece in segment.ranges)
            assert end <= run.start + 1, "a segment must be visible to all rows of its runs"
    tail = plan.attention.tails[run_idx]
    cover(tail.position, tail.ranges)
    assert sorted(context) == list(range(run.start + len(run.tokens)))
    return context


class SimulatedMatcher:
    """Forces `first` at the start, and one or two tokens after every token divisible by `every`;
    never finishes.
    """

    def __init__(self, every: int, first: Sequence[int] = ()) -> None:
        self.every = every
        self.first = first
        self.finished = False
        self._expected = list(first)

    def advance(self, token_id: int) -> bool:
        if self._expected:
            return self._expected.pop(0) == token_id
        if token_id != EOS_ID and token_id % self.every == 0:
            self._expected = [1 + token_id % 5, 2 + token_id % 3][: 1 + token_id % 2]
        return True

    def forced(self, *, budget: int | None = None) -> list[int]:
        return list(self._expected)

    def clone(self) -> "SimulatedMatcher":
        other = SimulatedMatcher(self.every, self.first)
        other._expected = list(self._expected)
        return other


def take_forced(matcher: SimulatedMatcher) -> list[int]:
    forced = matcher.forced()
    for token_id in forced:
        matcher.advance(token_id)
    return forced


@dataclass(slots=True)
class Expected:
    """What a request gives when it runs alone and from scratch."""

    token_ids: list[int]
    logprobs: list[float]


@dataclass(slots=True)
class Received:
    """What came back for a request so far."""

    request: Request
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    last: Update | None = None


class GuessingDrafter(Drafter):
    """Knows what comes, and errs at times; guesses wherever it may."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.simulation: Simulation | None = None
        self._random = random.Random(seed)

    def drafts(self, requests: Sequence[Request], max_rows: int) -> dict[int, Draft]:
        drafts: dict[int, Draft] = {}
        for request in requests:
            if max_rows < 1 or not may_draft(request):
                continue
            draft = make_draft(request, "2", self._guess(request), min(max_rows, 6))
            if draft is not None:
                drafts[request.request_id] = draft
                max_rows -= len(draft.tokens)
        return drafts

    def settle(self, draft: Draft) -> None:
        pass

    def _guess(self, request: Request) -> list[int]:
        assert self.simulation is not None
        coming = self.simulation.expected(request).token_ids[request.num_output :]
        guess = coming[: self._random.randint(0, 8)]
        if guess and self._random.random() < 0.6:
            guess[self._random.randrange(len(guess))] = 1 + self._random.randrange(5)
        return guess


class Simulation:
    """Scheduler, cache and simulated runner, with a naive model to compare with."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        vocab_size: int = 6,
        end_every: int = 12,
        chunk_beside: Callable[[int], int] | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        assert config.num_blocks is not None
        self.config = config
        self.vocab_size = vocab_size
        self.end_every = end_every
        self.cache = RadixCache(
            config.num_blocks, config.block_size, enable_reuse=config.prefix_cache
        )
        self.scheduler = Scheduler(
            self.cache, config, [EOS_ID], chunk_beside=chunk_beside, drafter=drafter
        )
        if isinstance(drafter, GuessingDrafter):
            drafter.simulation = self
        self.runner = SimulatedRunner(config.num_blocks, config.block_size)
        self.received: dict[int, Received] = {}
        self.num_live = 0
        self._next_id = 0

    def submit(
        self,
        prompt: Sequence[int],
        max_output: int = 8,
        *,
        continuation: Sequence[int] | None = None,
        params: SamplingParams | None = None,
        group_id: int | None = None,
        force_every: int | None = None,
        force_first: Sequence[int] = (),
    ) -> Received:
        """Generate after `prompt`, or score `continuation`. Raises what `Scheduler.add` raises."""
        request_id = self._next_id
        is_score = continuation is not None
        request = Request(
            request_id=request_id,
            group_id=request_id if group_id is None else group_id,
            tokens=[*prompt, *(continuation or ())],
            num_prompt=len(prompt),
            max_output=len(continuation or ()) if is_score else max_output,
            params=params or SamplingParams(logprobs=0 if is_score else None),
            namespace=NAMESPACE,
            is_score=is_score,
            matcher=SimulatedMatcher(force_every, force_first) if force_every else None,
        )
        updates = self.scheduler.add(request)
        self._next_id += 1
        received = self.received[request_id] = Received(request)
        self.num_live += 1
        self._take(updates)
        return received

    def abort(self, received: Received) -> None:
        self._take(self.scheduler.abort(received.request.request_id))

    def step(self) -> StepPlan | None:
        """One step; None if there was nothing to do. Checks the cache, the budget and the plan."""
        plan = self.scheduler.plan()
        if plan is None:
            assert self.num_live == 0, "requests are left, but nothing is planned"
            return None
        assert plan.num_tokens <= self.config.max_step_tokens
        assert self.scheduler.num_running <= self.config.max_running
        states = self.runner.execute(plan)
        sampled = [self._sample(states[sample.logits_row]) for sample in plan.samples]
        scored = [
            TokenLogprob(wanted.token_id, logprob_of(states[wanted.logits_row], wanted.token_id))
            for wanted in plan.scored
        ]
        self._take(self.scheduler.commit(plan, sampled, scored))
        self.cache.check()
        return plan

    def run(self, max_steps: int = 10_000) -> int:
        """Step until all requests ended; the number of steps."""
        for num_steps in range(max_steps):
            if self.step() is None:
                return num_steps
        raise AssertionError(f"{self.num_live} requests did not end within {max_steps} steps")

    def check_nothing_leaks(self) -> None:
        assert self.num_live == 0
        assert self.cache.num_leased_blocks == 0
        self.cache.clear()
        assert self.cache.num_free_blocks == self.config.num_blocks

    def expected(self, request: Request) -> Expected:
        """The naive model: the request alone, without cache, blocks or steps."""
        prompt = request.tokens[: request.num_prompt]
        if request.is_score:
            tokens = request.tokens
        else:
            tokens = prompt + self._generate(request, prompt)
        logprobs = [
            logprob_of(state_of(tokens[:at]), tokens[at])
            for at in range(request.num_prompt, len(tokens))
        ]
        return Expected(tokens[request.num_prompt :], logprobs)

    def check_result(self, received: Received) -> None:
        """A request that ended without an error gave exactly what it gives alone."""
        expected = self.expected(received.request)
        assert received.last is not None
        assert received.last.error is None
        assert received.token_ids == expected.token_ids
        if received.request.params.logprobs is not None:
            assert received.logprobs == expected.logprobs
        if received.request.params.prompt_logprobs is not None:
            self._check_prompt_logprobs(received.request)

    def _check_prompt_logprobs(self, request: Request) -> None:
        prompt = request.tokens[: request.num_prompt]
        first, *rest = request.prompt_logprobs
        assert first is None
        assert [entry.logprob for entry in rest if entry is not None] == [
            logprob_of(state_of(prompt[:at]), prompt[at]) for at in range(1, len(prompt))
        ]

    def _generate(self, request: Request, prompt: list[int]) -> list[int]:
        old = request.matcher
        output: list[int] = []
        matcher = None
        if isinstance(old, SimulatedMatcher):
            matcher = SimulatedMatcher(old.every, old.first)
            output = take_forced(matcher)
        while len(output) < request.max_output:
            state = state_of([*prompt, *output])
            token_id = choose_token(state, self.vocab_size, end_every=self.end_every)
            output.append(token_id)
            if token_id == EOS_ID:
                break
            if matcher is not None:
                matcher.advance(token_id)
                output += take_forced(matcher)
        return output[: request.max_output]

    def _sample(self, state: int) -> Sampled:
        token_id = choose_token(state, self.vocab_size, end_every=self.end_every)
        return Sampled(token_id, TokenLogprob(token_id, logprob_of(state, token_id)), None)

    def _take(self, updates: Sequence[Update]) -> None:
        for update in updates:
            received = self.received[update.request.request_id]
            assert received.last is None, "an update came after the last one"
            received.token_ids += update.token_ids
            received.logprobs += [entry.logprob for entry in update.logprobs or ()]
            if update.is_last:
                received.last = update
                self.num_live -= 1
