"""`umbel batch requests.jsonl`: OpenAI's batch files without a server."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from unit.server.scripted_engine import ServerRig, server, user

from umbel.cli import requests_batch
from umbel.cli.main import main


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerRig]:
    """A scripted engine instead of a model."""
    with server(max_running=4) as rig:
        rig.script(lambda prompt: f"to {prompt}")
        monkeypatch.setattr(requests_batch, "start_engine", lambda args: nullcontext(rig.engine))
        yield rig


def chat(number: int, **fields: Any) -> dict[str, Any]:
    body = {"messages": user(f"question {number}"), "max_tokens": 40, **fields}
    url = "/v1/chat/completions"
    return {"custom_id": f"line {number}", "method": "POST", "url": url, "body": body}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def batch(source: Path, output: Path, *options: str) -> int:
    return main(["batch", str(source), "-o", str(output), "--quiet", *options])


def test_every_request_is_answered_once(made: ServerRig, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", *map(chat, range(30)))

    code = batch(source, tmp_path / "out.jsonl", "--max-in-flight", "8")

    lines = read(tmp_path / "out.jsonl")
    assert code == 0
    assert sorted(line["custom_id"] for line in lines) == sorted(f"line {n}" for n in range(30))
    for line in lines:
        number = line["custom_id"].removeprefix("line ")
        content = line["response"]["body"]["choices"][0]["message"]["content"]
        assert f"question {number}\n" in content
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_requests_that_fail_have_a_file_of_their_own(made: ServerRig, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", chat(0), chat(1, regex="("), chat(2, stream=True))

    code = batch(source, tmp_path / "out.jsonl")

    failed = {line["custom_id"]: line for line in read(tmp_path / "out.errors.jsonl")}
    assert code == 1
    assert [line["custom_id"] for line in read(tmp_path / "out.jsonl")] == ["line 0"]
    assert failed["line 1"]["response"]["status_code"] == 400
    assert failed["line 2"]["error"]["code"] == "unsupported_field"


def test_resuming_after_a_kill_does_what_is_missing_and_nothing_twice(
    made: ServerRig, tmp_path: Path
) -> None:
    source, output = write(tmp_path / "in.jsonl", *map(chat, range(12))), tmp_path / "out.jsonl"
    batch(source, output)
    first = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(first[:5]) + first[5][:17])  # killed while it wrote a line
    before = made.engine.stats().num_requests

    code = batch(source, output, "--resume")

    assert code == 0
    assert output.read_bytes().startswith(b"".join(first[:5]))
    assert sorted(line["custom_id"] for line in read(output)) == sorted(
        f"line {number}" for number in range(12)
    )
    assert made.engine.stats().num_requests == before + 7


def test_a_full_queue_delays_requests_and_fails_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = write(tmp_path / "in.jsonl", *map(chat, range(20)))
    with server(max_running=1, max_waiting=1) as rig:
        monkeypatch.setattr(requests_batch, "start_engine", lambda args: rig.engine)
        code = batch(source, tmp_path / "out.jsonl", "--max-in-flight", "8")

    assert code == 0
    assert len(read(tmp_path / "out.jsonl")) == 20


def test_an_engine_that_ends_stops_the_batch_and_leaves_the_rest_to_the_next(
    made: ServerRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write(tmp_path / "in.jsonl", *map(chat, range(3))), tmp_path / "out.jsonl"
    made.engine.close()

    code = batch(source, output)

    assert code == 1
    assert "stopped before all of them were done" in capsys.readouterr().err
    assert output.read_text() == ""


@pytest.mark.parametrize("kind", ["there", "strange", "broken", "locked", "input"])
def test_what_cannot_be_gone_on_with_is_refused_before_a_model_is_loaded(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write(tmp_path / "in.jsonl", chat(0)), tmp_path / "out.jsonl"
    options = ["--resume"]
    told = ""
    if kind == "there":
        options, told = [], "is there already; give --resume"
        output.write_text("")
    elif kind == "strange":
        write(output, {"id": "a", "custom_id": "other", "response": None})
        told = "belongs to other requests"
    elif kind == "broken":
        output.write_text("{}\n")
        told = "out.jsonl:1 is no result"
    elif kind == "input":
        write(source, chat(0), chat(0))
        told = "in.jsonl:2: custom_id 'line 0' was used in line 1"
    with output.open("ab") as other:
        if kind == "locked":
            fcntl.flock(other, fcntl.LOCK_EX)
            told = "another process writes"
        code = batch(source, output, *options)

    assert code == 1
    assert told in capsys.readouterr().err
