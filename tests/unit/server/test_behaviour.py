"""Admission, deadlines, clients that leave or read slowly, keys, draining, logs and dumps."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from unit.server.scripted_engine import Answer, ServerRig, server, user

from umbel.server.settings import ServerSettings

CHAT = "/v1/chat/completions"
LONG = {"messages": user(), "max_tokens": 1000}
ENDLESS = "x" * 4000


def test_a_client_that_leaves_frees_its_blocks_within_one_step() -> None:
    async def leave(made: ServerRig, stream: bool) -> int:
        connection = made.connection("POST", CHAT, {**LONG, "stream": stream})
        running = asyncio.create_task(connection.run())
        while made.engine.stats().num_generated_tokens < 3:
            await asyncio.sleep(0.001)
        connection.has_left.set()
        await running
        steps = made.engine.stats().num_steps
        await asyncio.to_thread(made.check_nothing_is_held)
        return made.engine.stats().num_steps - steps

    for stream in (False, True):
        with server() as made:
            made.script(ENDLESS)
            num_steps = asyncio.run(leave(made, stream))

            assert num_steps <= 2
            assert made.engine.stats().num_generated_tokens < 1000


def test_a_client_that_left_before_the_first_token_is_logged_as_such() -> None:
    async def leave(made: ServerRig) -> Answer:
        connection = made.connection("POST", CHAT, LONG)
        running = asyncio.create_task(connection.run())
        await asyncio.to_thread(gate.reached.wait)
        connection.has_left.set()
        answer = await running
        gate.open()
        return answer

    with server() as made:
        gate = made.hold_steps()
        answer = asyncio.run(leave(made))

    assert answer.status == 499
    assert answer.error["code"] == "cancelled"


def test_a_reader_that_pauses_gets_everything_in_few_pieces_and_stops_nobody() -> None:
    async def read_late(made: ServerRig) -> tuple[Answer, Answer]:
        slow = made.connection("POST", CHAT, {**LONG, "stream": True})
        slow.may_read.clear()
        running = asyncio.create_task(slow.run())
        while not slow.sent:
            await asyncio.sleep(0.001)
        quick = await made.connection("POST", CHAT, LONG).run()
        while made.engine.stats().num_running:
            await asyncio.sleep(0.001)
        slow.may_read.set()
        return quick, await running

    with server() as made:
        made.script(ENDLESS)
        quick, slow = asyncio.run(read_late(made))

    text = "".join(c["choices"][0]["delta"].get("content", "") for c in slow.chunks)
    assert text == quick.json["choices"][0]["message"]["content"] == "x" * 1000
    assert len(slow.chunks) < 20


@pytest.mark.parametrize("where", ["field", "header", "server"])
def test_a_deadline_before_the_first_token_is_a_504(where: str) -> None:
    settings = ServerSettings(max_request_s=0.05 if where == "server" else None)
    body = {**LONG, "timeout_s": 0.05} if where == "field" else LONG
    headers = {"x_request_timeout_s": "0.05"} if where == "header" else {}
    with server(settings) as made:
        gate = made.hold_steps()
        try:
            answers = [
                made.post(CHAT, {**body, "stream": stream}, **headers) for stream in (False, True)
            ]
        finally:
            gate.open()

    for answer in answers:
        assert answer.status == 504
        assert answer.error["code"] == "deadline_exceeded"


def test_a_deadline_in_the_middle_of_a_stream_is_its_last_event() -> None:
    with server() as made:
        made.script(ENDLESS)
        made.runner.before_step = lambda plan: asyncio.run(asyncio.sleep(0.005))
        answer = made.post(CHAT, {**LONG, "stream": True, "timeout_s": 0.2})
        made.check_nothing_is_held()

    assert answer.status == 200
    assert answer.chunks[-1]["error"]["code"] == "deadline_exceeded"


def test_a_deadline_in_the_middle_of_a_response_is_told_in_events() -> None:
    with server() as made:
        made.script(ENDLESS)
        made.runner.before_step = lambda plan: asyncio.run(asyncio.sleep(0.005))
        answer = made.post("/v1/responses", {"input": "hi", "stream": True, "timeout_s": 0.2})

    names = [name for name, _ in answer.events]
    assert names[-2:] == ["response.failed", "error"]
    assert answer.events[-2][1]["response"]["error"]["code"] == "deadline_exceeded"


def test_a_full_queue_is_a_429_with_a_time_to_come_back() -> None:
    with server(ServerSettings(retry_after_s=7), max_running=1, max_waiting=1) as made:
        gate = made.hold_steps()

        async def crowd() -> list[Answer]:
            connections = [made.connection("POST", CHAT, LONG) for _ in range(5)]
            tasks = [asyncio.create_task(one.run()) for one in connections]
            while sum(task.done() for task in tasks) < 3:
                await asyncio.sleep(0.001)
            gate.open()
            return await asyncio.gather(*tasks)

        answers = asyncio.run(crowd())

    refused = [answer for answer in answers if answer.status == 429]
    assert [answer.status for answer in answers].count(200) == 2
    assert len(refused) == 3
    assert refused[0].headers["retry-after"] == "7"
    assert refused[0].error["code"] == "queue_full"
    assert refused[0].error["type"] == "rate_limit_error"


def test_a_call_that_is_refused_half_way_leaves_nothing_behind() -> None:
    with server(max_running=1, max_waiting=2) as made:
        answer = made.post("/v1/completions", {"prompt": ["a"] * 4})
        made.check_nothing_is_held()

    assert answer.status == 429


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic key-a", "key-a", "Bearer "])
def test_without_a_valid_key_nobody_comes_in(header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    with server(ServerSettings(api_keys=("key-a", "key-b"))) as made:
        answer = made.post(CHAT, {"messages": user()}, **headers)

    assert answer.status == 401
    assert answer.error["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/openapi.json"])
def test_probes_need_no_key(path: str) -> None:
    with server(ServerSettings(api_keys=("key-a",))) as made:
        assert made.get(path).status == 200


def test_one_key_does_not_see_what_another_has_cached() -> None:
    def num_cached(made: ServerRig, key: str, **fields: Any) -> int:
        body = {"messages": user("a longer prompt"), "max_tokens": 1, **fields}
        usage = made.post(CHAT, body, authorization=f"Bearer {key}").json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    with server(ServerSettings(api_keys=("key-a", "key-b"))) as made:
        first = num_cached(made, "key-a")
        again = num_cached(made, "key-a")
        other = num_cached(made, "key-b")
        salted = num_cached(made, "key-a", cache_salt="s")

    assert again > 0
    assert (first, other, salted) == (0, 0, 0)


def test_draining_finishes_what_runs_and_takes_no_more() -> None:
    async def drain(made: ServerRig) -> tuple[Answer, Answer, Answer, Answer]:
        running = asyncio.create_task(made.connection("POST", CHAT, LONG).run())
        await asyncio.to_thread(gate.reached.wait)
        made.app.service.begin_drain()
        late = await made.connection("POST", CHAT, LONG).run()
        ready = await made.connection("GET", "/ready").run()
        health = await made.connection("GET", "/health").run()
        gate.open()
        return await running, late, ready, health

    with server() as made:
        gate = made.hold_steps()
        finished, late, ready, health = asyncio.run(drain(made))

    assert finished.status == 200
    assert (late.status, late.error["code"]) == (503, "server_draining")
    assert "retry-after" in late.headers
    assert ready.status == 503
    assert health.json["status"] == "draining"


def test_what_is_not_finished_when_the_drain_time_is_over_is_handed_back() -> None:
    async def drain(made: ServerRig) -> Answer:
        running = asyncio.create_task(made.connection("POST", CHAT, LONG).run())
        await asyncio.to_thread(gate.reached.wait)
        made.app.service.begin_drain()
        answer = await running
        gate.open()
        return answer

    with server(ServerSettings(drain_s=0.05)) as made:
        gate = made.hold_steps()
        answer = asyncio.run(drain(made))
        made.check_nothing_is_held()

    assert (answer.status, answer.error["code"]) == (503, "server_draining")


def test_a_fault_of_the_engine_is_a_500_and_the_next_request_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(plan: object) -> None:
        made.runner.before_step = lambda plan: None
        raise RuntimeError("the device fell off")

    with server() as made, caplog.at_level(logging.CRITICAL):
        made.runner.before_step = fail
        broken = made.post(CHAT, {"messages": user()})
        good = made.post(CHAT, {"messages": user()})

    assert (broken.status, broken.error["code"]) == (500, "engine_error")
    assert broken.error["type"] == "server_error"
    assert good.status == 200


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b'{"messages": [{"role": "\xff"}]}', "invalid_json", None),
        (b'{"metadata": ' + b"[" * 100_000, "invalid_json", None),
        (b"[]", "invalid_request", None),
        (b"3", "invalid_request", None),
        (b"{}", "invalid_request", "messages"),
        (b'{"messages": 3}', "invalid_request", "messages"),
        (b'{"messages": [], "n": 1e400}', "invalid_request", "n"),
        (b'{"messages": [], "odd": 1}', "unsupported_field", "odd"),
    ],
)
def test_bad_bodies_are_400_with_a_code(body: bytes, code: str, param: str | None) -> None:
    with server() as made:
        answer = made.post(CHAT, body)

    assert answer.status == 400
    assert set(answer.error) >= {"message", "type", "param", "code"}
    assert (answer.error["code"], answer.error["param"]) == (code, param)


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_large_is_a_413(declared: bool) -> None:
    body = json.dumps({"messages": user("x" * 2000)}).encode()
    headers = {"content_length": str(len(body))} if declared else {}
    with server(ServerSettings(max_body_bytes=1000)) as made:
        answer = made.post(CHAT, body, **headers)

    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


def test_unknown_paths_methods_and_models_are_told_apart() -> None:
    with server() as made:
        path = made.get("/v1/nothing")
        method = made.get(CHAT)
        model = made.post(CHAT, {"messages": user(), "model": "gpt-7"})

    assert (path.status, path.error["code"]) == (404, "not_found")
    assert (method.status, method.error["code"]) == (405, "method_not_allowed")
    assert method.headers["allow"] == "POST"
    assert (model.status, model.error["code"]) == (404, "model_not_found")


def test_each_answer_has_the_clients_request_id_or_one_of_its_own() -> None:
    with server() as made:
        given = made.get("/health", x_request_id="abc-1")
        bad = made.get("/health", x_request_id="\x07")
        none = made.get("/health")

    assert given.headers["x-request-id"] == "abc-1"
    assert bad.headers["x-request-id"] not in ("", "\x07")
    assert none.headers["x-request-id"] != bad.headers["x-request-id"]


def test_the_access_log_has_one_line_of_json_a_request(caplog: pytest.LogCaptureFixture) -> None:
    with server() as made, caplog.at_level(logging.INFO, logger="umbel.access"):
        made.post(CHAT, {"messages": user(), "stream": True}, x_request_id="one")
        made.post(CHAT, b"{")

    good, bad = [json.loads(record.message) for record in caplog.records]
    assert good["request_id"] == "one"
    assert (good["status"], good["stream"], good["finish"]) == (200, True, "stop")
    assert (good["prompt_tokens"], good["completion_tokens"]) == (20, 6)
    assert (bad["status"], bad["error"]) == (400, "invalid_json")


def test_requests_are_dumped_as_lines_that_can_be_sent_again(tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    body = {"messages": user("new\nline"), "max_tokens": 2}
    with server(ServerSettings(dump=dump)) as made:
        made.post(CHAT, json.dumps(body, indent=2).encode())
        made.post(CHAT, b"{")
    (line,) = dump.read_text().splitlines()

    dumped = json.loads(line)
    assert (dumped["method"], dumped["path"], dumped["body"]) == ("POST", CHAT, body)


def test_a_fault_of_the_server_in_a_stream_is_its_last_event(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("umbel.server.chat.usage_of", fail)
    with server() as made, caplog.at_level(logging.ERROR):
        whole = made.post(CHAT, {"messages": user()})
        stream = made.post(CHAT, {"messages": user(), "stream": True})

    assert (whole.status, whole.error["code"]) == (500, "engine_error")
    assert stream.chunks[-1]["error"]["code"] == "engine_error"
    assert "RuntimeError: a bug" in caplog.text
