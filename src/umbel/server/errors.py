"""Errors as clients see them: OpenAI's shape, with the status and the stable code of the error's
class. Every error answer of the server is made here.
"""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from umbel.runtime.errors import (
    InvalidConstraint,
    InvalidRequest,
    QueueFull,
    UmbelError,
)


class InvalidJson(InvalidRequest):
    """The body is not JSON."""

    code = "invalid_json"


class BodyTooLarge(InvalidRequest):
    """The body is larger than the server takes."""

    code = "body_too_large"
    status = 413


class UnknownModel(InvalidRequest):
    """A model that this server does not have."""

    code = "model_not_found"
    status = 404


class InvalidApiKey(UmbelError):
    """The server wants an API key, and got none or a wrong one."""

    code = "invalid_api_key"
    status = 401


class ServerDraining(UmbelError):
    """The server is shutting down; another, or this one later, may take the request."""

    code = "server_draining"
    status = 503
    retryable = True


class UnsupportedField(InvalidRequest):
    """A field, or a value of a field, that would change the output and is not supported."""

    code = "unsupported_field"


class ErrorDetail(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str
    where: str | msgspec.UnsetType | None = msgspec.UNSET  # JSON Pointer into a schema, or "3:7"


class ErrorBody(msgspec.Struct, kw_only=True):
    error: ErrorDetail


_TYPES = {401: "authentication_error", 404: "invalid_request_error", 429: "rate_limit_error"}
_encoder = msgspec.json.Encoder()


def error_body(error: UmbelError) -> ErrorBody:
    """OpenAI's error object; `where` is added for constraints."""
    type_ = _TYPES.get(error.status, "server_error")
    if error.status < 500 and error.status not in _TYPES:
        type_ = "invalid_request_error"
    where = error.where if isinstance(error, InvalidConstraint) else None
    return ErrorBody(
        error=ErrorDetail(
            message=str(error),
            type=type_,
            param=error.param if isinstance(error, InvalidRequest) else None,
            code=error.code,
            where=msgspec.UNSET if where is None else where,
        )
    )


def error_response(
    error: UmbelError, *, retry_after_s: int, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer to a request that failed before anything was sent."""
    headers = dict(headers or {})
    if error.retryable or isinstance(error, QueueFull):
        headers["retry-after"] = str(retry_after_s)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status == 413:
        headers["connection"] = "close"  # the rest of the body is not read
    return Response(
        _encoder.encode(error_body(error)),
        status_code=error.status,
        media_type="application/json",
        headers=headers,
    )


def plain_error(status: int, message: str, code: str, headers: Mapping[str, str]) -> Response:
    """An error that has no class: an unknown route or method."""
    detail = ErrorDetail(message=message, type="invalid_request_error", param=None, code=code)
    return Response(
        _encoder.encode(ErrorBody(error=detail)),
        status_code=status,
        media_type="application/json",
        headers=dict(headers),
    )
