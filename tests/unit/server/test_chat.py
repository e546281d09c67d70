"""`/v1/chat/completions` over a scripted model: whole and streamed answers, tools, formats."""

import json
from typing import Any

import jsonschema
import pytest
from unit.server.scripted_engine import MODEL, TEMPLATE, Answer, ServerRig, hermes, server, user

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


def test_an_answer_has_text_finish_reason_and_usage() -> None:
    with server() as made:
        made.script("hello")
        answer = made.post(CHAT, {"model": MODEL, "messages": user("hi")})

    choice = answer.json["choices"][0]
    assert answer.json["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer.json["usage"] == {
        "prompt_tokens": len("[user]hi\n[assistant]"),
        "completion_tokens": 6,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_a_repeated_prompt_is_reported_as_cached() -> None:
    with server() as made:
        made.post(CHAT, {"messages": user("hi"), "max_tokens": 1})
        answer = made.post(CHAT, {"messages": user("hi"), "max_tokens": 1})

    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_stream_begins_with_the_role_and_ends_with_the_reason_and_done() -> None:
    with server() as made:
        made.script("hey")
        answer = made.post(CHAT, {"messages": user(), "stream": True})

    first, *_, last = answer.chunks
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert last["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop",
    }  # fmt: skip
    assert "usage" not in last
    assert answer.events[-1] == (None, "[DONE]")


def test_usage_comes_last_in_a_stream_that_asked_for_it() -> None:
    with server() as made:
        answer = made.post(
            CHAT,
            {"messages": user(), "stream": True, "stream_options": {"include_usage": True}},
        )

    *others, last = answer.chunks
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6
    assert all(chunk["usage"] is None for chunk in others)


def test_an_output_at_its_limit_ends_by_length() -> None:
    with server() as made:
        made.script("hello")
        answer = both(made, {"messages": user(), "max_completion_tokens": 3})

    assert answer["content"] == "hel"
    assert answer["finish_reason"] == "length"


def test_n_sequences_have_their_indexes_and_one_prompt() -> None:
    with server() as made:
        made.script("ab")
        plain = made.post(CHAT, {"messages": user(), "n": 3})
        stream = made.post(CHAT, {"messages": user(), "n": 3, "stream": True})

    assert [choice["index"] for choice in plain.json["choices"]] == [0, 1, 2]
    assert plain.json["usage"]["completion_tokens"] == 9
    assert plain.json["usage"]["prompt_tokens"] == 20
    ended = [c for chunk in stream.chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(choice["index"] for choice in ended) == [0, 1, 2]


def test_a_stop_string_is_cut_off_and_named() -> None:
    with server() as made:
        made.script("one END two")
        answer = made.post(CHAT, {"messages": user(), "stop": "END"})

    choice = answer.json["choices"][0]
    assert choice["message"]["content"] == "one "
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")


def test_logprobs_are_the_same_whole_and_streamed() -> None:
    body = {"messages": user(), "logprobs": True, "top_logprobs": 2}
    with server() as made:
        made.script("hé")
        plain = made.post(CHAT, body).json["choices"][0]["logprobs"]["content"]
        chunks = made.post(CHAT, {**body, "stream": True}).chunks

    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == plain
    assert [bytes(entry["bytes"]) for entry in plain] == [b"h", b"\xc3", b"\xa9"]
    assert [top["logprob"] for top in plain[0]["top_logprobs"]] == [-0.25, -1.5]


@pytest.mark.parametrize("max_tokens", [None, 40])
@pytest.mark.parametrize("strict", [True, False])
def test_a_json_schema_is_followed(strict: bool, max_tokens: int | None) -> None:
    schema = {"name": "city", "schema": CITY, "strict": strict}
    body = {
        "messages": user(),
        "max_tokens": max_tokens,
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    with server() as made:
        made.script("no json at all, whatever is asked")
        answer = both(made, body)

    jsonschema.validate(json.loads(answer["content"]), CITY)


def test_json_object_gives_any_object() -> None:
    with server() as made:
        made.script('{"a": [1, 2]}')
        answer = both(made, {"messages": user(), "response_format": {"type": "json_object"}})

    assert json.loads(answer["content"]) == {"a": [1, 2]}


def test_a_schema_that_cannot_be_enforced_is_refused_with_its_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": BACK_REFERENCE}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    with server() as made:
        answers = [
            made.post(CHAT, {"messages": user(), "response_format": form, "stream": stream})
            for stream in (False, True)
        ]

    for answer in answers:
        assert answer.status == 400
        assert answer.error["code"] == "unsupported_constraint"
        assert answer.error["param"] == "response_format.json_schema.schema"
        assert answer.error["where"] == "/properties/a/pattern"


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


def test_a_custom_tool_among_others_is_refused_by_name() -> None:
    tools = [*TOOLS, {"type": "custom", "custom": {"name": "dial"}}]
    with server() as made:
        answer = made.post(CHAT, {"messages": user(), "tools": tools})

    assert answer.status == 400
    assert answer.error["param"] == "tools[2].custom"
    assert "'dial'" in answer.error["message"]


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


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages[0].content[0].type"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"verbosity": "low"}, "verbosity"),
        ({"functions": []}, "functions"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tools": [{"type": "mcp"}]}, "tools[0].type"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
        ({"tool_choice": "required"}, "tools"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}},
         "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"ebnf": "root ::= missing"}, "ebnf"),
        ({"structural_tag": {"x": 1}}, "structural_tag"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": LIST}}]},
         "tools[0].function.parameters"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    with server() as made:
        answer = made.post(CHAT, {"messages": user(), **changes})

    assert answer.status == 400, answer.body
    assert answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"


def test_harmless_fields_and_nulls_change_nothing() -> None:
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto",
        "prompt_cache_key": "k", "safety_identifier": "s", "prediction": {}, "functions": None,
        "audio": None, "response_format": None, "stop": None,
    }  # fmt: skip
    with server() as made:
        plain = made.post(CHAT, {"messages": user()})
        answer = made.post(CHAT, {"messages": user(), **harmless})

    assert answer.json["choices"] == plain.json["choices"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"guided_regex": "[0-9]{2}"}, "42"),
        ({"regex": "[0-9]{2}"}, "42"),
        ({"guided_choice": ["42", "no"]}, "42"),
        ({"guided_json": {"const": 42}}, "42"),
        ({"guided_json": '{"const": 42}'}, "42"),
        ({"json_schema": '{"const": 42}'}, "42"),
        ({"guided_grammar": 'start: "4" "2"'}, "42"),
        ({"ebnf": 'root ::= "42"'}, "42"),
        ({"structural_tag": {"type": "structural_tag", "format": FORTY_TWO}}, "42"),
        ({"response_format": {"type": "structural_tag", "format": FORTY_TWO}}, "42"),
        (
            {
                "structured_outputs": {
                    "structural_tag": {"type": "structural_tag", "format": FORTY_TWO}
                }
            },
            "42",
        ),
        ({"structured_outputs": {"grammar": 'start: "42"'}}, "42"),
        ({"structured_outputs": {"regex": "[0-9]{2}"}}, "42"),
        ({"structured_outputs": {"choice": ["42"]}}, "42"),
        ({"structured_outputs": {"json": {"const": 42}}}, "42"),
    ],
)
def test_the_constraint_fields_of_other_servers_are_understood(
    fields: dict[str, Any], text: str
) -> None:
    with server() as made:
        made.script("42 is it")
        answer = both(made, {"messages": user(), **fields})

    assert answer["content"] == text
    assert answer["finish_reason"] == "stop"
