"""`/v1/chat/completions` over a scripted model."""

import json
from typing import Any

import jsonschema
import pytest
from unit.server.chats import (
    BACK_REFERENCE,
    CHAT,
    CITY,
    FORTY_TWO,
    LIST,
    TOOLS,
    both,
)
from unit.server.scripted_engine import MODEL, server, user


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


def test_the_parts_that_a_grammar_names_are_in_the_answer() -> None:
    grammar = 'start: "to " city\ncity[capture]: /[A-Z][a-z]+/ "!"'
    with server() as made:
        made.script("to Oslo!")
        named = made.post(CHAT, {"messages": user(), "guided_grammar": grammar})
        plain = made.post(CHAT, {"messages": user(), "guided_regex": "to Oslo!"})

    choice = named.json["choices"][0]
    assert choice["message"]["content"] == "to Oslo!"
    assert choice["captures"] == {"city": [{"text": "Oslo!", "start": 3, "end": 8}]}
    assert "captures" not in plain.json["choices"][0]


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
