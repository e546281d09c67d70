"""The server as clients meet it: the `openai` package against a live server and the embedded
model.
"""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from umbel.runtime.engine import Engine
from umbel.server.app import make_app
from umbel.server.serving import DrainingServer, make_server
from umbel.server.settings import ServerSettings

REFUSED = {"type": "string", "pattern": "(a)\\1"}  # no regular language: refused by name
KEY = "key-for-tests"
MESSAGES: list[Any] = [{"role": "user", "content": "Tell me about Paris in a few words."}]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": ["string", "null"], "maxLength": 20},
    },
    "required": ["name", "age", "email"],
    "additionalProperties": False,
}
ORDER = {
    "type": "object",
    "properties": {
        "status": {"enum": ["open", "paid", "sent"]},
        "lines": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {"$ref": "#/$defs/line"},
        },
    },
    "required": ["status", "lines"],
    "additionalProperties": False,
    "$defs": {
        "line": {
            "type": "object",
            "properties": {
                "sku": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"},
                "count": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["sku", "count"],
            "additionalProperties": False,
        }
    },
}
SHAPE = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
            "required": ["kind", "radius"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "kind": {"const": "path"},
                "closed": {"type": "boolean"},
                "points": {
                    "type": "array",
                    "minItems": 2,
                    "maxItems": 3,
                    "items": {"type": "integer", "minimum": -9, "maximum": 9},
                },
            },
            "required": ["kind", "closed", "points"],
            "additionalProperties": False,
        },
    ]
}
SCHEMAS = {"person": PERSON, "order": ORDER, "shape": SHAPE}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer",
                           "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip


class Live:
    """A server in a thread, and clients of it."""

    def __init__(self, server: DrainingServer, port: int) -> None:
        self.server = server
        self.url = f"http://127.0.0.1:{port}/v1"
        self.client = OpenAI(base_url=self.url, api_key=KEY, max_retries=0)
        self.model = self.client.models.list().data[0].id


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Engine(context_len=2048) as engine:
        app = make_app(engine, ServerSettings(api_keys=(KEY,), drain_s=5))
        server = make_server(app, host="127.0.0.1", port=0)
        thread = threading.Thread(target=server.run, name="server")
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        made = Live(server, server.servers[0].sockets[0].getsockname()[1])
        try:
            yield made
        finally:
            made.client.close()
            server.drain()
            thread.join(timeout=30)
            assert not thread.is_alive()


def test_models_are_listed_and_retrieved(live: Live) -> None:
    card = live.client.models.retrieve(live.model)

    assert card.id == live.model
    assert card.object == "model"


def test_a_chat_is_the_same_whole_and_streamed(live: Live) -> None:
    options: dict[str, Any] = {
        "model": live.model, "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 12,
    }  # fmt: skip
    whole = live.client.chat.completions.create(**options)
    chunks = list(
        live.client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "length"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert (chunks[-1].usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_options_of_sampling_are_taken(live: Live) -> None:
    def answer(seed: int) -> list[str | None]:
        made = live.client.chat.completions.create(
            model=live.model, messages=MESSAGES, max_tokens=6, seed=seed, n=2, temperature=1.2,
            top_p=0.9, frequency_penalty=0.5, presence_penalty=0.5, stop=["\n\n"],
            logit_bias={"0": -100}, user="me",
        )  # fmt: skip
        return [choice.message.content for choice in made.choices]

    assert answer(5) == answer(5)
    assert len(answer(5)) == 2


def test_chat_logprobs_have_the_wanted_alternatives(live: Live) -> None:
    made = live.client.chat.completions.create(
        model=live.model, messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=3,
        temperature=0,
    )  # fmt: skip

    logprobs = made.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == made.choices[0].message.content
    assert all(len(entry.top_logprobs) == 3 for entry in logprobs.content)
    assert all(entry.top_logprobs[0].logprob >= entry.logprob for entry in logprobs.content)


@pytest.mark.parametrize("max_tokens", [100, "tight"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_constrained_answer_is_valid(
    live: Live, name: str, stream: bool, max_tokens: int | str
) -> None:
    limit = 100 if max_tokens == 100 else tight_limit(live, SCHEMAS[name])
    options: dict[str, Any] = {
        "model": live.model, "messages": MESSAGES, "max_tokens": limit, "seed": 1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": name, "schema": SCHEMAS[name], "strict": True},
        },
    }  # fmt: skip
    if stream:
        chunks = live.client.chat.completions.create(**options, stream=True)
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
    else:
        made = live.client.chat.completions.create(**options)
        text = made.choices[0].message.content or ""
        assert made.choices[0].finish_reason in ("stop", "length")

    jsonschema.validate(json.loads(text), SCHEMAS[name])


def tight_limit(live: Live, schema: dict[str, Any]) -> int:
    """The fewest tokens in which the server promises a complete answer."""
    answer = live.client.post(
        "/grammars/check", body={"json_schema": schema}, cast_to=dict[str, Any]
    )
    assert answer["verdict"] == "exact"
    return int(answer["min_tokens"])


class Step(BaseModel):
    explanation: str
    output: str


class Reasoned(BaseModel):
    steps: list[Step]
    answer: int


def test_parse_gives_a_pydantic_model(live: Live) -> None:
    made = live.client.chat.completions.parse(
        model=live.model, messages=MESSAGES, response_format=Reasoned, max_completion_tokens=60,
        seed=3,
    )  # fmt: skip

    assert isinstance(made.choices[0].message.parsed, Reasoned)


def test_the_stream_helper_gives_a_pydantic_model(live: Live) -> None:
    with live.client.chat.completions.stream(
        model=live.model, messages=MESSAGES, response_format=Step, max_completion_tokens=40, seed=3
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()

    assert isinstance(final.choices[0].message.parsed, Step)


def test_json_object_is_an_object(live: Live) -> None:
    made = live.client.chat.completions.create(
        model=live.model, messages=MESSAGES, max_tokens=30, seed=1,
        response_format={"type": "json_object"},
    )  # fmt: skip

    assert isinstance(json.loads(made.choices[0].message.content or ""), dict)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
@pytest.mark.parametrize("parallel", [False, True])
def test_tools_are_called_with_valid_arguments(live: Live, choice: Any, parallel: bool) -> None:
    options: dict[str, Any] = {
        "model": live.model, "messages": MESSAGES, "tools": [WEATHER], "tool_choice": choice,
        "parallel_tool_calls": parallel, "max_tokens": 60, "temperature": 0,
    }  # fmt: skip
    whole = live.client.chat.completions.create(**options)
    with live.client.chat.completions.stream(**options) as stream:
        streamed = stream.get_final_completion()

    calls = whole.choices[0].message.tool_calls
    assert calls
    if not parallel:
        assert len(calls) == 1
    for call in calls:
        assert call.type == "function"
        jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
    assert whole.choices[0].finish_reason == streamed.choices[0].finish_reason == "tool_calls"
    again = streamed.choices[0].message.tool_calls or []
    assert [c.function.arguments for c in again] == [c.function.arguments for c in calls]


def test_a_model_that_may_call_a_tool_calls_it_validly_or_answers(live: Live) -> None:
    made = live.client.chat.completions.create(
        model=live.model, messages=MESSAGES, tools=[WEATHER], max_tokens=40, temperature=0
    )

    choice = made.choices[0]
    for call in choice.message.tool_calls or []:
        assert call.type == "function"
        if choice.finish_reason == "tool_calls":
            jsonschema.validate(
                json.loads(call.function.arguments), WEATHER["function"]["parameters"]
            )
    assert choice.message.content or choice.message.tool_calls


def test_a_lark_grammar_is_followed(live: Live) -> None:
    made = live.client.chat.completions.create(
        model=live.model, messages=MESSAGES, max_tokens=30,
        extra_body={"guided_grammar": 'start: "I say " /[a-z]+/ "."'},
    )  # fmt: skip

    assert (made.choices[0].message.content or "").startswith("I say ")


def test_the_result_of_a_call_is_taken_back(live: Live) -> None:
    made = live.client.chat.completions.create(
        model=live.model, messages=MESSAGES, tools=[WEATHER], tool_choice="required",
        parallel_tool_calls=False, max_tokens=40, temperature=0,
    )  # fmt: skip
    calls = made.choices[0].message.tool_calls or []
    result: Any = {"role": "tool", "tool_call_id": calls[0].id, "content": "sunny"}
    answer = live.client.chat.completions.create(
        model=live.model, tools=[WEATHER], tool_choice="none", max_tokens=8,
        messages=[*MESSAGES, made.choices[0].message.model_dump(exclude_none=True), result],
    )  # fmt: skip

    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content


def test_a_completion_echoes_scores_and_streams(live: Live) -> None:
    options: dict[str, Any] = {
        "model": live.model, "prompt": "The capital of France is", "max_tokens": 4,
        "temperature": 0, "logprobs": 2,
    }  # fmt: skip
    echoed = live.client.completions.create(**options, echo=True)
    chunks = list(live.client.completions.create(**options, stream=True))

    choice = echoed.choices[0]
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert choice.text == "The capital of France is" + text
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.finish_reason == "length"


def test_completions_take_lists_and_tokens(live: Live) -> None:
    texts = live.client.completions.create(
        model=live.model, prompt=["One", "Two"], n=2, max_tokens=2, seed=1
    )
    tokens = live.client.completions.create(model=live.model, prompt=[[1, 2], [3]], max_tokens=2)

    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    assert len(tokens.choices) == 2


def test_a_response_has_text_and_streams_it(live: Live) -> None:
    options: dict[str, Any] = {
        "model": live.model, "input": "Say hello.", "instructions": "Be brief.",
        "max_output_tokens": 8, "temperature": 0,
    }  # fmt: skip
    whole = live.client.responses.create(**options)
    with live.client.responses.stream(**options) as stream:
        events = list(stream)

    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert whole.usage is not None
    assert whole.usage.output_tokens <= 8


def test_a_response_is_parsed_into_a_pydantic_model(live: Live) -> None:
    made = live.client.responses.parse(
        model=live.model, input="Go.", text_format=Step, max_output_tokens=40
    )

    assert isinstance(made.output_parsed, Step)


def test_a_response_calls_a_tool_whole_and_streamed(live: Live) -> None:
    function = WEATHER["function"]
    tool = {"type": "function", **function}
    options: dict[str, Any] = {
        "model": live.model, "input": "Weather?", "tools": [tool], "temperature": 0,
        "tool_choice": {"type": "function", "name": "get_weather"}, "max_output_tokens": 60,
    }  # fmt: skip
    whole = live.client.responses.create(**options)
    with live.client.responses.stream(**options) as stream:
        streamed = stream.get_final_response()

    (call,) = whole.output
    (again,) = streamed.output
    assert call.type == again.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), function["parameters"])
    assert again.arguments == call.arguments


def test_errors_are_those_of_the_package(live: Live) -> None:
    stranger = OpenAI(base_url=live.url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.NotFoundError) as missing:
        live.client.chat.completions.create(model="gpt-7", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as refused:
        live.client.chat.completions.create(
            model=live.model, messages=MESSAGES,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": REFUSED},
            },
        )  # fmt: skip
    with pytest.raises(openai.BadRequestError) as long:
        live.client.completions.create(model=live.model, prompt="x", max_tokens=5000)

    assert missing.value.code == "model_not_found"
    assert refused.value.code == "unsupported_constraint"
    assert refused.value.param == "response_format.json_schema.schema"
    assert long.value.code == "context_length_exceeded"


def test_a_client_that_closes_its_stream_stops_the_work(live: Live) -> None:
    metrics_url = live.url.removesuffix("/v1") + "/metrics"
    stream = live.client.chat.completions.create(
        model=live.model, messages=MESSAGES, max_tokens=1500, stream=True, temperature=0,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(iter(stream))
    stream.close()
    deadline_s = time.monotonic() + 5
    while (num_running := running(live, metrics_url)) and time.monotonic() < deadline_s:
        time.sleep(0.05)

    assert num_running == 0


def running(live: Live, url: str) -> float:
    text = live.client._client.get(url).text
    (line,) = [one for one in text.splitlines() if one.startswith("vllm:num_requests_running")]
    return float(line.split()[-1])
