"""Clients that never read: they are disconnected, and what ran for them ends."""

import asyncio
import json
import socket
import threading
from contextlib import suppress

from unit.server.scripted_engine import server

from umbel.server.serving import make_server
from umbel.server.settings import ServerSettings


def small_socket() -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return made


def test_a_client_that_never_reads_is_disconnected_and_its_request_ends() -> None:
    # Log-probabilities: much to send for every token, also when one event has many tokens.
    asked = {"prompt": "a", "max_tokens": 3000, "stream": True, "logprobs": 5}
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n"
    is_ready = threading.Event()
    with server(ServerSettings(write_timeout_s=0.05)) as rig, small_socket() as listening:
        rig.script("x" * 3000)
        listening.bind(("127.0.0.1", 0))
        served = make_server(
            rig.app, host="127.0.0.1", port=0, on_ready=lambda address: is_ready.set()
        )
        thread = threading.Thread(target=lambda: asyncio.run(served.serve([listening])))
        thread.start()
        assert is_ready.wait(30)
        try:
            with small_socket() as client:
                client.connect(listening.getsockname())
                client.sendall(head.encode() + body)
                for _ in range(3000):
                    if b"umbel_write_timeouts_total 1.0" in rig.app.service.metrics.render():
                        break
                    threading.Event().wait(0.01)
                else:
                    raise AssertionError("the client was not disconnected within 30 s")
                with suppress(ConnectionResetError):
                    client.settimeout(30)
                    while client.recv(1 << 16):  # what was on its way, then the end
                        pass
        finally:
            served.drain()
            thread.join(30)
        assert not thread.is_alive()
        rig.check_nothing_is_held()
        assert rig.engine.stats().num_generated_tokens < 3000
