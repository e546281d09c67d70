"""The outermost layer, plain ASGI: who may come in, and one line of log for each who did."""

import hashlib
import hmac
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from umbel.server.errors import InvalidApiKey, error_response
from umbel.server.metrics import ServerMetrics
from umbel.server.record import RequestRecord, put_record
from umbel.server.settings import ServerSettings

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/openapi.json", "/dashboard"})
_MAX_ID_CHARS = 128


class Gate:
    """Checks the API key, gives each request an id and a tenant, counts and logs answers."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._keys = [(key.encode(), _tenant(key)) for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = _new_record(scope, headers)
        put_record(scope, record)

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = record.request_id
            await send(message)

        try:
            if self._keys and scope["path"] not in OPEN_PATHS:
                record.tenant = self._tenant_of(headers)
                if record.tenant is None:
                    record.error = InvalidApiKey.code
                    refusal = error_response(_refused(headers), retry_after_s=0)
                    await refusal(scope, receive, send_and_note)
                    return
            await self._app(scope, receive, send_and_note)
        finally:
            self._metrics.count_answer(record)
            record.log()

    def _tenant_of(self, headers: Headers) -> str | None:
        """Whose key it is. All keys are compared, in a time that tells nothing about them."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip().encode() if scheme.lower() == "bearer" else b""
        tenant = None
        for known, name in self._keys:
            if hmac.compare_digest(known, key):
                tenant = name
        return tenant


def _new_record(scope: Scope, headers: Headers) -> RequestRecord:
    given = headers.get("x-request-id", "")
    is_good = 0 < len(given) <= _MAX_ID_CHARS and given.isascii() and given.isprintable()
    client = scope.get("client")
    return RequestRecord(
        request_id=given if is_good else secrets.token_hex(12),
        method=scope["method"],
        path=scope["path"],
        client=client[0] if client else None,
    )


def _refused(headers: Headers) -> InvalidApiKey:
    if "authorization" not in headers:
        return InvalidApiKey(
            "no API key was given; send it in the header 'Authorization: Bearer <key>'"
        )
    return InvalidApiKey("the API key in the header 'Authorization' is not one of this server's")


def _tenant(key: str) -> str:
    """A name for the key's cache that does not show the key."""
    return hashlib.sha256(b"umbel tenant " + key.encode()).hexdigest()[:16]
