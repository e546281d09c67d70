"""Umbel's own routes, and the list of models."""

from typing import Any, Literal

import msgspec

from umbel.grammar.check import Verdict
from umbel.server.protocol.chat import ChatMessage


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "umbel"
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A `prompt` (template text: special tokens count) or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True  # of a prompt: the model's bos in front
    add_generation_prompt: bool = True  # of messages
    return_token_strs: bool = False


class TokenizeAnswer(msgspec.Struct, kw_only=True):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tokens: list[int]
    model: str | None = None


class DetokenizeAnswer(msgspec.Struct, kw_only=True):
    prompt: str


class ScoreBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which of `labels` follows a `prompt`, or answers `messages`?

    `normalization`: "sum" compares whole texts, "mean" the mean over each label's tokens.
    """

    labels: list[str]
    prompt: str | list[int] | None = None
    messages: list[ChatMessage] | None = None
    normalization: Literal["sum", "mean"] = "sum"
    model: str | None = None
    cache_salt: str | None = None
    timeout_s: float | None = None


class LabelScore(msgspec.Struct, kw_only=True):
    label: str
    logprob: float
    num_tokens: int
    probability: float


class ScoreUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    cached_tokens: int
    scored_tokens: int


class ScoreAnswer(msgspec.Struct, kw_only=True):
    choice: str
    index: int
    probability: float
    scores: list[LabelScore]
    model: str
    usage: ScoreUsage


class GrammarBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Exactly one grammar; `instance` is a text to read with it."""

    json_schema: str | bool | dict[str, Any] | None = None
    regex: str | None = None
    choices: list[str] | None = None
    lark: str | None = None
    gbnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    instance: str | None = None


class InstanceAnswer(msgspec.Struct, kw_only=True):
    """If not accepted: the place of the first byte that does not fit, and what could have come."""

    accepted: bool
    offset: int
    line: int
    column: int
    expected: list[str]


class GrammarAnswer(msgspec.Struct, kw_only=True):
    """`exact`: outputs follow it exactly. `where` is a JSON Pointer or "line:column"."""

    verdict: Verdict
    kind: str
    message: str | None = None
    where: str | None = None
    keyword: str | None = None
    warnings: list[str] = []
    compile_ms: float  # of this call: next to nothing when it was compiled before
    num_states: int | None = None  # made so far: they are made as texts reach them
    min_tokens: int | None = None  # an upper bound on the length of its shortest output
    example: str | None = None
    instance: InstanceAnswer | None = None


class HealthAnswer(msgspec.Struct, kw_only=True):
    status: Literal["ok", "draining"]
    model: str


class FlushAnswer(msgspec.Struct, kw_only=True):
    freed_blocks: int
