"""Runs the application under uvicorn until a signal, and lets what runs finish then."""

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from umbel.server.app import App
from umbel.server.service import Service

_EXTRA_S = 5.0  # after the calls were ended, for their answers to be written


class DrainingServer(uvicorn.Server):
    """On a signal: no new connections and no new work; calls go on for the drain time of the
    settings, then they end with an error that says so.
    """

    def __init__(
        self, config: uvicorn.Config, app: App, on_ready: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(config)
        self._app = app
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._on_ready is not None and self.started:
            self._on_ready(self.address)

    @property
    def address(self) -> str:
        """Where it listens; with port 0 the port that the system chose."""
        if self.config.uds is not None:
            return self.config.uds
        port = self.servers[0].sockets[0].getsockname()[1]
        host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        return f"http://{host}:{port}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.drain()
        super().handle_exit(sig, frame)

    def drain(self) -> None:
        """Begin to stop; from any thread or a signal handler."""
        self.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._app.service.begin_drain)


def _protocol_of(service: Service) -> type[H11Protocol]:
    """Connections that are broken when their client reads nothing for `write_timeout_s` while more
    waits to be written. What runs for them ends then, as for a client that left.

    h11 in asyncio's own loop on purpose: httptools and uvloop took the same 0.17 ms of CPU for a
    streamed token.
    """

    class ImpatientProtocol(H11Protocol):
        _write_timer: asyncio.TimerHandle | None = None

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_timer = self.loop.call_later(
                service.settings.write_timeout_s, self._give_up
            )

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def _give_up(self) -> None:
            service.metrics.write_timeouts.inc()
            self.transport.abort()

        def _stop_timer(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

    return ImpatientProtocol


def make_server(
    app: App,
    *,
    host: str,
    port: int,
    uds: str | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> DrainingServer:
    """A server that is not started yet. `on_ready` is told its address once it listens."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        uds=uds,
        log_config=None,  # logging is the application's
        access_log=False,  # ours is written by the gate
        lifespan="on",
        http=_protocol_of(app.service),
        loop="asyncio",
        ws="none",
        timeout_keep_alive=60,  # s; clients keep connections in pools
        timeout_graceful_shutdown=int(app.service.settings.drain_s + _EXTRA_S),
        server_header=False,
    )
    return DrainingServer(config, app, on_ready)


def serve(server: DrainingServer) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Returns normally after SIGTERM; SIGINT ends in
    `KeyboardInterrupt`, as everywhere.
    """
    # uvicorn sends itself the signal again when it is done, to whatever handler was there before.
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        server.run()
    finally:
        signal.signal(signal.SIGTERM, before)
