"""Waiting for an engine's answers: in one piece, as a stream, and both in asyncio.

Everything here is made of `Engine.submit` and `Engine.submit_score`. The one idea: a listener only
ever adds to a buffer; whoever reads slowly finds the pieces joined, and the engine never waits for
a reader.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from umbel.runtime.errors import EngineError, InvalidRequest, QueueFull, UmbelError
from umbel.runtime.flight import CallHandle
from umbel.runtime.outputs import Chunk, Completion, Result, Score, TokenLogprob
from umbel.runtime.params import SamplingParams, make_params

if TYPE_CHECKING:
    from umbel.runtime.engine import Engine

Prompt = str | Sequence[int]


def encode_prompt(engine: "Engine", prompt: Prompt) -> Sequence[int]:
    """A prompt's tokens; a string is template text, and gets the model's bos unless it begins with
    it.
    """
    if not isinstance(prompt, str):
        return prompt  # checked by submit
    if not prompt:
        raise InvalidRequest("the prompt is empty: give at least one character", param="prompt")
    tokens = engine.encode(prompt, special=True)
    bos_ids = engine.bos_ids()
    return tokens if bos_ids and tokens[: len(bos_ids)] == bos_ids else [*bos_ids, *tokens]


def generate(engine: "Engine", prompt: Prompt, params: SamplingParams) -> Result:
    call = _Call(engine, prompt, params)
    call.wait()
    return call.result()


def generate_batch(
    engine: "Engine",
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None,
    options: Mapping[str, Any],
) -> list[Result | UmbelError]:
    if isinstance(prompts, str):
        raise InvalidRequest("prompts is one string; expected a list of prompts", param="prompts")
    if isinstance(params, Sequence):
        if len(params) != len(prompts):
            raise InvalidRequest(
                f"{len(params)} params for {len(prompts)} prompts; give one each or one for all",
                param="params",
            )
        all_params = [make_params(one, options) for one in params]
    else:
        all_params = [make_params(params, options)] * len(prompts)
    left = deque(zip(prompts, all_params, strict=True))
    calls: list[_Call | UmbelError] = []
    try:
        while left:
            with engine.hold():
                _start(engine, left, calls)
            if left:  # the queue is full: go on when one of ours is through
                _wait_for_one(calls)
        return [call if isinstance(call, UmbelError) else _outcome(call) for call in calls]
    finally:
        for call in calls:
            if isinstance(call, _Call):
                call.cancel()


def score(engine: "Engine", prompt: Prompt, continuations: Sequence[Prompt]) -> list[Score]:
    if isinstance(continuations, str):
        raise InvalidRequest(
            "continuations is one string; expected a list of continuations", param="continuations"
        )
    tokens = encode_prompt(engine, prompt)
    waiting = _Countdown(engine, len(continuations))
    answers: list[Score | UmbelError | None] = [None] * len(continuations)

    def listener(index: int) -> Callable[[Score | UmbelError], None]:
        def listen(answer: Score | UmbelError) -> None:
            answers[index] = answer
            waiting.count()

        return listen

    handles: list[CallHandle] = []
    try:
        with engine.hold():
            for index, continuation in enumerate(continuations):
                ids = engine.encode(continuation) if isinstance(continuation, str) else continuation
                handles.append(engine.submit_score(tokens, ids, listener(index)))
        waiting.wait()
    finally:
        for handle in handles:
            handle.cancel()
    return [_score_or_raise(answer) for answer in answers]


async def agenerate(engine: "Engine", prompt: Prompt, params: SamplingParams) -> Result:
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    call = _Call(engine, prompt, params, on_done=lambda: _call_soon(loop, done.set))
    try:
        await done.wait()
    finally:
        call.cancel()
    return call.result()


async def astream(engine: "Engine", prompt: Prompt, params: SamplingParams) -> AsyncIterator[Chunk]:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    buffer = _ChunkBuffer(params.n, on_ready=lambda: _call_soon(loop, ready.set))
    handle = engine.submit(encode_prompt(engine, prompt), params, buffer.add)
    try:
        while not buffer.is_exhausted:
            await ready.wait()
            ready.clear()
            for chunk in buffer.take():
                if chunk.error is not None:
                    raise chunk.error
                yield chunk
    finally:
        handle.cancel()


class ChunkStream(Iterator[Chunk]):
    """The chunks of one call. Pieces that were not read in time are joined: a reader that pauses
    costs no more memory than the output. `close()`, leaving the `with` block or dropping it stops
    the request.

    Raises the request's error when it is reached.
    """

    def __init__(self, engine: "Engine", prompt: Prompt, params: SamplingParams) -> None:
        self._ready = threading.Event()
        self._buffer = _ChunkBuffer(params.n, on_ready=self._ready.set)
        self._chunks: list[Chunk] = []  # taken, not yet handed out; the next one last
        self._engine = engine
        self._is_closed = False
        self._handle = engine.submit(encode_prompt(engine, prompt), params, self._buffer.add)

    def __next__(self) -> Chunk:
        while not self._chunks:
            if self._is_closed or self._buffer.is_exhausted:
                raise StopIteration
            if not self._ready.is_set():
                _check_may_wait(self._engine)
            self._ready.wait()
            self._ready.clear()
            self._chunks = self._buffer.take()[::-1]
        chunk = self._chunks.pop()
        if chunk.error is not None:
            self.close()
            raise chunk.error
        return chunk

    def close(self) -> None:
        """Stop the request if it still runs. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._chunks.clear()
            self._handle.cancel()

    def __enter__(self) -> "ChunkStream":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):  # not so when submit() raised
            self.close()


@dataclass(slots=True)
class _Unread:
    """What came for one sequence since the last read."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    has_logprobs: bool = False
    completion: Completion | None = None
    error: UmbelError | None = None

    def add(self, chunk: Chunk) -> None:
        self.texts.append(chunk.text)
        self.token_ids += chunk.token_ids
        if chunk.logprobs is not None:
            self.has_logprobs = True
            self.logprobs += chunk.logprobs
        self.completion, self.error = chunk.completion, chunk.error

    def joined(self, index: int) -> Chunk:
        return Chunk(
            index=index,
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs) if self.has_logprobs else None,
            completion=self.completion,
            error=self.error,
        )


class _ChunkBuffer:
    """Joins what the engine's thread adds until another thread takes it."""

    def __init__(self, num_sequences: int, *, on_ready: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._unread: dict[int, _Unread] = {}
        self._num_open = num_sequences
        self._on_ready = on_ready

    @property
    def is_exhausted(self) -> bool:
        """Everything has come, and was taken."""
        with self._lock:
            return self._num_open == 0 and not self._unread

    def add(self, chunk: Chunk) -> None:
        with self._lock:
            self._unread.setdefault(chunk.index, _Unread()).add(chunk)
            self._num_open -= chunk.completion is not None or chunk.error is not None
        self._on_ready()

    def take(self) -> list[Chunk]:
        with self._lock:
            unread, self._unread = self._unread, {}
        return [pieces.joined(index) for index, pieces in unread.items()]


class _Countdown:
    """Waits until something happened a number of times."""

    def __init__(self, engine: "Engine", num_left: int) -> None:
        self._engine = engine
        self._num_left = num_left
        self._is_done = threading.Event()
        if num_left == 0:
            self._is_done.set()

    def count(self) -> None:
        """On the engine's thread only."""
        self._num_left -= 1
        if self._num_left == 0:
            self._is_done.set()

    def wait(self) -> None:
        if not self._is_done.is_set():
            _check_may_wait(self._engine)
        self._is_done.wait()


class _Call:
    """One `generate`: collects the n completions."""

    def __init__(
        self,
        engine: "Engine",
        prompt: Prompt,
        params: SamplingParams,
        *,
        on_done: Callable[[], None] = lambda: None,
    ) -> None:
        self._prompt_ids = encode_prompt(engine, prompt)
        self._completions: list[Completion | None] = [None] * params.n
        self._error: UmbelError | None = None
        self._countdown = _Countdown(engine, params.n)
        self._num_left = params.n
        self._on_done = on_done
        self._handle = engine.submit(self._prompt_ids, params, self._listen)

    def wait(self) -> None:
        try:
            self._countdown.wait()
        finally:
            self.cancel()

    @property
    def is_done(self) -> bool:
        return self._num_left == 0

    def cancel(self) -> None:
        if not self.is_done:
            self._handle.cancel()

    def result(self) -> Result:
        """Raises the first error of the n sequences."""
        if self._error is not None:
            raise self._error
        completions = tuple(one for one in self._completions if one is not None)
        return Result(tuple(self._prompt_ids), completions)

    def _listen(self, chunk: Chunk) -> None:
        if chunk.completion is None and chunk.error is None:
            return
        self._completions[chunk.index] = chunk.completion
        self._error = self._error or chunk.error
        self._num_left -= 1
        self._countdown.count()
        if self._num_left == 0:
            self._on_done()


def _wait_for_one(calls: Sequence[_Call | UmbelError]) -> None:
    for call in calls:
        if isinstance(call, _Call) and not call.is_done:
            call.wait()
            return


def _outcome(call: _Call) -> Result | UmbelError:
    call.wait()
    try:
        return call.result()
    except UmbelError as error:
        return error


def _start(
    engine: "Engine",
    left: deque[tuple[Prompt, SamplingParams]],
    calls: list[_Call | UmbelError],
) -> None:
    """Submit what is left, in order, until the queue is full of calls of ours."""
    while left:
        prompt, params = left[0]
        try:
            calls.append(_Call(engine, prompt, params))
        except QueueFull as error:
            if any(isinstance(call, _Call) and not call.is_done for call in calls):
                return
            calls.append(error)
        except UmbelError as error:
            calls.append(error)
        left.popleft()


def _score_or_raise(answer: Score | UmbelError | None) -> Score:
    assert answer is not None, "every listener was called"
    if isinstance(answer, UmbelError):
        raise answer
    return answer


def _check_may_wait(engine: "Engine") -> None:
    if engine.is_own_thread:
        raise EngineError(
            "a listener waits for the engine that calls it, which would never end; use submit()"
        )
    if engine.is_holding:
        raise EngineError(
            "waiting inside hold() would never end: the call enters the engine when hold() ends"
        )


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """From the engine's thread. A loop that was closed has nobody left who waits."""
    if not loop.is_closed():
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not loop.is_closed():
                raise
