"""`/v1/chat/completions`: conversations, with formats and tools, whole or streamed."""

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from umbel.runtime.errors import InvalidRequest
from umbel.server.answers import json_response
from umbel.server.bodies import BodyDecoder
from umbel.server.call import Call, Ending
from umbel.server.chat_tools import plan_of
from umbel.server.constraints import constraint_of
from umbel.server.conversation import Conversation, Task, make_task
from umbel.server.errors import UnsupportedField
from umbel.server.logprobs import chat_logprobs
from umbel.server.output import (
    CallDelta,
    CallStarted,
    Event,
    News,
    TextDelta,
    ThoughtDelta,
    WholeCall,
    WholeOutput,
)
from umbel.server.protocol.chat import (
    AnswerMessage,
    CalledCustom,
    CalledFunction,
    ChatAnswer,
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatLogprobs,
    ChunkChoice,
    CustomDelta,
    Delta,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)
from umbel.server.protocol.fields import UsageBody
from umbel.server.record import record_of
from umbel.server.sampling import sampling_options
from umbel.server.service import Service
from umbel.server.sse import DONE, EventStream, event
from umbel.server.usage import usage_of

_DECODER = BodyDecoder(ChatBody)
_RESERVED_VARS = {"messages", "tools", "add_generation_prompt"}


async def chat_completions(service: Service, request: Request) -> Response:
    """Handler of `POST /v1/chat/completions`."""
    body = await service.body(request, _DECODER)
    service.check_model(body.model)
    task = await service.work(lambda: make_task(service, _conversation(body)))
    answers = _Answers(service, request, body, task)
    if body.stream:
        record_of(request.scope).is_stream = True
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        parts = answers.stream(with_usage=with_usage)
        return EventStream(await anext(parts), parts)
    return json_response(await answers.whole())


class _Answers:
    """Makes the answers to one request."""

    def __init__(self, service: Service, request: Request, body: ChatBody, task: Task) -> None:
        self._service = service
        self._request = request
        self._body = body
        self._task = task
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._n = task.job.params.n
        self._readers = [task.reader() for _ in range(self._n)]
        self._endings: dict[int, Ending] = {}

    async def whole(self) -> ChatAnswer:
        outputs = [WholeOutput() for _ in range(self._n)]
        async with self._call() as call:
            async for news in self._news(call):
                for sequence, one in news:
                    outputs[sequence].add(one)
        return ChatAnswer(
            id=self._id,
            created=self._created,
            model=self._service.model_name,
            choices=[self._choice(index, output) for index, output in enumerate(outputs)],
            usage=self._usage(),
        )

    async def stream(self, *, with_usage: bool) -> AsyncGenerator[bytes, None]:
        has_begun = [False] * self._n
        async with self._call() as call:
            async for news in self._news(call):
                parts = []
                for sequence, one in news:
                    if not has_begun[sequence]:
                        has_begun[sequence] = True
                        parts.append(self._chunk(sequence, Delta(role="assistant", content="")))
                    parts += self._chunks(sequence, one)
                for chunk in parts:
                    chunk.usage = None if with_usage else UNSET
                yield b"".join(map(event, parts))
        usage = self._usage()
        if with_usage:
            yield event(self._chunk(None, Delta(), usage=usage))
        yield DONE

    def _call(self) -> AbstractAsyncContextManager[Call]:
        return self._service.call(
            self._request,
            [self._task.job],
            timeout_s=self._body.timeout_s,
            salt=self._body.cache_salt,
            locate=self._task.locate,
        )

    async def _news(self, call: Call) -> AsyncGenerator[list[tuple[int, News]], None]:
        async for pieces in call.pieces():
            self._service.note(record_of(self._request.scope), pieces)
            news = [(piece.sequence, self._readers[piece.sequence].read(piece)) for piece in pieces]
            for sequence, one in news:
                if one.ending is not None:
                    self._endings[sequence] = one.ending
            yield news

    def _usage(self) -> UsageBody:
        return usage_of(self._endings, n=self._n, record=record_of(self._request.scope))

    def _choice(self, index: int, output: WholeOutput) -> ChatChoice:
        calls = [_whole_call(call) for call in output.calls]
        return ChatChoice(
            index=index,
            message=AnswerMessage(
                content=None if calls and not output.text else output.text,
                reasoning_content=output.thought or UNSET,
                tool_calls=calls or UNSET,
            ),
            logprobs=self._logprobs(output),
            finish_reason=output.finish,
            stop_reason=output.ending.stop_reason if output.ending is not None else None,
            captures=(output.ending.captures if output.ending is not None else {}) or UNSET,
        )

    def _logprobs(self, source: WholeOutput | News) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(self._service.engine.tokenizer, source.logprobs)

    def _chunks(self, sequence: int, news: News) -> list[ChatChunk]:
        """One chunk an event; logprobs go with the first, the finish reason comes alone."""
        deltas = [_delta(one) for one in news.events]
        logprobs = self._logprobs(news)
        if logprobs is not None and logprobs.content and not deltas:
            deltas.append(Delta())
        chunks = [self._chunk(sequence, delta) for delta in deltas]
        if chunks:
            chunks[0].choices[0].logprobs = logprobs
        if news.finish is not None:
            last = self._chunk(sequence, Delta())
            last.choices[0].finish_reason = news.finish
            chunks.append(last)
        return chunks

    def _chunk(
        self, sequence: int | None, delta: Delta, *, usage: UsageBody | None = None
    ) -> ChatChunk:
        choices = [] if sequence is None else [ChunkChoice(index=sequence, delta=delta)]
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._service.model_name,
            choices=choices,
            usage=usage if usage is not None else UNSET,
        )


def _delta(one: Event) -> Delta:
    match one:
        case ThoughtDelta(text):
            return Delta(reasoning_content=text)
        case TextDelta(text):
            return Delta(content=text)
        case CallStarted(index, call_id, tool) if tool.kind == "function":
            function = FunctionDelta(name=tool.name)
            return Delta(
                tool_calls=[
                    ToolCallDelta(index=index, id=call_id, type="function", function=function)
                ]
            )
        case CallStarted(index, call_id, tool):
            custom = CustomDelta(name=tool.name)
            return Delta(
                tool_calls=[ToolCallDelta(index=index, id=call_id, type="custom", custom=custom)]
            )
        case CallDelta(index, text, tool) if tool.kind == "function":
            return Delta(
                tool_calls=[ToolCallDelta(index=index, function=FunctionDelta(arguments=text))]
            )
        case CallDelta(index, text, _):
            return Delta(tool_calls=[ToolCallDelta(index=index, custom=CustomDelta(input=text))])


def _whole_call(call: WholeCall) -> ToolCall:
    if call.tool.kind == "function":
        function = CalledFunction(name=call.tool.name, arguments=call.text)
        return ToolCall(id=call.call_id, type="function", function=function)
    custom = CalledCustom(name=call.tool.name, input=call.text)
    return ToolCall(id=call.call_id, type="custom", custom=custom)


def _conversation(body: ChatBody) -> Conversation:
    _refuse_unsupported(body)
    options = sampling_options(body)
    options["max_tokens"] = _max_tokens(body)
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    effort = body.reasoning_effort
    variables: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if effort == "none":
        variables["enable_thinking"] = False
    variables |= body.chat_template_kwargs or {}
    return Conversation(
        messages=body.messages,
        options=options,
        plan=plan_of(body),
        wanted=constraint_of(body),
        is_thinking=variables.get("enable_thinking") is not False,
        template_vars=variables,
    )


def _max_tokens(body: ChatBody) -> int | None:
    if body.max_completion_tokens is not None and body.max_tokens is not None:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens were given together; give max_completion_tokens",
            param="max_tokens",
        )
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _refuse_unsupported(body: ChatBody) -> None:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest(
            "top_logprobs was given without logprobs=true; set logprobs, too", param="top_logprobs"
        )
    if body.modalities is not None and body.modalities != ["text"]:
        raise UnsupportedField(
            f"modalities={body.modalities} is not supported: this model writes ['text']",
            param="modalities",
        )
    if body.verbosity not in (None, "medium"):
        raise UnsupportedField(
            f"verbosity={body.verbosity!r} is not supported: say in a message how long the answer "
            "should be",
            param="verbosity",
        )
    reserved = _RESERVED_VARS & (body.chat_template_kwargs or {}).keys()
    if reserved:
        raise InvalidRequest(
            f"chat_template_kwargs may not hold {', '.join(sorted(reserved))}: they have fields of "
            "their own",
            param="chat_template_kwargs",
        )
