"""Reasoning models: the thought is free, the answer follows its constraint."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from unit.server.scripted_engine import TEMPLATE, ServerRig, hermes, server, user

from umbel.server.thinking import find_think_tags

CHAT = "/v1/chat/completions"
THINKING = TEMPLATE + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
OPENED = TEMPLATE + "<think>\n{# ends with </think> #}"
SPECIALS = ("<think>", "</think>")


@contextmanager
def thinker(
    answer: str, *, template: str = THINKING, specials: tuple[str, ...] = ()
) -> Iterator[ServerRig]:
    """A model that thinks "hm" and then writes `answer`."""

    def script(prompt: str) -> str:
        return answer if prompt.rstrip().endswith("</think>") else "hm</think> never read"

    with server(template=template, specials=specials) as made:
        made.script(script)
        yield made


@pytest.mark.parametrize("specials", [(), SPECIALS])
@pytest.mark.parametrize("template", [THINKING, OPENED])
def test_a_thought_is_told_apart_from_the_answer(template: str, specials: tuple[str, ...]) -> None:
    with thinker("yes", template=template, specials=specials) as made:
        answer = made.post(CHAT, {"messages": user()})

    choice = answer.json["choices"][0]
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["message"]["content"] == "yes"
    assert choice["finish_reason"] == "stop"
    details = answer.json["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < answer.json["usage"]["completion_tokens"]


def test_the_constraint_begins_after_the_thought() -> None:
    with thinker("no digits") as made:
        plain = made.post(CHAT, {"messages": user(), "regex": "[0-9]{3}"})
        stream = made.post(CHAT, {"messages": user(), "regex": "[0-9]{3}", "stream": True})

    message = plain.json["choices"][0]["message"]
    assert message["reasoning_content"] == "hm"
    assert message["content"].isdigit()
    deltas = [choice["delta"] for chunk in stream.chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]


def test_every_sequence_thinks_for_itself() -> None:
    with thinker("yes") as made:
        answer = made.post(CHAT, {"messages": user(), "n": 3, "regex": "[a-z]+"})

    messages = [choice["message"] for choice in answer.json["choices"]]
    assert [message["reasoning_content"] for message in messages] == ["hm"] * 3
    assert [message["content"] for message in messages] == ["yes"] * 3


@pytest.mark.parametrize(
    "fields", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
def test_thinking_can_be_turned_off(fields: dict[str, Any]) -> None:
    with thinker("yes") as made:
        answer = made.post(CHAT, {"messages": user(), **fields})

    message = answer.json["choices"][0]["message"]
    assert message["content"] == "yes"
    assert "reasoning_content" not in message


def test_a_thought_that_takes_all_tokens_leaves_no_answer() -> None:
    with thinker("yes") as made:
        answer = made.post(CHAT, {"messages": user(), "max_tokens": 1})

    choice = answer.json["choices"][0]
    assert choice["message"]["reasoning_content"] == "h"
    assert choice["message"]["content"] == ""
    assert choice["finish_reason"] == "length"
    assert answer.json["usage"]["completion_tokens"] == 1


def test_thought_and_answer_share_the_limit() -> None:
    with thinker("a long answer") as made:
        answer = made.post(CHAT, {"messages": user(), "max_tokens": 12})

    assert answer.json["usage"]["completion_tokens"] == 12
    assert answer.json["choices"][0]["finish_reason"] == "length"


def test_tools_are_called_after_the_thought() -> None:
    tools = [{"type": "function", "function": {"name": "go"}}]
    body = {"messages": user(), "tools": tools, "tool_choice": "required"}
    with thinker(hermes("go", "{}")) as made:
        answer = made.post(CHAT, body)

    message = answer.json["choices"][0]["message"]
    assert message["reasoning_content"] == "hm"
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {}


def test_a_thought_is_an_item_of_a_response() -> None:
    with thinker("yes") as made:
        plain = made.post("/v1/responses", {"input": "hi"})
        stream = made.post("/v1/responses", {"input": "hi", "stream": True})

    thought, message = plain.json["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "yes"
    deltas = [d["delta"] for n, d in stream.events if n == "response.reasoning_text.delta"]
    assert "".join(deltas) == "hm"


def test_a_model_without_tags_does_not_think() -> None:
    with server() as made:
        assert find_think_tags(made.engine.tokenizer) is None
