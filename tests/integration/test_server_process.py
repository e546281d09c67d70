"""`umbel serve` as a process: it starts, serves, and drains on SIGTERM with exit code 0."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from umbel.cli.main import main

BODY = {"prompt": "Once upon a time", "max_tokens": 60, "temperature": 0, "ignore_eos": True}


@contextmanager
def served(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "umbel.cli.main", "serve", "--port", "0", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def post(url: str, body: object) -> "urllib.request.Request":
    return urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )


def test_sigterm_lets_a_stream_finish_and_exits_with_zero(tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    with served("--context-len", "512", "--dump", str(dump)) as (process, url):
        request = post(f"{url}/v1/completions", {**BODY, "stream": True})
        with urllib.request.urlopen(request, timeout=60) as stream:
            lines = [stream.readline()]
            process.send_signal(signal.SIGTERM)
            lines += stream.readlines()
        code = process.wait(timeout=60)
        assert process.stderr is not None
        log = [json.loads(line) for line in process.stderr.read().splitlines()]

    assert code == 0
    assert lines[-2] == b"data: [DONE]\n"
    assert b'"finish_reason":"length"' in b"".join(lines)
    assert [(line["status"], line["completion_tokens"]) for line in log] == [(200, 60)]
    assert len(dump.read_text().splitlines()) == 1


def test_a_dump_is_replayed(tmp_path: Path) -> None:
    dump, again = tmp_path / "dump.jsonl", tmp_path / "again.jsonl"
    line = {"time_s": 1.0, "method": "POST", "path": "/v1/completions"}
    bodies = [{"prompt": "a", "max_tokens": 1}, {"prompt": "b", "max_tokens": 1}]
    dump.write_text("".join(json.dumps({**line, "body": body}) + "\n" for body in bodies))
    with served("--context-len", "512", "--dump", str(again)) as (process, url):
        code = main(["replay", str(dump), "--url", url, "--concurrency", "1"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0

    assert code == 0
    assert [json.loads(text)["body"] for text in again.read_text().splitlines()] == bodies


def test_a_replay_tells_what_failed(tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    line = {"time_s": 1.0, "method": "POST", "path": "/x", "body": {}}
    dump.write_text(json.dumps(line) + "\n")

    code = main(["replay", str(dump), "--url", "http://127.0.0.1:9", "--timeout-s", "5"])

    assert code == 1
