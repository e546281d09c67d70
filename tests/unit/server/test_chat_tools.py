"""Tools of `/v1/chat/completions`: calls that follow their schemas and grammars."""

import json
from typing import Any

import jsonschema
import pytest
from unit.server.chats import (
    ADD,
    BACK_REFERENCE,
    CHAT,
    CITY,
    TOOLS,
    both,
)
from unit.server.scripted_engine import TEMPLATE, hermes, server, user


def test_required_calls_follow_the_schemas_of_their_tools() -> None:
    text = hermes("weather", '{"city": "Rome"}') + "\n" + hermes("add", '{"a": 1, "b": 23}')
    with server() as made:
        made.script(text)
        answer = both(made, {"messages": user(), "tools": TOOLS, "tool_choice": "required"})

    calls = [call["function"] for call in answer["tool_calls"]]
    assert [call["name"] for call in calls] == ["weather", "add"]
    assert json.loads(calls[1]["arguments"]) == {"a": 1, "b": 23}
    assert answer["finish_reason"] == "tool_calls"
    assert answer["content"] == ""


def test_a_model_that_would_rather_chat_calls_the_named_tool() -> None:
    choice = {"type": "function", "function": {"name": "add"}}
    with server() as made:
        made.script("I would rather not")
        answer = both(made, {"messages": user(), "tools": TOOLS, "tool_choice": choice})

    (call,) = answer["tool_calls"]
    assert call["function"]["name"] == "add"
    jsonschema.validate(json.loads(call["function"]["arguments"]), ADD)
    assert answer["finish_reason"] == "tool_calls"


def test_without_parallel_calls_there_is_one() -> None:
    with server() as made:
        made.script(hermes("weather", '{"city": "Rome"}') * 2)
        answer = both(
            made,
            {
                "messages": user(), "tools": TOOLS, "tool_choice": "required",
                "parallel_tool_calls": False,
            },
        )  # fmt: skip

    assert len(answer["tool_calls"]) == 1


def test_auto_finds_calls_in_text() -> None:
    call = hermes("weather", '{"city": "Rome"}')
    with server() as made:
        made.script(f"I look.\n{call}")
        called = both(made, {"messages": user(), "tools": TOOLS})
        made.script("No need <to> look.")
        plain = both(made, {"messages": user(), "tools": TOOLS, "tool_choice": "auto"})

    assert called["content"] == "I look."
    assert called["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    assert called["finish_reason"] == "tool_calls"
    assert plain["content"] == "No need <to> look."
    assert plain["finish_reason"] == "stop"


def test_auto_keeps_the_arguments_of_a_call_to_its_schema() -> None:
    with server() as made:
        made.script("Fine: " + hermes("weather", '{"town": 3}'))
        answer = both(made, {"messages": user(), "tools": TOOLS, "max_tokens": 200})

    (call,) = answer["tool_calls"]
    assert answer["content"] == "Fine:"
    jsonschema.validate(json.loads(call["function"]["arguments"]), CITY)


@pytest.mark.parametrize("text", ["{ no json", "<tool_call> of add"])
def test_a_format_and_tools_give_the_format_or_a_call(text: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": CITY}}
    body = {"messages": user(), "tools": TOOLS, "response_format": form, "max_tokens": 200}
    with server() as made:
        made.script(text)
        answer = both(made, body)

    if text.startswith("<"):
        assert answer["finish_reason"] == "tool_calls"
    else:
        jsonschema.validate(json.loads(answer["content"]), CITY)


def test_the_format_of_calls_is_the_models_own_and_may_have_special_tokens() -> None:
    template = TEMPLATE + "{# [TOOL_CALLS] [ARGS] {{ tools }} #}"
    with server(template=template, specials=("[TOOL_CALLS]", "[ARGS]")) as made:
        made.script('Hm. [TOOL_CALLS]weather[ARGS]{"city": "Rome"}')
        answer = both(made, {"messages": user(), "tools": TOOLS})

    assert answer["content"] == "Hm."
    assert answer["tool_calls"] == [
        {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    ]


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_shown_on_request(skip: bool) -> None:
    with server() as made:
        made.script("a<s>b")
        answer = both(made, {"messages": user(), "skip_special_tokens": skip})

    assert answer["content"] == ("ab" if skip else "a<s>b")


def test_with_tool_choice_none_nothing_is_called() -> None:
    text = hermes("weather", "{}")
    with server() as made:
        made.script(text)
        answer = both(made, {"messages": user(), "tools": TOOLS, "tool_choice": "none"})

    assert answer["content"] == text
    assert answer["tool_calls"] == []


def test_a_custom_tool_is_called_with_what_its_grammar_allows() -> None:
    grammar = {"syntax": "regex", "definition": "[0-9]{3}"}
    tool = {"name": "dial", "format": {"type": "grammar", "grammar": grammar}}
    body = {
        "messages": user(),
        "tools": [{"type": "custom", "custom": tool}],
        "tool_choice": {"type": "custom", "custom": {"name": "dial"}},
    }
    with server() as made:
        made.script("call 911")
        answer = both(made, body)

    (call,) = answer["tool_calls"]
    assert call["custom"]["name"] == "dial"
    assert call["custom"]["input"].isdigit()
    assert len(call["custom"]["input"]) == 3


DIAL = {
    "type": "custom",
    "custom": {
        "name": "dial",
        "format": {
            "type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{3}"},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_custom_tool_among_others_follows_its_grammar(choice: str) -> None:
    body = {"messages": user(), "tools": [*TOOLS, DIAL], "tool_choice": choice}
    before = "" if choice == "required" else "Let me see.\n"
    with server() as made:
        made.script(before + '<custom_call name="dial">\nx91' + "\n</custom_call>")
        answer = both(made, body)

    (call,) = answer["tool_calls"]
    assert answer["content"] == before.strip()
    assert call["custom"]["name"] == "dial"
    assert call["custom"]["input"].isdigit()
    assert len(call["custom"]["input"]) == 3


def test_calls_of_functions_and_custom_tools_stand_side_by_side() -> None:
    notes = {"type": "custom", "custom": {"name": "note"}}
    called = hermes("weather", '{"city": "Rome"}')
    with server() as made:
        made.script(f'{called}\n<custom_call name="note">\na <b>\nc\n</custom_call>')
        answer = both(made, {"messages": user(), "tools": [*TOOLS, notes]})

    assert [call["type"] for call in answer["tool_calls"]] == ["function", "custom"]
    assert answer["tool_calls"][1]["custom"]["input"] == "a <b>\nc"


def test_a_grammar_of_a_custom_tool_that_is_none_is_named() -> None:
    grammar = {"syntax": "lark", "definition": "start: nothing"}
    broken = {"name": "dial", "format": {"type": "grammar", "grammar": grammar}}
    tools = [*TOOLS, {"type": "custom", "custom": broken}]
    with server() as made:
        answer = made.post(CHAT, {"messages": user(), "tools": tools})

    assert answer.status == 400
    assert answer.error["param"] == "tools[2].custom.format"


def test_a_tools_schema_that_cannot_be_enforced_is_named() -> None:
    bad = {"type": "object", "properties": {"x": {"type": "string", "pattern": BACK_REFERENCE}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "bad", "parameters": bad}}]
    with server() as made:
        answer = made.post(CHAT, {"messages": user(), "tools": tools, "tool_choice": "required"})

    assert answer.status == 400
    assert answer.error["param"] == "tools[2].function.parameters"
    assert answer.error["where"] == "/properties/x/pattern"


def test_tools_are_described_to_templates_that_do_not_know_them() -> None:
    seen = []
    with server() as made:
        made.script(lambda prompt: seen.append(prompt) or "ok")  # type: ignore[func-returns-value]
        made.post(CHAT, {"messages": user(), "tools": TOOLS})

    assert seen[0].startswith("[system]You can call these tools:")
    assert '"name":"weather"' in seen[0]


def test_tools_are_given_to_templates_that_know_them() -> None:
    template = (
        "{% for t in tools %}<{{ t.function.name }}>{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments.city }}{% endfor %}{% endfor %}"
    )
    seen = []
    history: list[dict[str, Any]] = [
        *user("hm"),
        {
            "role": "assistant", "content": None,
            "tool_calls": [{
                "id": "1", "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
            }],
        },
        {"role": "tool", "tool_call_id": "1", "content": "rain"},
    ]  # fmt: skip
    with server(template=template) as made:
        made.script(lambda prompt: seen.append(prompt) or "ok")  # type: ignore[func-returns-value]
        made.post(CHAT, {"messages": history, "tools": TOOLS})

    assert seen[0] == "<weather><add>hmOslorain"


def test_calls_and_results_are_written_out_for_other_templates() -> None:
    seen = []
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    history: list[dict[str, Any]] = [
        *user("hm"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    with server() as made:
        made.script(lambda prompt: seen.append(prompt) or "ok")  # type: ignore[func-returns-value]
        made.post(CHAT, {"messages": history})

    assert "[assistant]" + hermes("add", '{"a": 1}') in seen[0]
    assert "[user]<tool_response>\n2\n</tool_response>" in seen[0]


def test_an_answer_may_be_sent_back_as_it_came() -> None:
    with server() as made:
        message = made.post(CHAT, {"messages": user()}).json["choices"][0]["message"]
        answer = made.post(CHAT, {"messages": [*user(), message, *user("and?")]})

    assert answer.status == 200
