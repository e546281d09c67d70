"""A server that is killed in the middle of a batch: the next one ends it, each line once."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unit.server.test_batches import CHAT, chat, jsonl

NUM_LINES = 60
SCRIPT = Path(__file__).with_name("serve_scripted.py")


@contextmanager
def served(state: Path, step_s: float) -> Iterator[str]:
    """The address of a server, which is killed in the end."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(state), str(step_s)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def ask(url: str, data: bytes | None = None, content_type: str = "application/json") -> bytes:
    request = urllib.request.Request(url, data, {"content-type": content_type})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def begin(url: str) -> str:
    form = (
        b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--XX\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        + jsonl(*map(chat, range(NUM_LINES)))
        + b"\r\n--XX--\r\n"
    )
    file = json.loads(ask(f"{url}/v1/files", form, "multipart/form-data; boundary=XX"))
    body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    return str(json.loads(ask(f"{url}/v1/batches", json.dumps(body).encode()))["id"])


def wait(url: str, batch_id: str, until: Callable[[Any], bool]) -> Any:
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        batch = json.loads(ask(f"{url}/v1/batches/{batch_id}"))
        if until(batch):
            return batch
        time.sleep(0.02)
    raise AssertionError(f"the batch is still {batch}")


def test_a_killed_server_leaves_a_batch_that_the_next_one_ends_with_each_line_once(
    tmp_path: Path,
) -> None:
    with served(tmp_path, step_s=0.004) as url:
        batch_id = begin(url)
        before = wait(url, batch_id, lambda batch: batch["request_counts"]["completed"] >= 5)

    with served(tmp_path, step_s=0.0) as url:
        batch = wait(url, batch_id, lambda batch: batch["status"] == "completed")
        lines = ask(f"{url}/v1/files/{batch['output_file_id']}/content").splitlines()

    assert before["status"] == "in_progress"
    assert batch["request_counts"] == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
    ids = [json.loads(line)["custom_id"] for line in lines]
    assert ids == [f"line {number}" for number in range(NUM_LINES)]
