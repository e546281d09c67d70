"""Conversations as chat templates see them.

Templates that know tools get them as they are; for the others, tools, calls and their results are
written into the text of the messages.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from umbel.runtime.errors import InvalidRequest
from umbel.server.errors import UnsupportedField
from umbel.server.protocol.chat import ChatMessage, ContentPart, ToolCall
from umbel.server.tool_syntax import CUSTOM_END, CallSyntax, begin_of_custom
from umbel.server.tools import ToolPlan, describe_tools

_ROLES = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
    "tool": "tool",
}  # fmt: skip

TemplateMessage = dict[str, Any]


def template_messages(
    messages: Sequence[ChatMessage], *, knows_tools: bool, syntax: CallSyntax
) -> list[TemplateMessage]:
    """Messages for `Engine.encode_chat`. Raises `InvalidRequest` naming the message at fault."""
    if not messages:
        raise InvalidRequest("messages is empty: give at least one message", param="messages")
    converted = [
        _convert(message, f"messages[{index}]", knows_tools=knows_tools, syntax=syntax)
        for index, message in enumerate(messages)
    ]
    return converted if knows_tools else _merge_results(converted)


def with_tools_described(
    messages: list[TemplateMessage], plan: ToolPlan, syntax: CallSyntax | None
) -> list[TemplateMessage]:
    """The messages with a system text about the tools in front."""
    text = describe_tools(plan, syntax)
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
    return [first, *messages[1:]]


def text_of(content: str | list[ContentPart] | None, where: str) -> str:
    """The text of a message's content; other parts than text are refused."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "refusal") or text is None:
            raise UnsupportedField(
                f"{where}[{index}] is a part of type {part.type!r}; this model takes text only "
                "({'type': 'text', 'text': ...})",
                param=f"{where}[{index}].type",
            )
        texts.append(text)
    return "".join(texts)


def _convert(
    message: ChatMessage, where: str, *, knows_tools: bool, syntax: CallSyntax
) -> TemplateMessage:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequest(
            f"{where}.role={message.role!r} is not valid: expected one of {', '.join(_ROLES)}",
            param=f"{where}.role",
        )
    for name in ("audio", "function_call"):
        if getattr(message, name) is not None:
            raise UnsupportedField(f"{where}.{name} is not supported", param=f"{where}.{name}")
    content = text_of(message.content, f"{where}.content")
    converted: TemplateMessage = {"role": role, "content": content or message.refusal or ""}
    if message.name is not None:
        converted["name"] = message.name
    if message.tool_call_id is not None:
        converted["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        converted["reasoning_content"] = message.reasoning_content
    if knows_tools and message.tool_calls:
        converted["tool_calls"] = [_call(call) for call in message.tool_calls]
    elif message.tool_calls:
        calls = _calls_text(message.tool_calls, syntax)
        converted["content"] = f"{content}\n{calls}" if content else calls
    elif role == "tool" and not knows_tools:
        converted = {"role": "tool", "content": f"<tool_response>\n{content}\n</tool_response>"}
    return converted


def _call(call: ToolCall) -> dict[str, Any]:
    """Templates print the arguments as JSON, so they want the value, not its text."""
    name, arguments = _name_and_arguments(call)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": name, "arguments": _value(arguments)},
    }


def _calls_text(calls: Sequence[ToolCall], syntax: CallSyntax) -> str:
    """Calls as the model would have written them."""
    functions, customs = [], []
    for call in calls:
        name, text = _name_and_arguments(call)
        if isinstance(call.function, msgspec.UnsetType):
            customs.append(f"{begin_of_custom(name)}{text}{CUSTOM_END}")
        else:
            functions.append(f"{syntax.begin_of(name)}{text}{syntax.end}")
    if functions:
        texts = (syntax.between or "\n").join(functions)
        functions = [f"{syntax.open}{texts}{syntax.close}"]
    return "\n".join([*functions, *customs])


def _name_and_arguments(call: ToolCall) -> tuple[str, str]:
    if isinstance(call.function, msgspec.UnsetType):
        if isinstance(call.custom, msgspec.UnsetType):
            raise InvalidRequest(
                f"the tool call {call.id!r} has neither a 'function' nor a 'custom'",
                param="messages",
            )
        return call.custom.name, call.custom.input
    return call.function.name, call.function.arguments


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # the input of a custom tool, or arguments cut off
        return text


def _merge_results(messages: list[TemplateMessage]) -> list[TemplateMessage]:
    """Results of tools as user messages, adjacent ones as one: roles must alternate in most
    templates.
    """
    merged: list[TemplateMessage] = []
    is_after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result and is_after_result:
            merged[-1]["content"] += f"\n{message['content']}"
        elif is_result:
            merged.append({"role": "user", "content": message["content"]})
        else:
            merged.append(message)
        is_after_result = is_result
    return merged
