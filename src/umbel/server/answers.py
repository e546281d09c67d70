"""Whole answers: a struct as a JSON response."""

import msgspec
from starlette.responses import Response

_encoder = msgspec.json.Encoder()


def json_response(answer: msgspec.Struct, *, status: int = 200) -> Response:
    return Response(_encoder.encode(answer), status_code=status, media_type="application/json")
