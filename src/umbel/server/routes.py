"""The routes of the server: one list, from which the application and its OpenAPI document are made.

Further routes (batches, programs, a dashboard) are further lists, given to `make_app`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from umbel.server import native
from umbel.server.chat import chat_completions
from umbel.server.completions import completions
from umbel.server.protocol.chat import ChatAnswer, ChatBody, ChatChunk
from umbel.server.protocol.completions import CompletionAnswer, CompletionBody
from umbel.server.protocol.native import (
    DetokenizeAnswer,
    DetokenizeBody,
    FlushAnswer,
    GrammarAnswer,
    GrammarBody,
    HealthAnswer,
    ModelCard,
    ModelList,
    ScoreAnswer,
    ScoreBody,
    TokenizeAnswer,
    TokenizeBody,
)
from umbel.server.protocol.responses import ResponseEvent, ResponseObject, ResponsesBody
from umbel.server.responses import responses
from umbel.server.scoring import score
from umbel.server.service import Service

Handler = Callable[[Service, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path, and the structs that describe it. `media_type` is that of an answer
    without a struct.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    event: Any = None  # of its streams: a struct, or a union of structs
    media_type: str = "application/json"
    errors: tuple[int, ...] = ()


GENERATING = (400, 404, 413, 429, 500, 503, 504)
_CHECKED = (400, 404, 413, 500)

ROUTES: Sequence[Route] = (
    Route("GET", "/v1/models", native.models, "List the models", answer=ModelList),
    Route(
        "GET", "/v1/models/{name:path}", native.model, "Describe a model",
        answer=ModelCard, errors=(404,),
    ),
    Route(
        "POST", "/v1/completions", completions, "Go on from a text",
        body=CompletionBody, answer=CompletionAnswer, event=CompletionAnswer, errors=GENERATING,
    ),
    Route(
        "POST", "/v1/chat/completions", chat_completions, "Answer a conversation",
        body=ChatBody, answer=ChatAnswer, event=ChatChunk, errors=GENERATING,
    ),
    Route(
        "POST", "/v1/responses", responses, "Answer a conversation, as items",
        body=ResponsesBody, answer=ResponseObject, event=ResponseEvent, errors=GENERATING,
    ),
    Route(
        "POST", "/v1/score", score, "Choose among labels",
        body=ScoreBody, answer=ScoreAnswer, errors=GENERATING,
    ),
    Route(
        "POST", "/v1/grammars/check", native.check_grammar, "Compile a grammar",
        body=GrammarBody, answer=GrammarAnswer, errors=_CHECKED,
    ),
    Route(
        "POST", "/tokenize", native.tokenize, "Text to tokens",
        body=TokenizeBody, answer=TokenizeAnswer, errors=_CHECKED,
    ),
    Route(
        "POST", "/detokenize", native.detokenize, "Tokens to text",
        body=DetokenizeBody, answer=DetokenizeAnswer, errors=_CHECKED,
    ),
    Route("GET", "/health", native.health, "Whether the process answers", answer=HealthAnswer),
    Route(
        "GET", "/ready", native.ready, "Whether it takes work",
        answer=HealthAnswer, errors=(503,),
    ),
    Route("GET", "/metrics", native.metrics, "Prometheus metrics", media_type="text/plain"),
    Route(
        "POST", "/flush_cache", native.flush_cache, "Forget cached prefixes", answer=FlushAnswer
    ),
)  # fmt: skip
