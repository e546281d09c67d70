"""Runs the application under uvicorn until a signal, and lets what runs finish then."""

import asyncio
import logging
import signal
import socket
from types import FrameType

import uvicorn

from umbel.server.app import App

logger = logging.getLogger(__name__)
_EXTRA_S = 5.0  # after the calls were ended, for their answers to be written


class DrainingServer(uvicorn.Server):
    """On a signal: no new connections and no new work; calls go on for the drain time of the
    settings, then they end with an error that says so.
    """

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.drain()
        super().handle_exit(sig, frame)

    def drain(self) -> None:
        """Begin to stop; from any thread or a signal handler."""
        self.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._app.service.begin_drain)


def make_server(app: App, *, host: str, port: int, uds: str | None = None) -> DrainingServer:
    """A server that is not started yet."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        uds=uds,
        log_config=None,  # logging is the application's
        access_log=False,  # ours is written by the gate
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=int(app.service.settings.drain_s + _EXTRA_S),
        server_header=False,
    )
    return DrainingServer(config, app)


def serve(app: App, *, host: str, port: int, uds: str | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Returns normally after SIGTERM; SIGINT ends in
    `KeyboardInterrupt`, as everywhere.
    """
    server = make_server(app, host=host, port=port, uds=uds)
    # uvicorn sends itself the signal again when it is done, to whatever handler was there before.
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        server.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    if not server.started:
        raise OSError(f"the server could not start on {uds or f'{host}:{port}'}")
