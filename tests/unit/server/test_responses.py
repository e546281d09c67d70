"""`/v1/responses` over a scripted model: items, events, tools, formats."""

import json
from typing import Any

import pytest
from unit.server.scripted_engine import Answer, hermes, server

RESPONSES = "/v1/responses"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "name": "check", "parameters": SCHEMA, "strict": True}


def types(answer: Answer) -> list[str]:
    return [data["type"] for _, data in answer.events]


def without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if isinstance(value, dict):
        volatile = ("id", "call_id", "created_at", "usage")
        return {k: without_ids(v) for k, v in value.items() if k not in volatile}
    return value


def test_a_text_is_a_message_item_with_usage() -> None:
    with server() as made:
        made.script("hello")
        answer = made.post(RESPONSES, {"input": "hi", "instructions": "be kind"})

    (item,) = answer.json["output"]
    assert answer.json["status"] == "completed"
    assert item["content"] == [
        {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
    ]
    assert answer.json["usage"]["output_tokens"] == 6
    assert answer.json["usage"]["input_tokens"] == len("[system]be kind\n[user]hi\n[assistant]")


def test_the_events_of_a_stream_come_in_order_and_end_with_the_whole_response() -> None:
    with server() as made:
        made.script("hey")
        whole = made.post(RESPONSES, {"input": "hi"})
        answer = made.post(RESPONSES, {"input": "hi", "stream": True})

    order = list(dict.fromkeys(types(answer)))
    assert order == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [name for name, _ in answer.events] == types(answer)
    numbers = [data["sequence_number"] for _, data in answer.events]
    assert numbers == list(range(len(numbers)))
    last = answer.events[-1][1]["response"]
    assert without_ids(last) == without_ids(whole.json)


def test_an_answer_that_was_cut_is_incomplete() -> None:
    with server() as made:
        plain = made.post(RESPONSES, {"input": "hi", "max_output_tokens": 2})
        stream = made.post(RESPONSES, {"input": "hi", "max_output_tokens": 2, "stream": True})

    assert plain.json["status"] == "incomplete"
    assert plain.json["incomplete_details"] == {"reason": "max_output_tokens"}
    assert plain.json["output"][0]["status"] == "incomplete"
    assert types(stream)[-1] == "response.incomplete"


def test_an_empty_answer_is_a_message_without_text() -> None:
    with server() as made:
        made.script("")
        answer = made.post(RESPONSES, {"input": "hi"})

    assert answer.json["output"][0]["content"][0]["text"] == ""


def test_a_format_is_followed() -> None:
    form = {"type": "json_schema", "name": "check", "schema": SCHEMA, "strict": True}
    with server() as made:
        made.script("never")
        answer = made.post(RESPONSES, {"input": "hi", "text": {"format": form}})

    assert "ok" in json.loads(answer.json["output"][0]["content"][0]["text"])


def test_a_called_tool_is_an_item_whose_deltas_add_up() -> None:
    text = "\n".join(hermes("check", f'{{"ok": {ok}}}') for ok in ("true", "false"))
    body = {"input": "hi", "tools": [TOOL], "tool_choice": "required"}
    with server() as made:
        made.script(text)
        whole = made.post(RESPONSES, body)
        stream = made.post(RESPONSES, {**body, "stream": True})

    calls = whole.json["output"]
    assert [call["type"] for call in calls] == ["function_call", "function_call"]
    assert [call["arguments"] for call in calls] == ['{"ok": true}', '{"ok": false}']
    for index in (0, 1):
        deltas = [
            data["delta"]
            for _, data in stream.events
            if data["type"] == "response.function_call_arguments.delta"
            and data["output_index"] == index
        ]
        assert "".join(deltas) == calls[index]["arguments"]
    assert without_ids(stream.events[-1][1]["response"]) == without_ids(whole.json)


def test_a_conversation_with_calls_goes_on() -> None:
    seen = []
    items: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "well?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
        {"type": "function_call", "call_id": "c", "name": "check", "arguments": '{"ok":true}'},
        {"type": "function_call_output", "call_id": "c", "output": "fine"},
    ]
    with server() as made:
        made.script(lambda prompt: seen.append(prompt) or "ok")  # type: ignore[func-returns-value]
        first = made.post(RESPONSES, {"input": items, "tools": [TOOL]})
        again = made.post(RESPONSES, {"input": [*items, *first.json["output"]], "tools": [TOOL]})

    assert "<tool_response>\nfine\n</tool_response>" in seen[0]
    assert again.status == 200


def test_a_custom_tool_with_a_grammar_is_called() -> None:
    tool = {
        "type": "custom", "name": "dial",
        "format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{2}"},
    }  # fmt: skip
    choice = {"type": "custom", "name": "dial"}
    with server() as made:
        made.script("12")
        answer = made.post(RESPONSES, {"input": "hi", "tools": [tool], "tool_choice": choice})

    (call,) = answer.json["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "dial", "12")


def test_logprobs_are_included_on_request() -> None:
    body = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    with server() as made:
        made.script("ab")
        answer = made.post(RESPONSES, body)

    logprobs = answer.json["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": 3}}}},
         "text.format.schema"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    with server() as made:
        answer = made.post(RESPONSES, {"input": "hi", **changes})

    assert answer.status == 400
    assert answer.error["param"] == param
