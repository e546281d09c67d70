"""`/v1/chat/completions`."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from umbel.runtime.outputs import Captures
from umbel.server.protocol.fields import GenerationFields, UsageBody


class ContentPart(msgspec.Struct, kw_only=True):
    """Only text is taken; parts of another `type` are refused by name."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: str


class CalledCustom(msgspec.Struct, kw_only=True):
    name: str
    input: str


class ToolCall(msgspec.Struct, kw_only=True):
    id: str = ""
    type: Literal["function", "custom"] = "function"
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustom | UnsetType = UNSET


class ChatMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One message of a conversation; an answer of this server may be sent back as it came."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: Any = None  # parts of answers that say nothing to a model
    audio: Any = None
    function_call: Any = None


class FunctionDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: bool | dict[str, Any] | None = None
    strict: bool | None = None  # arguments always follow the schema


class GrammarDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    syntax: Literal["lark", "regex"]
    definition: str


class CustomFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text", "grammar"]
    grammar: GrammarDefinition | None = None


class CustomDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    format: CustomFormat | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None


class ToolName(msgspec.Struct, kw_only=True):
    name: str


class ToolReference(msgspec.Struct, kw_only=True):
    type: str = "function"
    function: ToolName | None = None
    custom: ToolName | None = None


class AllowedTools(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[ToolReference]


class ToolChoiceObject(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function", "custom", "allowed_tools"]
    function: ToolName | None = None
    custom: ToolName | None = None
    allowed_tools: AllowedTools | None = None


class ChatBody(GenerationFields, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None  # ["text"]
    verbosity: Literal["low", "medium", "high"] | None = None  # only "medium", the default
    chat_template_kwargs: dict[str, Any] | None = None  # vLLM's: variables of the template


class TopLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(msgspec.Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    content: list[ContentLogprob]
    refusal: None = None


class AnswerMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


FinishName = Literal["stop", "length", "tool_calls"]


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishName
    stop_reason: str | int | None = None
    captures: Captures | UnsetType = UNSET  # ours: what a Lark grammar names


class ChatAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    system_fingerprint: Any = None


class FunctionDelta(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str = ""


class CustomDelta(msgspec.Struct, kw_only=True):
    name: str | UnsetType = UNSET
    input: str = ""


class ToolCallDelta(msgspec.Struct, kw_only=True):
    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class Delta(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishName | None = None


class ChatChunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    system_fingerprint: Any = None
