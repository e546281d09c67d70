"""The sequences of one HTTP request, under way in the engine.

The engine's thread leaves chunks in a mailbox, where those that nobody took are joined: a client
that reads slowly costs no more memory than its output, and never makes the engine wait. The loop's
side takes them, and moves reasoning models on from their thought to their answer.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field

from umbel.runtime.engine import Engine
from umbel.runtime.errors import UmbelError
from umbel.runtime.flight import CallHandle, ChunkListener
from umbel.runtime.outputs import (
    Captures,
    Chunk,
    Completion,
    FinishReason,
    TokenLogprob,
    no_captures,
)
from umbel.runtime.params import CONSTRAINT_KINDS, SamplingParams
from umbel.server.thinking import Thought
from umbel.server.trace import Trace

_ANSWER_SEED_STEP = 0x9E3779B97F4A7C15  # so that an answer does not repeat its thought's choices


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to go on from, `params.n` times. `params` are those of the answer."""

    prompt_ids: list[int]
    params: SamplingParams
    thought: Thought | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How one sequence ended, thought and answer together."""

    finish_reason: FinishReason
    stop_reason: str | int | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_thought_tokens: int
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    captures: Captures = field(default_factory=no_captures)  # of the answer, by its grammar


@dataclass(slots=True)
class Piece:
    """News of one sequence; the last has `ending`. `gaps_s`: between the chunks it is made of."""

    sequence: int  # job by job, n each
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    is_thought: bool
    ending: Ending | None = None
    gaps_s: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Sequence:
    """Where one sequence stands; the loop's side alone uses it."""

    job: Job
    index: int  # among the n of its job
    is_thinking: bool
    thought: Completion | None = None


@dataclass(slots=True)
class _Unread:
    """What came for one sequence since the last look."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    completion: Completion | None = None
    error: UmbelError | None = None


class Call:
    """Start it in a worker, then take its pieces on the loop. `close` it in any case."""

    def __init__(
        self,
        engine: Engine,
        jobs: Sequence[Job],
        *,
        workers: Executor,
        tenant: str | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._tenant = tenant
        self._trace = trace
        self._jobs = jobs
        self._sequences = [
            _Sequence(job, index, job.thought is not None)
            for job in jobs
            for index in range(job.params.n)
        ]
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._last_s = [0.0] * len(self._sequences)  # when the last piece of each came
        self._lock = threading.Lock()  # guards all below
        self._unread: dict[int, _Unread] = {}
        self._handles: list[CallHandle] = []
        self._is_stopped = False
        self._failure: UmbelError | None = None

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    async def start(self) -> None:
        """Submit everything. Raises what `Engine.submit` raises."""
        await self._loop.run_in_executor(self._workers, self._submit_all)

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """What came since the last look, until every sequence ended. Raises the call's error."""
        num_open = len(self._sequences)
        while num_open:
            await self._ready.wait()
            self._ready.clear()
            with self._lock:
                if self._failure is not None:
                    raise self._failure
                unread, self._unread = self._unread, {}
            pieces = [await self._piece(at, news) for at, news in unread.items()]
            num_open -= sum(piece.ending is not None for piece in pieces)
            if pieces:
                yield pieces

    def fail(self, error: UmbelError) -> None:
        """End the call with an error: a deadline, a client that left. On the loop."""
        with self._lock:
            self._failure = self._failure or error
        self.stop()
        self._ready.set()

    def stop(self) -> None:
        """Cancel what still runs in the engine. Idempotent; any thread."""
        with self._lock:
            self._is_stopped = True
            handles, self._handles = self._handles, []
        for handle in handles:
            handle.cancel()

    # -- in a worker

    def _submit_all(self) -> None:
        first = 0
        try:
            with self._engine.hold():
                for job in self._jobs:
                    self._submit(job.prompt_ids, _first_params(job), first)
                    first += job.params.n
        except BaseException:
            self.stop()
            raise

    def _submit(self, prompt_ids: list[int], params: SamplingParams, first: int) -> None:
        def listen(chunk: Chunk) -> None:
            self._add(first + chunk.index, chunk)

        listener: ChunkListener = listen
        if self._trace is not None:
            listener = self._trace.listening(prompt_ids, listen, str(first))
        handle = self._engine.submit(prompt_ids, params, listener, tenant=self._tenant)
        with self._lock:
            is_stopped = self._is_stopped
            if not is_stopped:
                self._handles.append(handle)
        if is_stopped:
            handle.cancel()

    # -- on the engine's thread

    def _add(self, sequence: int, chunk: Chunk) -> None:
        now_s = time.perf_counter()
        with self._lock:
            is_first = not self._unread
            unread = self._unread.setdefault(sequence, _Unread())
            unread.texts.append(chunk.text)
            unread.token_ids += chunk.token_ids
            unread.logprobs += chunk.logprobs or ()
            unread.times_s.append(now_s)
            unread.completion, unread.error = chunk.completion, chunk.error
        if is_first:  # otherwise the loop was told already
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._ready.set)

    # -- on the loop

    async def _piece(self, at: int, unread: _Unread) -> Piece:
        if unread.error is not None:
            raise unread.error
        sequence = self._sequences[at]
        piece = Piece(
            sequence=at,
            text="".join(unread.texts),
            token_ids=unread.token_ids,
            logprobs=unread.logprobs,
            is_thought=sequence.is_thinking,
            gaps_s=self._gaps(at, unread.times_s),
        )
        if unread.completion is not None:
            piece.ending = await self._end(at, sequence, unread.completion)
        return piece

    def _gaps(self, at: int, times_s: list[float]) -> list[float]:
        last_s, self._last_s[at] = self._last_s[at], times_s[-1]
        befores = [last_s, *times_s[:-1]] if last_s else times_s[:-1]
        afters = times_s if last_s else times_s[1:]
        return [after - before for before, after in zip(befores, afters, strict=True)]

    async def _end(self, at: int, sequence: _Sequence, completion: Completion) -> Ending | None:
        """The ending of a sequence; None when a thought ended and the answer begins."""
        if sequence.is_thinking:
            sequence.is_thinking = False
            sequence.thought = completion
            if await self._go_on(at, sequence):
                return None
        thought = sequence.thought
        is_answer = thought is not completion
        num_thought = thought.usage.num_output_tokens if thought is not None else 0
        first = thought or completion
        captures = no_captures()
        if is_answer and completion.find_captures is not no_captures:  # may take a second
            captures = await self._loop.run_in_executor(self._workers, completion.captures)
        return Ending(
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason if is_answer else None,
            num_prompt_tokens=first.usage.num_prompt_tokens,
            num_cached_tokens=first.usage.num_cached_tokens,
            num_output_tokens=num_thought + completion.usage.num_output_tokens * is_answer,
            num_thought_tokens=num_thought,
            prompt_logprobs=first.prompt_logprobs,
            captures=captures,
        )

    async def _go_on(self, at: int, sequence: _Sequence) -> bool:
        """Submit the answer after a thought that was closed; False if there is nothing to do."""
        thought, completion, job = sequence.job.thought, sequence.thought, sequence.job
        assert thought is not None
        assert completion is not None
        is_closed = completion.stop_reason in (thought.close, thought.close_id)
        options = _answer_options(job.params, sequence.index, completion)
        if not is_closed or completion.stop_reason is None or options is None:
            return False
        prompt_ids = [*job.prompt_ids, *completion.text_token_ids, *thought.after_ids]
        params = job.params.with_options(**options)
        await self._loop.run_in_executor(self._workers, self._submit, prompt_ids, params, at)
        return True


def _first_params(job: Job) -> SamplingParams:
    """Those of the thought: no constraint, and no end but its closing tag."""
    if job.thought is None:
        return job.params
    close_ids = () if job.thought.close_id is None else (job.thought.close_id,)
    free = dict.fromkeys(CONSTRAINT_KINDS)
    stops = {"stop": (job.thought.close,), "stop_token_ids": close_ids}
    return job.params.with_options(**free, **stops, logprobs=None, min_tokens=0)


def _answer_options(
    params: SamplingParams, index: int, thought: Completion
) -> dict[str, int | None] | None:
    """What is different for one answer; None if the thought used up all tokens."""
    options: dict[str, int | None] = {"n": 1, "prompt_logprobs": None}
    if params.max_tokens is not None:
        left = params.max_tokens - thought.usage.num_output_tokens
        if left < 1:
            return None
        options |= {"max_tokens": left, "min_tokens": min(params.min_tokens, left)}
    if params.seed is not None:
        options["seed"] = (params.seed + (index + 1) * _ANSWER_SEED_STEP) % 2**63
    return options
