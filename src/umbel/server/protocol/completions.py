"""`/v1/completions`."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from umbel.runtime.outputs import Captures
from umbel.server.protocol.fields import GenerationFields, UsageBody


class CompletionBody(GenerationFields, kw_only=True):
    prompt: str | list[str | int | list[int]]  # a text, texts, token ids, or lists of them
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None  # accepted when it equals n
    suffix: str | None = None  # accepted when empty


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: str | int | None = None  # vLLM's: the stop string or token
    captures: Captures | UnsetType = UNSET  # ours: what a Lark grammar names


class CompletionAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | None = None
    system_fingerprint: Any = None
