"""Umbel's own routes: tokens, scores, grammars, health, metrics, the cache; and the models."""

import asyncio
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from umbel.grammar import Constraint, GrammarError, check
from umbel.runtime.errors import InvalidConstraint, InvalidRequest
from umbel.runtime.generation import encode_prompt
from umbel.runtime.params import CONSTRAINT_KINDS, SamplingParams
from umbel.server.answers import json_response
from umbel.server.bodies import BodyDecoder
from umbel.server.messages import template_messages
from umbel.server.metrics import CONTENT_TYPE
from umbel.server.protocol.chat import ChatMessage
from umbel.server.protocol.native import (
    DetokenizeAnswer,
    DetokenizeBody,
    FlushAnswer,
    GrammarAnswer,
    GrammarBody,
    HealthAnswer,
    InstanceAnswer,
    ModelCard,
    ModelList,
    TokenizeAnswer,
    TokenizeBody,
)
from umbel.server.service import Service

_TOKENIZE = BodyDecoder(TokenizeBody)
_DETOKENIZE = BodyDecoder(DetokenizeBody)
_GRAMMAR = BodyDecoder(GrammarBody)
_STARTED = int(time.time())


async def models(service: Service, request: Request) -> Response:
    """Handler of `GET /v1/models`."""
    return json_response(ModelList(data=[_card(service)]))


async def model(service: Service, request: Request) -> Response:
    """Handler of `GET /v1/models/{name}`."""
    service.check_model(request.path_params["name"])
    return json_response(_card(service))


async def tokenize(service: Service, request: Request) -> Response:
    """Handler of `POST /tokenize`."""
    body = await service.body(request, _TOKENIZE)
    service.check_model(body.model)
    ids = await service.work(_tokenize, service, body)
    strs = None
    if body.return_token_strs:
        pieces = [service.engine.tokenizer.bytes_of(i, skip_special=False) for i in ids]
        strs = [piece.decode("utf-8", errors="replace") for piece in pieces]
    return json_response(
        TokenizeAnswer(
            tokens=ids,
            count=len(ids),
            max_model_len=service.engine.context_len,
            token_strs=strs,
        )
    )


async def detokenize(service: Service, request: Request) -> Response:
    """Handler of `POST /detokenize`."""
    body = await service.body(request, _DETOKENIZE)
    service.check_model(body.model)
    size = service.engine.tokenizer.vocab_size
    for token_id in body.tokens:
        if not 0 <= token_id < size:
            raise InvalidRequest(
                f"tokens holds {token_id}; the ids are 0 to {size - 1}", param="tokens"
            )
    text = service.engine.tokenizer.decode(body.tokens, skip_special=False)
    return json_response(DetokenizeAnswer(prompt=text))


async def check_grammar(service: Service, request: Request) -> Response:
    """Handler of `POST /v1/grammars/check`: can this be enforced exactly?"""
    body = await service.body(request, _GRAMMAR)
    options = {name: getattr(body, name) for name in CONSTRAINT_KINDS}
    given = {name: value for name, value in options.items() if value is not None}
    if len(given) != 1:
        raise InvalidRequest(
            f"expected exactly one of {', '.join(CONSTRAINT_KINDS)}, got {len(given)}"
        )
    params = SamplingParams(**given)
    answer = await asyncio.to_thread(_check, service, params, body.instance)
    return json_response(answer)


async def health(service: Service, request: Request) -> Response:
    """Handler of `GET /health`: the process answers."""
    answer = HealthAnswer(
        status="draining" if service.is_draining else "ok", model=service.model_name
    )
    return json_response(answer)


async def ready(service: Service, request: Request) -> Response:
    """Handler of `GET /ready`: it takes work."""
    service.check_takes_work()
    return json_response(HealthAnswer(status="ok", model=service.model_name))


async def metrics(service: Service, request: Request) -> Response:
    """Handler of `GET /metrics`."""
    text = await service.work(service.metrics.render)
    return Response(text, headers={"content-type": CONTENT_TYPE})


async def flush_cache(service: Service, request: Request) -> Response:
    """Handler of `POST /flush_cache`."""
    num_freed = await service.work(service.engine.reset_cache)
    return json_response(FlushAnswer(freed_blocks=num_freed))


def encode_input(
    service: Service, prompt: str | Sequence[int] | None, messages: list[ChatMessage] | None
) -> list[int]:
    """The tokens of a prompt or of messages with the answer opened. Runs in a worker."""
    if (prompt is None) == (messages is None):
        raise InvalidRequest("give either a prompt or messages", param="prompt")
    if messages is not None:
        converted = template_messages(messages, knows_tools=False, syntax=service.call_syntax)
        return service.engine.encode_chat(converted)
    assert prompt is not None
    return list(encode_prompt(service.engine, prompt))


def _tokenize(service: Service, body: TokenizeBody) -> list[int]:
    if body.prompt is not None and body.messages is None and not body.add_special_tokens:
        return service.engine.encode(body.prompt, special=True)
    if body.messages is not None and body.prompt is None and not body.add_generation_prompt:
        converted = template_messages(body.messages, knows_tools=False, syntax=service.call_syntax)
        return service.engine.encode_chat(converted, add_generation_prompt=False)
    return encode_input(service, body.prompt, body.messages)


def _check(service: Service, params: SamplingParams, instance: str | None) -> GrammarAnswer:
    report = check.check_grammar(lambda: _compiled(service, params))
    answer = GrammarAnswer(
        verdict=report.verdict,
        kind=params.constraint_kind or "",
        message=report.message,
        where=report.where,
        keyword=report.keyword,
        warnings=list(report.warnings),
        compile_ms=report.compile_ms,
        num_states=report.num_states,
        min_tokens=report.min_tokens,
        example=report.example,
    )
    if instance is not None and report.constraint is not None:
        try:
            read = check.check_instance(report.constraint, instance)
        except GrammarError as error:
            raise InvalidRequest(str(error), param="instance") from error
        answer.instance = InstanceAnswer(
            accepted=read.is_accepted,
            offset=read.offset,
            line=read.line,
            column=read.column,
            expected=list(read.expected),
        )
    return answer


def _compiled(service: Service, params: SamplingParams) -> Constraint:
    try:
        constraint = service.engine.compile_constraint(params)
    except InvalidConstraint as error:
        if isinstance(error.__cause__, GrammarError):
            raise error.__cause__ from error
        raise
    assert constraint is not None
    return constraint


def _card(service: Service) -> ModelCard:
    return ModelCard(
        id=service.model_name, created=_STARTED, max_model_len=service.engine.context_len
    )
