"""The OpenAPI document, made from the routes and the structs that decode and encode: it cannot
say anything that is not so.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from umbel import __version__
from umbel.server.errors import ErrorBody
from umbel.server.gate import OPEN_PATHS
from umbel.server.routes import Route

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_REASONS = {
    400: "The request is not valid", 401: "No valid API key", 404: "There is no such thing",
    409: "Its state does not allow it", 413: "The body is too large",
    429: "The queue is full", 500: "A fault of the server", 503: "The server is shutting down",
    504: "The deadline passed",
}  # fmt: skip


def make_document(routes: Sequence[Route], *, has_keys: bool) -> dict[str, Any]:
    """An OpenAPI 3.1 document as plain values."""
    kinds: list[Any] = [ErrorBody]
    for route in routes:
        kinds += [kind for kind in (route.body, route.answer, route.event) if kind is not None]
    kinds = list(dict.fromkeys(kinds))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        is_locked = has_keys and route.path not in OPEN_PATHS
        operation = _operation(route, schema_of, is_locked=is_locked)
        path = _PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = operation
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Umbel", "version": __version__},
        "paths": paths,
        "components": {"schemas": components},
    }
    if has_keys:
        bearer = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"key": bearer}
    return document


def _operation(route: Route, schema_of: dict[Any, Any], *, is_locked: bool) -> dict[str, Any]:
    codes = [*route.errors, *([401] if is_locked else [])]
    failed = {"application/json": {"schema": schema_of[ErrorBody]}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": getattr(route.handler, "__name__", route.path),
        "responses": {
            "200": {"description": "Done", "content": _content(route, schema_of)},
            **{str(code): {"description": _REASONS[code], "content": failed} for code in codes},
        },
    }
    if route.body is not None:
        content = {"application/json": {"schema": schema_of[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    if parameters:
        operation["parameters"] = parameters
    if is_locked:
        operation["security"] = [{"key": []}]
    return operation


def _content(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    if route.answer is None and route.event is None:
        return {route.media_type: {"schema": {"type": "string"}}}
    content = {}
    if route.answer is not None:
        content["application/json"] = {"schema": schema_of[route.answer]}
    if route.event is not None:
        # The schema of one event. Its `data` is such an object; chats and completions end with
        # "[DONE]".
        data = {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": schema_of[route.event],
        }
        event = {"type": "string"}
        content["text/event-stream"] = {
            "schema": {
                "type": "object",
                "properties": {"event": event, "data": data},
                "required": ["data"],
            }
        }
    return content
