"""`/dashboard`: one page that shows the engine at work, and the data that it asks for."""

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from umbel.server.answers import json_response
from umbel.server.dashboard_sample import Sampler
from umbel.server.dashboard_view import DashboardData, make_view
from umbel.server.record import record_of
from umbel.server.routes import Route
from umbel.server.service import Service

_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


class DashboardHandlers:
    """The handlers, over a sampler. The page is open to all; its data needs the API key, where
    there are keys.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        page = files("umbel.server").joinpath("static/dashboard.html").read_bytes()
        self._page = page
        self._headers = {
            "content-security-policy": _policy(page),
            "cache-control": "no-cache",
            "x-content-type-options": "nosniff",
        }

    async def dashboard(self, service: Service, request: Request) -> Response:
        """Handler of `GET /dashboard`."""
        return Response(self._page, media_type="text/html", headers=self._headers)

    async def dashboard_data(self, service: Service, request: Request) -> Response:
        """Handler of `GET /dashboard/data`."""
        sample = await self._sampler.sample()
        view = await service.work(
            lambda: make_view(
                sample,
                service.engine.tokenizer,
                model=service.model_name,
                block_size=service.engine.config.block_size,
                tenant=record_of(request.scope).tenant,
                is_draining=service.is_draining,
            )
        )
        return json_response(view)


def dashboard_routes(service: Service) -> Sequence[Route]:
    """The routes of the dashboard of a server."""
    handlers = DashboardHandlers(Sampler(service.engine, service.tracer))
    return (
        Route(
            "GET", "/dashboard", handlers.dashboard, "The page that shows the engine at work",
            media_type="text/html",
        ),
        Route(
            "GET", "/dashboard/data", handlers.dashboard_data, "What that page draws",
            answer=DashboardData,
        ),
    )  # fmt: skip


def _policy(page: bytes) -> str:
    """Nothing but what the page brings along, and answers of this server."""
    sources: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        sources[kind.decode()].append(f"'sha256-{digest}'")
    return (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'self'; script-src {' '.join(sources['script'])}; "
        f"style-src {' '.join(sources['style'])}"
    )
