"""Reading and checking request bodies: one typed decoder for each kind, made once."""

import re
from typing import Generic, TypeVar

import msgspec
from starlette.requests import Request

from umbel.runtime.errors import InvalidRequest
from umbel.server.errors import BodyTooLarge, InvalidJson, UnsupportedField

Body = TypeVar("Body", bound=msgspec.Struct)

_AT = re.compile(r"(.*) - at `(.*)`$", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`$", re.DOTALL)


class BodyDecoder(Generic[Body]):
    """Bytes to a body, or an `InvalidRequest` that names the field."""

    def __init__(self, kind: type[Body]) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, data: bytes) -> Body:
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError as exc:
            error = _explained(exc)
            if not isinstance(error, UnsupportedField):
                raise error from exc
            return self._without_nulls(data, error)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise InvalidJson(f"the body is not valid JSON: {exc}; send one JSON object") from exc

    def _without_nulls(self, data: bytes, error: UnsupportedField) -> Body:
        """Some clients send every field they know: null means the same as not given."""
        fields = msgspec.json.decode(data)
        assert isinstance(fields, dict)
        given = {name: value for name, value in fields.items() if value is not None}
        if len(given) == len(fields):
            raise error
        try:
            return msgspec.convert(given, self._kind)
        except msgspec.ValidationError as exc:
            raise _explained(exc) from exc


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises `BodyTooLarge` as soon as it is known to be; no more is read then."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    parts = []
    num_bytes = 0
    async for part in request.stream():
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
    return b"".join(parts)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than the {max_bytes} bytes that this server takes")


def _explained(exc: msgspec.ValidationError) -> InvalidRequest:
    message = str(exc)
    found = _AT.match(message)
    problem, path = (found[1], found[2]) if found else (message, "$")
    place = path.removeprefix("$").removeprefix(".")
    if unknown := _UNKNOWN.match(problem):
        param = f"{place}.{unknown[1]}".lstrip(".")
        return UnsupportedField(
            f"the field {param!r} is not supported; it might change the output, so it is not "
            "ignored: leave it out",
            param=param,
        )
    if missing := _MISSING.match(problem):
        param = f"{place}.{missing[1]}".lstrip(".")
        return InvalidRequest(f"the field {param!r} is missing", param=param)
    return InvalidRequest(f"{place or 'the body'}: {problem}", param=place or None)
