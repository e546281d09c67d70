"""Files and batches as clients meet them: the `openai` package against a live server, whose model
is scripted.
"""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from unit.server.scripted_engine import server, user

from umbel.server.serving import make_server
from umbel.server.settings import ServerSettings


@pytest.fixture
def client() -> Iterator[OpenAI]:
    with server(ServerSettings(api_keys=("key",)), max_running=8) as made:
        made.script(lambda prompt: f"to {prompt}")
        address: list[str] = []
        is_ready = threading.Event()

        def note(place: str) -> None:
            address.append(place)
            is_ready.set()

        running = make_server(made.app, host="127.0.0.1", port=0, on_ready=note)
        thread = threading.Thread(target=running.run)
        thread.start()
        assert is_ready.wait(30)
        with OpenAI(base_url=f"{address[0]}/v1", api_key="key", max_retries=0) as made_client:
            yield made_client
        running.drain()
        thread.join()


def lines(num_lines: int) -> bytes:
    url = "/v1/chat/completions"
    return b"".join(
        json.dumps(
            {
                "custom_id": f"line {number}", "method": "POST", "url": url,
                "body": {"messages": user(f"question {number}"), "max_tokens": 40},
            }
        ).encode() + b"\n"
        for number in range(num_lines)
    )  # fmt: skip


def finished(client: OpenAI, batch_id: str) -> Any:
    while True:
        batch = client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "cancelled", "expired"):
            return batch
        time.sleep(0.01)


def test_a_batch_is_uploaded_run_and_read(client: OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", lines(20)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"for": "a test"},
    )
    batch = finished(client, batch.id)
    output = client.files.content(batch.output_file_id)

    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed) == (20, 20)
    assert batch.metadata == {"for": "a test"}
    ids = [json.loads(line)["custom_id"] for line in output.text.splitlines()]
    assert ids == [f"line {number}" for number in range(20)]
    assert client.files.content(file.id).content == lines(20)
    assert [one.id for one in client.batches.list()] == [batch.id]


def test_files_and_batches_are_listed_cancelled_and_deleted(client: OpenAI) -> None:
    files = [client.files.create(file=("in.jsonl", lines(300)), purpose="batch") for _ in range(3)]
    batch = client.batches.create(
        input_file_id=files[0].id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    cancelled = client.batches.cancel(batch.id)
    batch = finished(client, batch.id)
    listed = [one.id for one in client.files.list(limit=2, purpose="batch")]
    deleted = client.files.delete(files[1].id)

    assert cancelled.status in ("cancelling", "cancelled")
    assert batch.status == "cancelled"
    assert listed == [file.id for file in reversed(files)]
    assert deleted.deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(files[1].id)
