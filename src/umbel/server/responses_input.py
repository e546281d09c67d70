"""From the body of `/v1/responses` to a conversation."""

from collections.abc import Sequence
from typing import Any

from umbel.runtime.errors import InvalidRequest
from umbel.server.constraints import Wanted, format_constraint
from umbel.server.conversation import Conversation
from umbel.server.errors import UnsupportedField
from umbel.server.protocol.chat import CalledCustom, CalledFunction, ChatMessage, ToolCall
from umbel.server.protocol.fields import NamedSchema, ResponseFormat
from umbel.server.protocol.responses import (
    InputItem,
    InputPart,
    ResponsesBody,
    ResponseTool,
    ResponseToolChoice,
)
from umbel.server.tools import ToolPlan, ToolSpec, make_plan

LOGPROBS = "message.output_text.logprobs"
_HARMLESS_INCLUDES = {LOGPROBS, "reasoning.encrypted_content"}


def conversation_of(body: ResponsesBody) -> Conversation:
    """Raises `InvalidRequest` for what is not supported."""
    _refuse_unsupported(body)
    options: dict[str, Any] = {"max_tokens": body.max_output_tokens}
    for name in ("temperature", "top_p"):
        if getattr(body, name) is not None:
            options[name] = getattr(body, name)
    if LOGPROBS in (body.include or ()):
        options["logprobs"] = body.top_logprobs or 0
    effort = body.reasoning.effort if body.reasoning is not None else None
    variables: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if effort == "none":
        variables["enable_thinking"] = False
    return Conversation(
        messages=_messages(body),
        options=options,
        plan=_plan(body),
        wanted=_wanted(body),
        is_thinking=effort != "none",
        template_vars=variables,
    )


def _refuse_unsupported(body: ResponsesBody) -> None:
    if body.background:
        raise UnsupportedField("background=true is not supported", param="background")
    if body.truncation == "auto":
        raise UnsupportedField(
            "truncation='auto' is not supported: shorten the input yourself", param="truncation"
        )
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        raise UnsupportedField(
            f"text.verbosity={body.text.verbosity!r} is not supported: say in a message how long "
            "the answer should be",
            param="text.verbosity",
        )
    for name in body.include or ():
        if name not in _HARMLESS_INCLUDES:
            raise UnsupportedField(
                f"include has {name!r}; supported is {LOGPROBS!r}", param="include"
            )


def _messages(body: ResponsesBody) -> list[ChatMessage]:
    messages = []
    if body.instructions is not None:
        messages.append(ChatMessage(role="system", content=body.instructions))
    if isinstance(body.input, str):
        return [*messages, ChatMessage(role="user", content=body.input)]
    thought: str | None = None
    for index, item in enumerate(body.input):
        place = f"input[{index}]"
        if item.type == "reasoning":
            thought = _text(item.content or [], f"{place}.content")
            continue
        message = _message(item, place)
        if message.role == "assistant" and thought:
            message.reasoning_content = thought
        thought = None
        if messages and message.tool_calls and messages[-1].role == "assistant":
            messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), *message.tool_calls]
        else:
            messages.append(message)
    return messages


def _message(item: InputItem, place: str) -> ChatMessage:
    match item.type:
        case "message":
            if item.role is None:
                raise InvalidRequest(f"{place}.role is missing", param=f"{place}.role")
            content = _text(item.content or "", f"{place}.content")
            return ChatMessage(role=item.role, content=content)
        case "function_call":
            function = CalledFunction(name=item.name or "", arguments=item.arguments or "{}")
            call = ToolCall(id=item.call_id or "", function=function)
            return ChatMessage(role="assistant", tool_calls=[call])
        case "custom_tool_call":
            custom = CalledCustom(name=item.name or "", input=item.input or "")
            call = ToolCall(id=item.call_id or "", type="custom", custom=custom)
            return ChatMessage(role="assistant", tool_calls=[call])
        case "function_call_output" | "custom_tool_call_output":
            output = _text(item.output or "", f"{place}.output")
            return ChatMessage(role="tool", content=output, tool_call_id=item.call_id)
    raise UnsupportedField(
        f"{place}.type={item.type!r} is not supported; accepted are 'message', 'function_call', "
        "'function_call_output', 'custom_tool_call', 'custom_tool_call_output' and 'reasoning'",
        param=f"{place}.type",
    )


def _text(content: str | Sequence[InputPart], place: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise UnsupportedField(
                f"{place}[{index}] is a part of type {part.type!r}; this model takes text only",
                param=f"{place}[{index}].type",
            )
        texts.append(text)
    return "".join(texts)


def _wanted(body: ResponsesBody) -> Wanted | None:
    if body.text is None or body.text.format is None:
        return None
    given = body.text.format
    schema = NamedSchema(name=given.name or "", schema=given.schema)
    wanted = format_constraint(ResponseFormat(type=given.type, json_schema=schema), "text.format")
    if wanted is not None and given.type == "json_schema":
        return Wanted(wanted.kind, wanted.source, "text.format.schema")
    return wanted


def _plan(body: ResponsesBody) -> ToolPlan | None:
    choice = body.tool_choice
    if not body.tools and choice in (None, "none", "auto"):
        return None
    tools = [_spec(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())]
    is_parallel = body.parallel_tool_calls is not False
    if not isinstance(choice, ResponseToolChoice):
        return make_plan(tools, mode=choice or "auto", is_parallel=is_parallel)
    if choice.type == "allowed_tools":
        names = [(one.type, one.name or "") for one in choice.tools or ()]
        mode = choice.mode or "auto"
        return make_plan(tools, mode=mode, names=names, is_parallel=is_parallel)
    names = [(choice.type, choice.name or "")]
    return make_plan(tools, mode="required", names=names, is_named=True)


def _spec(tool: ResponseTool, place: str) -> ToolSpec:
    if tool.type == "function":
        return ToolSpec("function", tool.name, place, tool.description, tool.parameters)
    if tool.type != "custom":
        raise UnsupportedField(
            f"{place}.type={tool.type!r} is not supported; accepted are 'function' and 'custom'",
            param=f"{place}.type",
        )
    grammar = None
    if tool.format is not None and tool.format.type == "grammar":
        if tool.format.syntax is None or tool.format.definition is None:
            raise InvalidRequest(
                f"{place}.format needs 'syntax' and 'definition'", param=f"{place}.format"
            )
        grammar = (tool.format.syntax, tool.format.definition)
    return ToolSpec("custom", tool.name, place, tool.description, grammar=grammar)
