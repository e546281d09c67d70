"""A batch of 200 lines whose server is killed (SIGKILL) again and again: each line once in the end.

    python benchmarks/batch_kill.py --lines 200 --kills 3

The real model, a state folder of its own, loopback. Exits with 1 if a line is missing or there
twice.
"""

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from server_process import Server, served

CHAT = "/v1/chat/completions"


def upload(server: Server, num_lines: int) -> str:
    """The id of the file of requests."""
    lines = b"".join(json.dumps(line(number)).encode() + b"\n" for number in range(num_lines))
    form = (
        b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--XX\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        + lines
        + b"\r\n--XX--\r\n"
    )
    content_type = {"content-type": "multipart/form-data; boundary=XX"}
    request = urllib.request.Request(f"{server.url}/v1/files", form, content_type)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.loads(answer.read())["id"])


def line(number: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Say something about the number {number}."}]
    body = {"messages": messages, "max_tokens": 24, "temperature": 0.8}
    return {"custom_id": f"line {number}", "method": "POST", "url": CHAT, "body": body}


def get(server: Server, path: str) -> bytes:
    with urllib.request.urlopen(server.url + path, timeout=60) as answer:
        return bytes(answer.read())


def wait(server: Server, batch_id: str, num_done: int) -> Any:
    """Until so many lines are done, or the batch is."""
    while True:
        batch = json.loads(get(server, f"/v1/batches/{batch_id}"))
        if batch["status"] == "completed" or batch["request_counts"]["completed"] >= num_done:
            return batch
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        options = ["--state", str(Path(state)), "--threads", str(args.threads)]
        options += ["--context-len", "512", "--max-running", "32"]
        batch_id = ""
        for kill in range(1, args.kills + 1):
            with served(options) as server:  # killed when the block ends
                if not batch_id:
                    body = {"input_file_id": upload(server, args.lines), "endpoint": CHAT}
                    batch = server.post("/v1/batches", {**body, "completion_window": "24h"})
                    batch_id = batch["id"]
                batch = wait(server, batch_id, args.lines * kill // (args.kills + 1))
                print(f"killed with {batch['request_counts']['completed']} done", flush=True)
        with served(options) as server:
            batch = wait(server, batch_id, args.lines + 1)
            output = get(server, f"/v1/files/{batch['output_file_id']}/content")
    seen = Counter(json.loads(text)["custom_id"] for text in output.splitlines())
    expected = {f"line {number}" for number in range(args.lines)}
    is_right = seen.keys() == expected and set(seen.values()) == {1}
    print(f"{len(seen)} of {args.lines} lines, at most {max(seen.values())} times each")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
