"""Server-sent events: a response whose parts are made while it is sent."""

import logging
from collections.abc import AsyncGenerator, Callable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from umbel.runtime.errors import EngineError, RequestCancelled, UmbelError
from umbel.server.errors import error_body
from umbel.server.record import record_of

logger = logging.getLogger(__name__)
DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(data: msgspec.Struct, name: str | None = None) -> bytes:
    """One event; JSON has no line breaks, so it is one line."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return b"".join((head, b"data: ", _encoder.encode(data), b"\n\n"))


def plain_failure(error: UmbelError) -> bytes:
    """The event that ends a stream with an error."""
    return event(error_body(error))


class EventStream(Response):
    """Sends `first`, then what `rest` gives; an error becomes the last event. `rest` is closed in
    any case, so what runs for it ends when the client leaves.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes, None],
        *,
        failure: Callable[[UmbelError], bytes] = plain_failure,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._first = first
        self._rest = rest
        self._failure = failure
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(scope)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _send_part(send, self._first)
            try:
                async for part in self._rest:
                    await _send_part(send, part)
            except RequestCancelled as error:  # nobody is there to read it
                record.error = error.code
                return
            except UmbelError as error:
                record.error = error.code
                await _send_part(send, self._failure(error))
            except OSError:
                raise
            except Exception as exc:
                logger.exception("request %s failed in its stream", record.request_id)
                record.error = EngineError.code
                fault = EngineError(f"the server failed: {type(exc).__name__}")
                await _send_part(send, self._failure(fault))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:  # the connection broke while it was written to
            record.error = RequestCancelled.code
        finally:
            await self._rest.aclose()


async def _send_part(send: Send, part: bytes) -> None:
    if part:
        await send({"type": "http.response.body", "body": part, "more_body": True})
