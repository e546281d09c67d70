"""A handler's answer, or its error as one."""

import logging

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from umbel.runtime.errors import EngineError, RequestCancelled, UmbelError
from umbel.server.errors import error_response
from umbel.server.record import record_of
from umbel.server.routes import Handler
from umbel.server.service import Service

logger = logging.getLogger(__name__)


async def answer(service: Service, handler: Handler, request: Request) -> Response:
    """What `handler` answers; nothing a client sends raises out of here."""
    record = record_of(request.scope)
    try:
        return await handler(service, request)
    except ClientDisconnect:
        error: UmbelError = RequestCancelled("the client closed the connection")
    except UmbelError as exc:
        error = exc
    except Exception as exc:
        logger.exception("request %s failed", record.request_id)
        error = EngineError(
            f"the server failed ({type(exc).__name__}); its log has request {record.request_id}"
        )
    record.error = error.code
    return error_response(error, retry_after_s=service.settings.retry_after_s)
