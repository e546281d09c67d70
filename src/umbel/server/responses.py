"""`/v1/responses`: the same conversations as items, whole or as a stream of events."""

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

from starlette.requests import Request
from starlette.responses import Response

from umbel.runtime.errors import InvalidRequest, UmbelError
from umbel.server.answers import json_response
from umbel.server.bodies import BodyDecoder
from umbel.server.call import Call, Ending
from umbel.server.conversation import Task, make_task
from umbel.server.output import News
from umbel.server.protocol.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Reasoning,
    ResponseError,
    ResponseEvent,
    ResponseObject,
    ResponsesBody,
    ResponseUsage,
    TextConfig,
    TextFormat,
)
from umbel.server.record import record_of
from umbel.server.responses_input import LOGPROBS, conversation_of
from umbel.server.responses_items import ItemWriter
from umbel.server.service import Service
from umbel.server.sse import EventStream, event
from umbel.server.usage import usage_of

_DECODER = BodyDecoder(ResponsesBody)


async def responses(service: Service, request: Request) -> Response:
    """Handler of `POST /v1/responses`."""
    body = await service.body(request, _DECODER)
    service.check_model(body.model)
    task = await service.work(lambda: make_task(service, conversation_of(body)))
    answers = _Answers(service, request, body, task)
    if body.stream:
        record_of(request.scope).is_stream = True
        parts = answers.stream()
        return EventStream(await anext(parts), parts, failure=answers.failure)
    return json_response(await answers.whole())


class _Answers:
    """Makes the answer to one request."""

    def __init__(self, service: Service, request: Request, body: ResponsesBody, task: Task) -> None:
        self._service = service
        self._request = request
        self._body = body
        self._task = task
        self._reader = task.reader()
        self._writer = ItemWriter(
            service.engine.tokenizer, has_logprobs=LOGPROBS in (body.include or ())
        )
        self._ending: Ending | None = None
        self._is_cut = False
        self._response = self._begin()

    async def whole(self) -> ResponseObject:
        async with self._call() as call:
            async for news in self._news(call):
                self._writer.write(news)
        return self._finished()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        has_begun = False
        async with self._call() as call:
            async for news in self._news(call):
                parts = []
                if not has_begun:
                    has_begun = True
                    parts.append(self._state_event("response.created"))
                    parts.append(self._state_event("response.in_progress"))
                parts += [_sse(one) for one in self._writer.write(news)]
                yield b"".join(parts)
        response = self._finished()
        yield self._state_event(f"response.{response.status}")

    def failure(self, error: UmbelError) -> bytes:
        """The events that end a stream with an error."""
        self._response.status = "failed"
        self._response.error = ResponseError(code=error.code, message=str(error))
        self._response.output = [*self._writer.items]
        told = ResponseEvent(
            type="error",
            sequence_number=0,
            code=error.code,
            message=str(error),
            param=error.param if isinstance(error, InvalidRequest) else None,
        )
        failed = self._state_event("response.failed")
        return failed + _sse(self._writer.numbered(told))

    def _call(self) -> AbstractAsyncContextManager[Call]:
        return self._service.call(
            self._request,
            [self._task.job],
            timeout_s=self._body.timeout_s,
            salt=self._body.cache_salt,
            locate=self._task.locate,
        )

    async def _news(self, call: Call) -> AsyncGenerator[News, None]:
        async for pieces in call.pieces():
            self._service.note(record_of(self._request.scope), pieces)
            for piece in pieces:
                news = self._reader.read(piece)
                if news.ending is not None:
                    self._ending = news.ending
                    self._is_cut = news.finish == "length"
                yield news

    def _state_event(self, type_: str) -> bytes:
        told = ResponseEvent(type=type_, sequence_number=0, response=self._response)
        return _sse(self._writer.numbered(told))

    def _begin(self) -> ResponseObject:
        body, params = self._body, self._task.job.params
        return ResponseObject(
            id=f"resp_{secrets.token_hex(16)}",
            created_at=int(time.time()),
            status="in_progress",
            model=self._service.model_name,
            output=[],
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=body.reasoning or Reasoning(),
            temperature=params.temperature,
            text=body.text or TextConfig(format=TextFormat(type="text")),
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_logprobs=body.top_logprobs or 0,
            top_p=params.top_p,
            user=body.user,
        )

    def _finished(self) -> ResponseObject:
        assert self._ending is not None
        response = self._response
        response.output = [*self._writer.items]
        response.status = "incomplete" if self._is_cut else "completed"
        if self._is_cut:
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        usage = usage_of({0: self._ending}, n=1, record=record_of(self._request.scope))
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=usage.prompt_tokens_details.cached_tokens
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=usage.completion_tokens_details.reasoning_tokens
            ),
            total_tokens=usage.total_tokens,
        )
        return response


def _sse(one: ResponseEvent) -> bytes:
    return event(one, one.type)
