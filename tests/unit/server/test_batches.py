"""`/v1/files` and `/v1/batches`: what goes in comes out, each line once, whatever happens."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from unit.server.scripted_engine import Answer, ServerRig, server, user

from umbel.server.protocol.batches import BatchObject
from umbel.server.settings import ServerSettings

CHAT = "/v1/chat/completions"
Steps = Callable[["Client"], Awaitable[Any]]


class Client:
    """Speaks to a server on one loop, as batches need."""

    def __init__(self, made: ServerRig) -> None:
        self.made = made

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.made.connection(method, path, body, **headers).run()

    async def upload(self, data: bytes, *, purpose: str = "batch", **headers: str) -> Answer:
        body = (
            b'--XX\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n'
            + purpose.encode()
            + b'\r\n--XX\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n'
            b"Content-Type: application/jsonl\r\n\r\n" + data + b"\r\n--XX--\r\n"
        )
        content_type = "multipart/form-data; boundary=XX"
        return await self.ask("POST", "/v1/files", body, content_type=content_type, **headers)

    async def create(self, data: bytes, endpoint: str = CHAT, **headers: str) -> str:
        file = (await self.upload(data, **headers)).json
        answer = await self.ask(
            "POST", "/v1/batches",
            {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"},
            **headers,
        )  # fmt: skip
        assert answer.status == 200, answer.body
        assert answer.json["status"] == "validating"
        return str(answer.json["id"])

    async def wait(self, batch_id: str, until: Callable[[Any], bool]) -> Any:
        while True:
            batch = (await self.ask("GET", f"/v1/batches/{batch_id}")).json
            if until(batch):
                return batch
            await asyncio.sleep(0.005)

    async def finished(self, batch_id: str) -> Any:
        ends = {"completed", "failed", "cancelled", "expired"}
        return await self.wait(batch_id, lambda batch: batch["status"] in ends)

    async def lines(self, file_id: str | None) -> list[Any]:
        if file_id is None:
            return []
        content = await self.ask("GET", f"/v1/files/{file_id}/content")
        described = (await self.ask("GET", f"/v1/files/{file_id}")).json
        assert described["bytes"] == len(content.body)
        return [json.loads(line) for line in content.body.splitlines()]


def run(steps: Steps, settings: ServerSettings | None = None, **options: Any) -> Any:
    """`steps` with a client of a new server."""

    async def main(made: ServerRig) -> Any:
        await made.app.batches.start()
        try:
            return await steps(Client(made))
        finally:
            await made.app.batches.close()

    with server(settings, **options) as made:
        made.script(lambda prompt: f"to {prompt}")
        return asyncio.run(main(made))


def chat(number: int, **fields: Any) -> dict[str, Any]:
    body = {"messages": user(f"question {number}"), "max_tokens": 40, **fields}
    return {"custom_id": f"line {number}", "method": "POST", "url": CHAT, "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def test_every_line_is_answered_once_under_its_custom_id() -> None:
    async def steps(client: Client) -> tuple[Any, list[Any]]:
        batch = await client.finished(await client.create(jsonl(*map(chat, range(50)))))
        return batch, await client.lines(batch["output_file_id"])

    batch, lines = run(steps, max_running=8)

    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 50, "completed": 50, "failed": 0}
    assert batch["error_file_id"] is None
    assert [line["custom_id"] for line in lines] == [f"line {number}" for number in range(50)]
    for number, line in enumerate(lines):
        content = line["response"]["body"]["choices"][0]["message"]["content"]
        assert f"question {number}\n" in content
        assert line["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 3}, "text_completion"),
        ("/v1/responses", {"input": "a", "max_output_tokens": 20}, "response"),
    ],
)
def test_other_endpoints_answer_as_they_do_by_themselves(
    endpoint: str, body: Any, kind: str
) -> None:
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}

    async def steps(client: Client) -> list[Any]:
        batch = await client.finished(await client.create(jsonl(line), endpoint))
        return await client.lines(batch["output_file_id"])

    (answered,) = run(steps)

    assert answered["response"]["body"]["object"] == kind


def test_lines_that_fail_are_told_one_by_one_and_stop_nobody() -> None:
    bad = [chat(1, regex="("), chat(2, stream=True), chat(3, messages=[]), chat(4, max_tokens=-1)]

    async def steps(client: Client) -> tuple[Any, list[Any], list[Any]]:
        batch = await client.finished(await client.create(jsonl(chat(0), *bad, chat(5))))
        done = await client.lines(batch["output_file_id"])
        return batch, done, await client.lines(batch["error_file_id"])

    batch, done, failed = run(steps)

    assert batch["request_counts"] == {"total": 6, "completed": 2, "failed": 4}
    assert [line["custom_id"] for line in done] == ["line 0", "line 5"]
    assert [line["custom_id"] for line in failed] == [f"line {number}" for number in (1, 2, 3, 4)]
    assert failed[0]["response"]["status_code"] == 400
    assert failed[0]["response"]["body"]["error"]["param"] == "regex"
    assert failed[1]["error"]["code"] == "unsupported_field"


@pytest.mark.parametrize(
    ("data", "code", "line"),
    [
        (jsonl(chat(0)) + b"{\n", "invalid_json_line", 2),
        (jsonl(chat(0), {"custom_id": "b"}), "invalid_line", 2),
        (jsonl(chat(0), chat(0)), "duplicate_custom_id", 2),
        (jsonl({**chat(0), "url": "/v1/responses"}), "mismatched_endpoint", 1),
        (b"\n\n", "empty_file", None),
        (jsonl(*map(chat, range(6))), "too_many_lines", 6),
    ],
)
def test_a_file_that_cannot_be_a_batch_fails_as_a_whole(
    data: bytes, code: str, line: int | None
) -> None:
    async def steps(client: Client) -> Any:
        return await client.finished(await client.create(data))

    batch = run(steps, ServerSettings(max_batch_lines=5))

    assert batch["status"] == "failed"
    assert batch["errors"]["data"][0]["code"] == code
    assert batch["errors"]["data"][0]["line"] == line
    assert batch["request_counts"]["total"] == 0


def test_cancelling_keeps_what_is_done_and_tells_the_rest() -> None:
    async def steps(client: Client) -> tuple[Any, list[Any], list[Any], Answer]:
        gate_after = 200

        def wait(plan: Any) -> None:
            if len(client.made.runner.steps) > gate_after:
                asyncio.run(asyncio.sleep(0.01))

        client.made.runner.before_step = wait
        batch_id = await client.create(jsonl(*map(chat, range(60))))
        await client.wait(batch_id, lambda batch: batch["request_counts"]["completed"] > 3)
        cancelled = await client.ask("POST", f"/v1/batches/{batch_id}/cancel")
        assert cancelled.json["status"] in ("cancelling", "cancelled")
        batch = await client.finished(batch_id)
        again = await client.ask("POST", f"/v1/batches/{batch_id}/cancel")
        await asyncio.to_thread(client.made.check_nothing_is_held)
        done = await client.lines(batch["output_file_id"])
        return batch, done, await client.lines(batch["error_file_id"]), again

    batch, done, rest, again = run(steps, max_running=4)

    assert batch["status"] == "cancelled"
    assert 3 < len(done) < 60
    assert {line["error"]["code"] for line in rest} == {"batch_cancelled"}
    assert sorted(line["custom_id"] for line in done + rest) == sorted(
        f"line {number}" for number in range(60)
    )
    assert again.status == 409


def test_lines_that_were_not_done_in_time_have_expired() -> None:
    now = int(time.time())

    async def steps(client: Client) -> tuple[Any, list[Any]]:
        file = (await client.upload(jsonl(*map(chat, range(5))))).json
        late = BatchObject(
            id="batch_late", endpoint=CHAT, input_file_id=file["id"], completion_window="1h",
            status="validating", created_at=now - 3600, expires_at=now,
        )  # fmt: skip
        await client.made.app.batches.add(None, late)
        batch = await client.finished("batch_late")
        return batch, await client.lines(batch["error_file_id"])

    batch, lines = run(steps)

    assert batch["status"] == "expired"
    assert batch["request_counts"] == {"total": 5, "completed": 0, "failed": 5}
    assert {line["error"]["code"] for line in lines} == {"batch_expired"}


def test_a_full_queue_delays_lines_and_fails_none() -> None:
    async def steps(client: Client) -> Any:
        batches = [await client.create(jsonl(*map(chat, range(20)))) for _ in range(3)]
        return [await client.finished(batch) for batch in batches]

    for batch in run(steps, max_running=2, max_waiting=1):
        assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}


def test_another_server_goes_on_where_one_stopped(tmp_path: Path) -> None:
    settings = ServerSettings(state=tmp_path / "state")

    async def begin(client: Client) -> str:
        client.made.runner.before_step = lambda plan: asyncio.run(asyncio.sleep(0.002))
        batch_id = await client.create(jsonl(*map(chat, range(40))))
        await client.wait(batch_id, lambda batch: batch["request_counts"]["completed"] > 5)
        return batch_id

    async def end(client: Client) -> tuple[Any, list[Any]]:
        batch = await client.finished(batch_id)
        return batch, await client.lines(batch["output_file_id"])

    batch_id = run(begin, settings, max_running=4)
    batch, lines = run(end, settings, max_running=4)

    assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    assert [line["custom_id"] for line in lines] == [f"line {number}" for number in range(40)]


def test_two_servers_do_not_share_a_state(tmp_path: Path) -> None:
    settings = ServerSettings(state=tmp_path / "state")

    async def upload(client: Client) -> Answer:
        await client.upload(b"x")
        with server(settings) as second:
            answer = await Client(second).upload(b"y")
            await second.app.batches.close()
        return answer

    answer = run(upload, settings)

    assert answer.status == 400
    assert "another server" in answer.error["message"]


def test_files_and_batches_belong_to_their_key() -> None:
    ours, theirs = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}

    async def steps(client: Client) -> list[int]:
        file_id = (await client.upload(jsonl(chat(0)), **ours)).json["id"]
        batch_id = await client.create(jsonl(chat(0)), **ours)
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        answers = [
            await client.ask("GET", f"/v1/files/{file_id}", **theirs),
            await client.ask("GET", f"/v1/files/{file_id}/content", **theirs),
            await client.ask("DELETE", f"/v1/files/{file_id}", **theirs),
            await client.ask("POST", "/v1/batches", body, **theirs),
            await client.ask("GET", f"/v1/batches/{batch_id}", **theirs),
            await client.ask("POST", f"/v1/batches/{batch_id}/cancel", **theirs),
        ]
        lists = [await client.ask("GET", f"/v1/{kind}", **theirs) for kind in ("files", "batches")]
        assert [answer.json["data"] for answer in lists] == [[], []]
        return [answer.status for answer in answers]

    assert run(steps, ServerSettings(api_keys=("one", "two"))) == [404] * 6


def test_files_are_listed_newest_first_page_by_page_and_deleted() -> None:
    async def steps(client: Client) -> tuple[list[str], list[list[str]], Answer, Answer]:
        ids = [(await client.upload(b"%d" % number)).json["id"] for number in range(5)]
        pages: list[list[str]] = []
        after = ""
        while True:
            page = (await client.ask("GET", f"/v1/files?limit=2{after}")).json
            pages.append([file["id"] for file in page["data"]])
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        deleted = await client.ask("DELETE", f"/v1/files/{ids[0]}")
        return ids, pages, deleted, await client.ask("GET", f"/v1/files/{ids[0]}/content")

    ids, pages, deleted, gone = run(steps)

    assert [file for page in pages for file in page] == ids[::-1]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert deleted.json == {"id": ids[0], "object": "file", "deleted": True}
    assert gone.status == 404


def test_the_bytes_of_a_file_come_back_as_they_were() -> None:
    data = bytes(range(256)) * 10_000 + b"\r\n--X\r\n\r\n"

    async def steps(client: Client) -> tuple[Any, bytes]:
        file = (await client.upload(data)).json
        return file, (await client.ask("GET", f"/v1/files/{file['id']}/content")).body

    file, content = run(steps)

    assert content == data
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(data), "in.jsonl", "batch")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{}", "application/json"),
        (b"--XX\r\n\r\nx\r\n--XX--\r\n", "multipart/form-data; boundary=XX"),
        (
            b'--XX\r\ncontent-disposition: form-data; name="file"\r\n\r\nx',
            "multipart/form-data; boundary=XX",
        ),
        (b"", "multipart/form-data; boundary=XX"),
        (b"--XX--\r\n", "multipart/form-data; boundary=XX"),
    ],
)  # fmt: skip
def test_an_upload_that_is_none_is_refused(body: bytes, content_type: str) -> None:
    async def steps(client: Client) -> Answer:
        return await client.ask("POST", "/v1/files", body, content_type=content_type)

    answer = run(steps)

    assert answer.status == 400
    assert answer.error["code"] == "invalid_request"


def test_what_is_stored_is_bounded() -> None:
    async def steps(client: Client) -> list[int]:
        too_large = await client.upload(b"x" * 2000)
        answers = [await client.upload(b"x" * 900) for _ in range(200)]
        return [too_large.status, answers[0].status, answers[-1].status]

    settings = ServerSettings(max_file_bytes=1500, max_stored_bytes=100_000)

    assert run(steps, settings) == [413, 200, 413]


@pytest.mark.parametrize("window", ["24", "0h", "1000h", "1d"])
def test_a_window_that_is_none_is_refused(window: str) -> None:
    async def steps(client: Client) -> Answer:
        file = (await client.upload(jsonl(chat(0)))).json
        body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": window}
        return await client.ask("POST", "/v1/batches", body)

    answer = run(steps)

    assert answer.status == 400
    assert answer.error["param"] == "completion_window"
