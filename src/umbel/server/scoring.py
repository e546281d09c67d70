"""`/v1/score`: which of some labels the model finds most likely, and how likely each."""

import asyncio
import math
import threading
from collections.abc import Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response

from umbel.runtime.engine import Engine
from umbel.runtime.errors import InvalidRequest, UmbelError
from umbel.runtime.flight import CallHandle, ScoreListener
from umbel.runtime.outputs import Score
from umbel.server.answers import json_response
from umbel.server.bodies import BodyDecoder
from umbel.server.native import encode_input
from umbel.server.protocol.native import LabelScore, ScoreAnswer, ScoreBody, ScoreUsage
from umbel.server.record import record_of
from umbel.server.service import Service
from umbel.server.trace import Trace

MAX_LABELS = 1024
_DECODER = BodyDecoder(ScoreBody)


async def score(service: Service, request: Request) -> Response:
    """Handler of `POST /v1/score`."""
    body = await service.body(request, _DECODER)
    service.check_model(body.model)
    if not 1 <= len(body.labels) <= MAX_LABELS or len(set(body.labels)) != len(body.labels):
        raise InvalidRequest(
            f"labels must be 1 to {MAX_LABELS} different texts, got {len(body.labels)}",
            param="labels",
        )
    call = await service.work(_prepare, service, body, service.tenant(request, body.cache_salt))
    record = record_of(request.scope)
    with service.tracer.tracing(record) as trace:
        call.trace = trace
        async with service.running(request, call, timeout_s=body.timeout_s):
            scores = await call.scores()
    answer = _answer(service, body, scores)
    record.num_prompt_tokens = answer.usage.prompt_tokens
    record.num_cached_tokens = answer.usage.cached_tokens
    return json_response(answer)


class ScoreCall:
    """The scores of some continuations of one prompt, all submitted together."""

    def __init__(
        self,
        engine: Engine,
        prompt_ids: Sequence[int],
        continuations: Sequence[Sequence[int]],
        *,
        tenant: str | None,
    ) -> None:
        self._engine = engine
        self._prompt_ids = prompt_ids
        self._continuations = continuations
        self._tenant = tenant
        self.trace: Trace | None = None  # set by the handler before it starts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done = asyncio.Event()
        self._failure: UmbelError | None = None
        self._handles: list[CallHandle] = []
        self._lock = threading.Lock()
        self._answers: dict[int, Score | UmbelError] = {}  # guarded by the lock

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        with self._engine.hold():
            for index, continuation in enumerate(self._continuations):
                self._submit(index, continuation)

    async def scores(self) -> list[Score]:
        """In order of the continuations. Raises the first error."""
        await self._done.wait()
        if self._failure is not None:
            raise self._failure
        scores = []
        for index in range(len(self._continuations)):
            answer = self._answers[index]
            if isinstance(answer, UmbelError):
                raise answer
            scores.append(answer)
        return scores

    def fail(self, error: UmbelError) -> None:
        self._failure = self._failure or error
        self._done.set()
        self.stop()

    def stop(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.cancel()

    def _submit(self, index: int, continuation: Sequence[int]) -> None:
        def listen(answer: Score | UmbelError) -> None:
            with self._lock:
                self._answers[index] = answer
                is_last = len(self._answers) == len(self._continuations)
            if is_last:
                assert self._loop is not None
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    self._loop.call_soon_threadsafe(self._done.set)

        listener: ScoreListener = listen
        if self.trace is not None:
            listener = self.trace.listening_score(self._prompt_ids, listen, str(index))
        handle = self._engine.submit_score(
            self._prompt_ids, continuation, listener, tenant=self._tenant
        )
        self._handles.append(handle)


def _prepare(service: Service, body: ScoreBody, tenant: str | None) -> ScoreCall:
    prompt_ids = encode_input(service, body.prompt, body.messages)
    continuations = [service.engine.encode(label) for label in body.labels]
    return ScoreCall(service.engine, prompt_ids, continuations, tenant=tenant)


def _answer(service: Service, body: ScoreBody, scores: Sequence[Score]) -> ScoreAnswer:
    values = [
        one.total if body.normalization == "sum" else one.total / len(one.logprobs)
        for one in scores
    ]
    best = max(range(len(values)), key=values.__getitem__)
    weights = [math.exp(value - values[best]) for value in values]
    probabilities = [weight / sum(weights) for weight in weights]
    labels = [
        LabelScore(
            label=label, logprob=one.total, num_tokens=len(one.logprobs), probability=probability
        )
        for label, one, probability in zip(body.labels, scores, probabilities, strict=True)
    ]
    return ScoreAnswer(
        choice=body.labels[best],
        index=best,
        probability=probabilities[best],
        scores=labels,
        model=service.model_name,
        usage=ScoreUsage(
            prompt_tokens=scores[0].usage.num_prompt_tokens,
            cached_tokens=scores[0].usage.num_cached_tokens,
            scored_tokens=sum(len(one.logprobs) for one in scores),
        ),
    )
