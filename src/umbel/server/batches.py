"""`/v1/batches`: many requests of a file, done in the background (see `batches_runner`)."""

import re
import secrets
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from umbel.runtime.errors import InvalidRequest, QueueFull
from umbel.server.answers import json_response
from umbel.server.batches_runner import BatchRunner
from umbel.server.bodies import BodyDecoder, read_body
from umbel.server.files import FileHandlers, UnknownFile, page_limit
from umbel.server.protocol.batches import (
    BatchBody,
    BatchList,
    BatchObject,
    FileDeleted,
    FileList,
    FileObject,
)
from umbel.server.record import record_of
from umbel.server.routes import Route
from umbel.server.service import Service

MAX_WINDOW_H = 168
MAX_PAGE = 100
_DECODER = BodyDecoder(BatchBody)
_WINDOW = re.compile(r"([1-9]\d{0,2})h")


class UnknownBatch(InvalidRequest):
    """No such batch, or another tenant's."""

    code = "batch_not_found"
    status = 404


class BatchEnded(InvalidRequest):
    """A batch that cannot be cancelled any more."""

    code = "batch_ended"
    status = 409


class BatchHandlers:
    """The handlers, over a runner."""

    def __init__(self, runner: BatchRunner) -> None:
        self._runner = runner

    async def create_batch(self, service: Service, request: Request) -> Response:
        """Handler of `POST /v1/batches`."""
        body = _DECODER.decode(await read_body(request, service.settings.max_body_bytes))
        service.check_takes_work()
        window_s = _window_s(body.completion_window)
        tenant = record_of(request.scope).tenant
        if await self._runner.files.find(tenant, body.input_file_id) is None:
            raise UnknownFile(f"there is no file {body.input_file_id!r}", param="input_file_id")
        if self._runner.num_running >= service.settings.max_open_batches:
            raise QueueFull(
                f"{self._runner.num_running} batches are open, as many as this server takes; try "
                "again later"
            )
        now = int(time.time())
        batch = BatchObject(
            id=f"batch_{secrets.token_hex(12)}",
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            status="validating",
            created_at=now,
            expires_at=now + window_s,
            metadata=body.metadata,
        )
        answer = json_response(batch)  # as it is now: the runner goes on with the object
        await self._runner.add(tenant, batch)
        return answer

    async def list_batches(self, service: Service, request: Request) -> Response:
        """Handler of `GET /v1/batches`."""
        limit = page_limit(request, MAX_PAGE, default=20)
        page = await self._runner.batches.page(
            record_of(request.scope).tenant,
            after=request.query_params.get("after"),
            limit=limit + 1,
        )
        batches = page[:limit]
        first, last = (batches[0].id, batches[-1].id) if batches else (None, None)
        return json_response(
            BatchList(data=batches, first_id=first, last_id=last, has_more=len(page) > limit)
        )

    async def retrieve_batch(self, service: Service, request: Request) -> Response:
        """Handler of `GET /v1/batches/{id}`."""
        return json_response(await self._find(request))

    async def cancel_batch(self, service: Service, request: Request) -> Response:
        """Handler of `POST /v1/batches/{id}/cancel`."""
        batch = await self._find(request)
        if not await self._runner.cancel(record_of(request.scope).tenant, batch.id):
            batch = await self._find(request)
            raise BatchEnded(f"the batch is {batch.status}: it cannot be cancelled any more")
        return json_response(await self._find(request))

    async def _find(self, request: Request) -> BatchObject:
        batch_id = request.path_params["id"]
        batch = await self._runner.batches.find(record_of(request.scope).tenant, batch_id)
        if batch is None:
            raise UnknownBatch(f"there is no batch {batch_id!r}", param="id")
        return batch


def batch_routes(runner: BatchRunner) -> Sequence[Route]:
    """The routes of files and batches over a runner."""
    files, batches = FileHandlers(runner), BatchHandlers(runner)
    page, found = (400,), (404,)
    return (
        Route(
            "POST", "/v1/files", files.upload_file, "Keep a file of requests",
            answer=FileObject, errors=(400, 413),
        ),
        Route("GET", "/v1/files", files.list_files, "List the files", answer=FileList, errors=page),
        Route(
            "GET", "/v1/files/{id}", files.retrieve_file, "Describe a file",
            answer=FileObject, errors=found,
        ),
        Route(
            "GET", "/v1/files/{id}/content", files.file_content, "Read a file",
            media_type="application/octet-stream", errors=found,
        ),
        Route(
            "DELETE", "/v1/files/{id}", files.delete_file, "Forget a file",
            answer=FileDeleted, errors=found,
        ),
        Route(
            "POST", "/v1/batches", batches.create_batch, "Do the requests of a file",
            body=BatchBody, answer=BatchObject, errors=(400, 404, 413, 429, 503),
        ),
        Route(
            "GET", "/v1/batches", batches.list_batches, "List the batches",
            answer=BatchList, errors=page,
        ),
        Route(
            "GET", "/v1/batches/{id}", batches.retrieve_batch, "How far a batch is",
            answer=BatchObject, errors=found,
        ),
        Route(
            "POST", "/v1/batches/{id}/cancel", batches.cancel_batch, "End a batch",
            answer=BatchObject, errors=(404, 409),
        ),
    )  # fmt: skip


def _window_s(window: str) -> int:
    found = _WINDOW.fullmatch(window)
    if found is None or int(found[1]) > MAX_WINDOW_H:
        raise InvalidRequest(
            f"completion_window={window!r}: expected '24h', or '1h' to '{MAX_WINDOW_H}h'",
            param="completion_window",
        )
    return int(found[1]) * 3600
