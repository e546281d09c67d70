"""Chats as the tests ask for them, whole and streamed."""

from typing import Any

from unit.server.scripted_engine import Answer, ServerRig

CHAT = "/v1/chat/completions"
BACK_REFERENCE = "(a)\\1"  # no regular language: refused by name
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
ADD = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
}
LIST = {"type": "array"}
FORTY_TWO = {"type": "const_string", "value": "42"}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD}},
]


def folded(answer: Answer) -> dict[str, Any]:
    """The chunks of a stream as the message they add up to."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    for chunk in answer.chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name, "")
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"type": call["type"], call["type"]: {}})
                grown = message["tool_calls"][call["index"]]
                for name, value in call.get(grown["type"], {}).items():
                    part = grown[grown["type"]]
                    part[name] = part.get(name, "") + value
            finish = choice["finish_reason"] or finish
    return {**message, "finish_reason": finish}


def whole(answer: Answer) -> dict[str, Any]:
    """A whole answer in the same shape."""
    choice = answer.json["choices"][0]
    message = choice["message"]
    calls = [
        {name: value for name, value in call.items() if name != "id"}
        for call in message.get("tool_calls", [])
    ]
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "tool_calls": calls,
        "finish_reason": choice["finish_reason"],
    }


def both(made: ServerRig, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a body, which is the same whole and streamed."""
    plain = made.post(CHAT, body)
    stream = made.post(CHAT, {**body, "stream": True})
    assert plain.status == stream.status == 200, (plain.body, stream.body)
    assert folded(stream) == whole(plain)
    return whole(plain)
