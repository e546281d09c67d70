"""Umbel's own routes, metrics and the OpenAPI document."""

from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import Response
from unit.server.scripted_engine import CONTEXT_LEN, MODEL, ServerRig, server, user

from umbel.server.app import make_app
from umbel.server.routes import ROUTES, Route
from umbel.server.service import Service
from umbel.server.settings import ServerSettings

BACK_REFERENCE = "(a)\\1"  # no regular language: refused by name
CHAT = "/v1/chat/completions"


def test_the_model_is_listed_and_described() -> None:
    with server(ServerSettings(model_name="my/model")) as made:
        listed = made.get("/v1/models")
        one = made.get("/v1/models/my/model")
        other = made.get("/v1/models/other")

    assert [card["id"] for card in listed.json["data"]] == ["my/model"]
    assert one.json["max_model_len"] == CONTEXT_LEN
    assert (other.status, other.error["code"]) == (404, "model_not_found")


def test_text_becomes_tokens_and_tokens_become_text() -> None:
    with server() as made:
        tokens = made.post("/tokenize", {"prompt": "<s>hé", "return_token_strs": True})
        text = made.post("/detokenize", {"tokens": tokens.json["tokens"]})

    assert tokens.json["count"] == 4
    assert tokens.json["token_strs"][0] == "<s>"
    assert text.json == {"prompt": "<s>hé"}


def test_messages_are_tokenized_in_the_template() -> None:
    with server() as made:
        opened = made.post("/tokenize", {"messages": user("a")})
        closed = made.post("/tokenize", {"messages": user("a"), "add_generation_prompt": False})

    assert opened.json["count"] == len("[user]a\n[assistant]")
    assert closed.json["count"] == len("[user]a\n")


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": []}, {"prompt": ""}])
def test_tokenizing_needs_a_prompt_or_messages(body: dict[str, Any]) -> None:
    with server() as made:
        assert made.post("/tokenize", body).status == 400


@pytest.mark.parametrize("token_id", [-1, 262])
def test_a_token_that_does_not_exist_is_refused(token_id: int) -> None:
    with server() as made:
        answer = made.post("/detokenize", {"tokens": [token_id]})

    assert answer.error["param"] == "tokens"


@pytest.mark.parametrize("normalization", ["sum", "mean"])
def test_labels_are_scored_and_the_most_likely_chosen(normalization: str) -> None:
    body = {"prompt": "say", "labels": ["a", "bb"], "normalization": normalization}
    with server() as made:
        answer = made.post("/v1/score", body).json

    scores = answer["scores"]
    assert [score["label"] for score in scores] == ["a", "bb"]
    assert [score["num_tokens"] for score in scores] == [1, 2]
    assert sum(score["probability"] for score in scores) == pytest.approx(1.0)
    best = max(scores, key=lambda score: score["probability"])
    assert (answer["choice"], answer["probability"]) == (best["label"], best["probability"])
    assert answer["usage"]["scored_tokens"] == 3


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"labels": []}, "labels"),
        ({"labels": ["a", "a"]}, "labels"),
        ({"labels": ["a", ""]}, "continuation"),
        ({"prompt": None}, "prompt"),
        ({"messages": user()}, "prompt"),
    ],
)
def test_scores_of_nothing_are_refused(changes: dict[str, Any], param: str) -> None:
    with server() as made:
        answer = made.post("/v1/score", {"prompt": "a", "labels": ["x", "y"], **changes})

    assert answer.status == 400
    assert answer.error["param"] == param


def test_a_score_has_a_deadline() -> None:
    with server() as made:
        gate = made.hold_steps()
        answer = made.post("/v1/score", {"prompt": "a", "labels": ["x"], "timeout_s": 0.05})
        gate.open()

    assert answer.status == 504


@pytest.mark.parametrize(
    ("body", "verdict", "where"),
    [
        ({"regex": "[0-9]+"}, "exact", None),
        ({"choices": ["a", "b"]}, "exact", None),
        ({"json_schema": {"type": "integer"}}, "exact", None),
        ({"lark": 'start: "a"+'}, "exact", None),
        ({"gbnf": 'root ::= "a"'}, "exact", None),
        ({"json_schema": False}, "unsatisfiable", None),
        ({"json_schema": {"items": {"type": "string", "pattern": BACK_REFERENCE}}}, "refused",
         "/items/pattern"),
    ],
)  # fmt: skip
def test_a_grammar_is_checked(body: dict[str, Any], verdict: str, where: str | None) -> None:
    with server() as made:
        answer = made.post("/v1/grammars/check", body)

    assert answer.status == 200
    assert answer.json["verdict"] == verdict
    if where is not None:
        assert answer.json["where"] == where
    assert (answer.json["min_tokens"] is None) == (verdict != "exact")


def test_a_grammar_that_is_none_is_invalid_and_two_are_an_error() -> None:
    with server() as made:
        broken = made.post("/v1/grammars/check", {"regex": "("})
        two = made.post("/v1/grammars/check", {"regex": "a", "lark": 'start: "b"'})

    assert broken.json["verdict"] in ("invalid", "refused")
    assert two.status == 400


def test_the_cache_is_flushed() -> None:
    with server() as made:
        made.post(CHAT, {"messages": user("something long"), "max_tokens": 1})
        freed = made.post("/flush_cache").json["freed_blocks"]
        again = made.post("/flush_cache").json["freed_blocks"]

    assert freed > 0
    assert again == 0


def samples(made: ServerRig) -> dict[str, float]:
    text = made.get("/metrics").body.decode()
    return {
        " ".join([sample.name, *map(str, sample.labels.values())]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_tell_what_routers_and_people_want_to_know() -> None:
    with server() as made:
        made.post(CHAT, {"messages": user(), "regex": "[a-z]{3}"})
        made.post(CHAT, b"{")
        found = samples(made)

    assert found[f"vllm:num_requests_waiting {MODEL}"] == 0
    assert found[f"vllm:num_requests_running {MODEL}"] == 0
    assert found[f"vllm:kv_cache_usage_perc {MODEL}"] == 0
    assert any(name.startswith("vllm:cache_config_info") for name in found)
    assert found["umbel_generated_tokens_total"] == 3
    assert found["umbel_finished_sequences_total stop"] == 1
    assert found["umbel_time_to_first_token_seconds_count"] == 1
    assert found["umbel_request_seconds_count"] == 1
    assert found["umbel_inter_token_latency_seconds_count"] >= 1
    assert found["umbel_grammar_compilations_total"] == 1
    assert found[f"umbel_http_answers_total {CHAT} 200"] == 1
    assert found[f"umbel_http_answers_total {CHAT} 400"] == 1


def test_metrics_split_the_time_of_steps_and_name_what_binds() -> None:
    with server() as made:
        before = samples(made)
        made.post(CHAT, {"messages": user(), "max_tokens": 4})
        found = samples(made)

    parts = ("weights", "kv", "compute", "overhead", "host")
    shares = {part: found[f"umbel_step_time_share {part}"] for part in parts}
    assert not any(name.startswith("umbel_step_time_share") for name in before)
    assert sum(shares.values()) == pytest.approx(1)
    assert found[f"umbel_binding {max(shares, key=lambda part: shares[part])}"] == 1
    assert found[f"umbel_bandwidth_share {MODEL}"] > 0
    assert found[f"umbel_flops_share {MODEL}"] > 0


def test_running_requests_show_in_the_metrics() -> None:
    with server() as made:
        found = samples(made)

    assert "umbel_preemptions_total" in found
    assert "umbel_cache_evicted_blocks_total" in found
    assert {f"umbel_cache_pins {MODEL}", "umbel_cache_dropped_pins_total"} <= found.keys()
    assert "umbel_cache_blocks free" in found


def test_the_document_describes_every_route() -> None:
    with server(ServerSettings(api_keys=("k",))) as made:
        document = made.get("/openapi.json").json

    described = {
        (method.upper(), path) for path, item in document["paths"].items() for method in item
    }
    assert described > {(r.method, r.path.replace(":path", "")) for r in ROUTES}
    assert {("POST", "/v1/batches"), ("GET", "/v1/traces/{id}"), ("GET", "/dashboard")} < described
    chat = document["paths"][CHAT]["post"]
    assert set(chat["responses"]) == {
        "200", "400", "401", "404", "413", "429", "500", "503", "504",
    }  # fmt: skip
    assert chat["security"] == [{"key": []}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": user(), "logprobs": True, "top_logprobs": 1}),
        ("/v1/completions", {"prompt": "a", "logprobs": 1}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/score", {"prompt": "a", "labels": ["b", "c"]}),
        ("/v1/grammars/check", {"regex": "a"}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [98]}),
        ("/flush_cache", None),
    ],
)
def test_answers_are_what_the_document_says(path: str, body: Any) -> None:
    with server() as made:
        document = made.get("/openapi.json").json
        answer = made.post(path, body)
        error = made.post(path, b"{" if body is not None else None)

    operation = document["paths"][path]["post"]
    validate(answer.json, operation["responses"]["200"], document)
    if body is not None:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.validate(body, {**schema, "components": document["components"]})
        validate(error.json, operation["responses"]["400"], document)


def test_streamed_chunks_are_what_the_document_says() -> None:
    with server() as made:
        document = made.get("/openapi.json").json
        answer = made.post(CHAT, {"messages": user(), "stream": True})

    content = document["paths"][CHAT]["post"]["responses"]["200"]["content"]
    schema = content["text/event-stream"]["schema"]["properties"]["data"]["contentSchema"]
    for chunk in answer.chunks:
        jsonschema.validate(chunk, {**schema, "components": document["components"]})


def validate(value: Any, described: dict[str, Any], document: dict[str, Any]) -> None:
    schema = described["content"]["application/json"]["schema"]
    jsonschema.validate(value, {**schema, "components": document["components"]})


def test_further_routes_can_be_added() -> None:
    async def pong(service: Service, request: Request) -> Response:
        return Response(service.model_name)

    with server() as made:
        made.app.service.close()
        made.app = make_app(
            made.engine, more_routes=[Route("GET", "/ping", pong, "Ping", media_type="text/plain")]
        )
        answer = made.get("/ping")
        document = made.get("/openapi.json").json

    assert answer.body.decode() == MODEL
    assert "/ping" in document["paths"]
