"""`/v1/completions`: texts or tokens go on, without a chat template."""

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from umbel.runtime.errors import InvalidConstraint, InvalidRequest
from umbel.runtime.generation import encode_prompt
from umbel.runtime.outputs import FinishReason
from umbel.runtime.params import SamplingParams
from umbel.server.answers import json_response
from umbel.server.bodies import BodyDecoder
from umbel.server.call import Call, Ending, Job, Piece
from umbel.server.constraints import constraint_of
from umbel.server.errors import UnsupportedField
from umbel.server.logprobs import CompletionLogprobsWriter
from umbel.server.protocol.completions import (
    CompletionAnswer,
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
)
from umbel.server.protocol.fields import UsageBody
from umbel.server.record import record_of
from umbel.server.sampling import sampling_options
from umbel.server.service import Service
from umbel.server.sse import DONE, EventStream, event
from umbel.server.usage import usage_of

DEFAULT_MAX_TOKENS = 16  # OpenAI's
_DECODER = BodyDecoder(CompletionBody)


@dataclass(frozen=True, slots=True)
class _Task:
    """A body, checked and tokenized."""

    jobs: list[Job]
    n: int
    field: str  # of the constraint
    is_echo: bool
    is_dry: bool  # max_tokens=0: nothing is generated, the prompt is scored
    num_top: int | None  # None: no logprobs

    async def locate(self, service: Service, error: InvalidConstraint) -> None:
        error.param = self.field


async def completions(service: Service, request: Request) -> Response:
    """Handler of `POST /v1/completions`."""
    body = await service.body(request, _DECODER)
    service.check_model(body.model)
    task = await service.work(_prepare, service, body)
    answers = _Answers(service, request, body, task)
    if body.stream:
        record_of(request.scope).is_stream = True
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        parts = answers.stream(with_usage=with_usage)
        return EventStream(await anext(parts), parts)
    return json_response(await answers.whole())


class _Answers:
    """Makes the answers to one request."""

    def __init__(
        self, service: Service, request: Request, body: CompletionBody, task: _Task
    ) -> None:
        self._service = service
        self._request = request
        self._body = body
        self._task = task
        self._tokenizer = service.engine.tokenizer
        self._id = f"cmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._endings: dict[int, Ending] = {}
        self._held: dict[int, Piece] = {}
        num_sequences = task.n * len(task.jobs)
        self._has_begun = [False] * num_sequences
        self._writers = [
            CompletionLogprobsWriter(self._tokenizer, num_top=task.num_top or 0)
            for _ in range(num_sequences)
        ]

    async def whole(self) -> CompletionAnswer:
        choices: dict[int, CompletionChoice] = {}
        async with self._call() as call:
            async for pieces in call.pieces():
                for piece in self._shown(pieces):
                    _add(choices, self._choice(piece))
        answer = self._answer([choices[index] for index in sorted(choices)])
        answer.usage = self._usage()
        return answer

    async def stream(self, *, with_usage: bool) -> AsyncGenerator[bytes, None]:
        async with self._call() as call:
            async for pieces in call.pieces():
                choices = [self._choice(piece) for piece in self._shown(pieces)]
                if choices:
                    yield b"".join(event(self._answer([choice])) for choice in choices)
        usage = self._usage()
        if with_usage:
            last = self._answer([])
            last.usage = usage
            yield event(last)
        yield DONE

    def _call(self) -> AbstractAsyncContextManager[Call]:
        return self._service.call(
            self._request,
            self._task.jobs,
            timeout_s=self._body.timeout_s,
            salt=self._body.cache_salt,
            locate=self._task.locate,
        )

    def _usage(self) -> UsageBody:
        return usage_of(self._endings, n=self._task.n, record=record_of(self._request.scope))

    def _answer(self, choices: list[CompletionChoice]) -> CompletionAnswer:
        return CompletionAnswer(
            id=self._id, created=self._created, model=self._service.model_name, choices=choices
        )

    def _shown(self, pieces: list[Piece]) -> list[Piece]:
        """The pieces that can be answered now. The scores of a prompt come with the ending, and
        stand before all others: an echo with logprobs is answered in one piece.
        """
        self._service.note(record_of(self._request.scope), pieces)
        if not (self._task.is_echo and self._task.num_top is not None):
            return pieces
        whole = []
        for piece in pieces:
            held = self._held.setdefault(piece.sequence, piece)
            if held is not piece:
                held.text += piece.text
                held.token_ids += piece.token_ids
                held.logprobs += piece.logprobs
                held.ending = piece.ending
            if held.ending is not None:
                whole.append(self._held.pop(piece.sequence))
        return whole

    def _choice(self, piece: Piece) -> CompletionChoice:
        """What a piece says; the echo of the prompt stands in front of the first."""
        task = self._task
        choice = CompletionChoice(index=piece.sequence, text="" if task.is_dry else piece.text)
        echoed: list[int] = []
        if task.is_echo and not self._has_begun[piece.sequence]:
            echoed = task.jobs[piece.sequence // task.n].prompt_ids
            choice.text = self._tokenizer.decode(echoed) + choice.text
        self._has_begun[piece.sequence] = True
        if piece.ending is not None:
            self._end(choice, piece.sequence, piece.ending)
        if task.num_top is not None:
            choice.logprobs = self._logprobs(piece, echoed)
        return choice

    def _end(self, choice: CompletionChoice, sequence: int, ending: Ending) -> None:
        if self._task.is_dry:
            ending = replace(ending, num_output_tokens=0, finish_reason=FinishReason.LENGTH)
        self._endings[sequence] = ending
        choice.finish_reason = "stop" if ending.finish_reason is FinishReason.STOP else "length"
        choice.stop_reason = None if self._task.is_dry else ending.stop_reason
        choice.captures = ending.captures or UNSET

    def _logprobs(self, piece: Piece, echoed: list[int]) -> CompletionLogprobs:
        of_prompt = piece.ending.prompt_logprobs if piece.ending is not None else None
        token_ids, entries = [*echoed], [*(of_prompt or ())][: len(echoed)]
        if not self._task.is_dry:
            for token_id, entry in zip(piece.token_ids, piece.logprobs, strict=True):
                if self._tokenizer.bytes_of(token_id):  # the end token is no text
                    token_ids.append(token_id)
                    entries.append(entry)
        return self._writers[piece.sequence].write(token_ids, entries)


def _add(choices: dict[int, CompletionChoice], news: CompletionChoice) -> None:
    choice = choices.setdefault(news.index, news)
    if choice is news:
        return
    choice.text += news.text
    choice.finish_reason, choice.stop_reason = news.finish_reason, news.stop_reason
    choice.captures = news.captures
    if choice.logprobs is not None and news.logprobs is not None:
        choice.logprobs.tokens += news.logprobs.tokens
        choice.logprobs.token_logprobs += news.logprobs.token_logprobs
        choice.logprobs.top_logprobs += news.logprobs.top_logprobs
        choice.logprobs.text_offset += news.logprobs.text_offset


def _prepare(service: Service, body: CompletionBody) -> _Task:
    n = 1 if body.n is None else body.n
    if body.best_of is not None and body.best_of != n:
        raise UnsupportedField(
            f"best_of={body.best_of} is not supported: it must equal n={n}, or be left out",
            param="best_of",
        )
    if body.suffix:
        raise UnsupportedField("suffix is not supported: leave it out", param="suffix")
    wanted = constraint_of(body)
    options = sampling_options(body)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    options["max_tokens"] = max(1, max_tokens) if max_tokens == 0 else max_tokens
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
        if body.echo:
            options["prompt_logprobs"] = body.logprobs
    if wanted is not None:
        options[wanted.kind] = wanted.source
    params = SamplingParams(**options)
    prompts = _prompts(body.prompt, service.settings.max_prompts)
    jobs = [Job(list(encode_prompt(service.engine, prompt)), params) for prompt in prompts]
    if body.max_tokens is None:
        jobs = [_clipped(job, service.engine.context_len) for job in jobs]
    return _Task(
        jobs=jobs,
        n=n,
        field=wanted.field if wanted is not None else "",
        is_echo=bool(body.echo),
        is_dry=max_tokens == 0,
        num_top=body.logprobs,
    )


def _clipped(job: Job, context_len: int) -> Job:
    """With no more tokens than the context has room for: nobody asked for the default."""
    room = context_len - len(job.prompt_ids)
    if not 0 < room < DEFAULT_MAX_TOKENS:
        return job  # it fits, or not even one token does: an error
    return replace(job, params=job.params.with_options(max_tokens=room))


def _prompts(given: str | list[str | int | list[int]], max_prompts: int) -> list[str | list[int]]:
    """The prompts of a body: one, or several."""
    if isinstance(given, str):
        return [given]
    ids = [item for item in given if isinstance(item, int)]
    if ids and len(ids) == len(given):
        return [ids]
    prompts = [item for item in given if not isinstance(item, int)]
    kinds = {type(item) for item in prompts}
    if ids or len(kinds) != 1:
        raise InvalidRequest(
            "prompt is not valid: expected a string, a list of strings, a list of token ids, or a "
            "list of such lists",
            param="prompt",
        )
    if len(prompts) > max_prompts:
        raise InvalidRequest(
            f"{len(prompts)} prompts are more than the {max_prompts} that one request may have",
            param="prompt",
        )
    return prompts
