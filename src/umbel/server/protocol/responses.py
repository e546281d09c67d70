"""`/v1/responses`: bodies, answers and events."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from umbel.server.protocol.chat import ContentLogprob
from umbel.server.protocol.fields import HarmlessFields


class InputPart(msgspec.Struct, kw_only=True):
    """Only `input_text`, `output_text` and `refusal` are taken."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True):
    """A message, a call of a tool or its output, or a thought, as `type` says. Output items of an
    earlier answer may be sent back as they came.
    """

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    name: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[InputPart] | None = None


class TextFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of a text: "text", "json_object" or "json_schema"; the last has a schema."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: bool | dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # only "medium", the default


class GrammarFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class ResponseTool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A "function" or a "custom" tool; the tools that OpenAI runs itself are refused by name."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: bool | dict[str, Any] | None = None
    strict: bool | None = None  # arguments always follow the schema
    format: GrammarFormat | None = None


class ResponseToolName(msgspec.Struct, kw_only=True):
    type: str = "function"
    name: str | None = None


class ResponseToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["function", "custom", "allowed_tools"]
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ResponseToolName] | None = None


class Reasoning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    effort: str | None = None
    summary: Any = None  # thoughts are given as they are
    generate_summary: Any = None


class ResponsesStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: Any = None  # nothing is obfuscated


class ResponsesBody(HarmlessFields, kw_only=True):
    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None  # only "message.output_text.logprobs"
    text: TextConfig | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None  # only "disabled", the default
    background: bool | None = None  # only false
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    cache_salt: str | None = None
    timeout_s: float | None = None


class OutputText(msgspec.Struct, kw_only=True):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[ContentLogprob] = []


class ReasoningText(msgspec.Struct, kw_only=True):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class MessageItem(msgspec.Struct, kw_only=True):
    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, kw_only=True):
    type: Literal["reasoning"] = "reasoning"
    id: str
    status: ItemStatus
    summary: list[Any] = []
    content: list[ReasoningText] = []


class FunctionCallItem(msgspec.Struct, kw_only=True):
    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class CustomCallItem(msgspec.Struct, kw_only=True):
    type: Literal["custom_tool_call"] = "custom_tool_call"
    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus


Item = Any  # one of the four items: msgspec tells structs apart by a tag only, and these have none


class InputTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, kw_only=True):
    reason: Literal["max_output_tokens"]


class ResponseError(msgspec.Struct, kw_only=True):
    code: str
    message: str


class ResponseObject(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[Item]
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: Any
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: Reasoning
    store: bool = False
    temperature: float
    text: TextConfig
    tool_choice: Any
    tools: list[ResponseTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: Any = None


class ResponseEvent(msgspec.Struct, kw_only=True):
    """Any event of a stream: `type` says which of the other fields there are."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: Item | UnsetType = UNSET
    part: Any = UNSET  # an OutputText or a ReasoningText
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    logprobs: list[ContentLogprob] | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET
