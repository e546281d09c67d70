"""The application: routes, error answers, and the gate around them. Plain ASGI."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from umbel.frontend_dsl.tools import Tool
from umbel.runtime.engine import Engine
from umbel.server.batches import batch_routes
from umbel.server.batches_runner import BatchRunner
from umbel.server.dashboard import dashboard_routes
from umbel.server.errors import plain_error
from umbel.server.gate import Gate
from umbel.server.guard import answer
from umbel.server.openapi import make_document
from umbel.server.programs import program_routes
from umbel.server.routes import ROUTES, Route
from umbel.server.service import Service
from umbel.server.settings import ServerSettings
from umbel.server.store import Database
from umbel.server.trace_export import TRACE_ROUTES


class App:
    """An ASGI application over one engine, which its owner closes. `service` is for its owner,
    too: to drain it, or to look at it. Its lifespan runs `batches`.
    """

    def __init__(self, asgi: ASGIApp, service: Service, batches: BatchRunner) -> None:
        self._asgi = asgi
        self.service = service
        self.batches = batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._asgi(scope, receive, send)


def make_app(
    engine: Engine,
    settings: ServerSettings | None = None,
    *,
    more_routes: Sequence[Route] = (),
    tools: Collection[Tool] = (),
) -> App:
    """The server's application. `more_routes` are added to the server's own; `tools` are those
    that the graphs of clients may call.
    """
    settings = settings or ServerSettings()
    service = Service(engine, settings)
    batches = BatchRunner(service, Database(settings.state))
    routes = [
        *ROUTES,
        *batch_routes(batches),
        *program_routes(service, tools),
        *TRACE_ROUTES,
        *dashboard_routes(service),
        *more_routes,
    ]
    service.metrics.known_paths = frozenset(route.path for route in routes)
    document = msgspec.json.encode(make_document(routes, has_keys=bool(settings.api_keys)))

    async def openapi(service: Service, request: Request) -> Response:
        return Response(document, media_type="application/json")

    routes.append(Route("GET", "/openapi.json", openapi, "This document"))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await batches.start()
        try:
            yield
        finally:
            await batches.close()
            service.close()

    starlette = Starlette(
        routes=[_mounted(route, service) for route in routes],
        exception_handlers={HTTPException: _http_error},
        lifespan=lifespan,
    )
    starlette.router.redirect_slashes = False
    return App(Gate(starlette, settings, service.metrics), service, batches)


def _mounted(route: Route, service: Service) -> StarletteRoute:
    endpoint = partial(answer, service, route.handler)
    return StarletteRoute(route.path, endpoint, methods=[route.method])


async def _http_error(request: Request, exc: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(exc, HTTPException)
    method, path = request.method, request.url.path
    if exc.status_code == 405:
        allowed = (exc.headers or {}).get("Allow", "")
        message = f"{path} takes {allowed}, not {method}"
        return plain_error(405, message, "method_not_allowed", exc.headers or {})
    message = f"there is no {method} {path}; see /openapi.json for what there is"
    return plain_error(exc.status_code, message, "not_found", exc.headers or {})
