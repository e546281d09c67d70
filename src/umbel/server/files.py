"""`/v1/files`: input files of batches come in, their outputs go out."""

import re
import secrets
import time

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from umbel.runtime.errors import InvalidRequest
from umbel.server.answers import json_response
from umbel.server.batches_runner import BatchRunner
from umbel.server.bodies import read_body
from umbel.server.files_upload import Part, parse_form
from umbel.server.protocol.batches import FileDeleted, FileList, FileObject
from umbel.server.record import record_of
from umbel.server.service import Service

MAX_PAGE = 10_000
_ID = re.compile(r"file-[0-9a-f]{24}")


class UnknownFile(InvalidRequest):
    """No such file, or another tenant's."""

    code = "file_not_found"
    status = 404


class StoreFull(InvalidRequest):
    """The files and batches on disk are at their bound."""

    code = "store_full"
    status = 413


class FileHandlers:
    """The handlers, over the files of a runner."""

    def __init__(self, runner: BatchRunner) -> None:
        self._files = runner.files

    async def upload_file(self, service: Service, request: Request) -> Response:
        """Handler of `POST /v1/files`."""
        data = await read_body(request, service.settings.max_file_bytes)
        form = parse_form(request.headers.get("content-type", ""), data)
        file = _named(form, "file")
        purpose = _named(form, "purpose").text
        _check_form(form, purpose)
        stored = await self._files.stored_bytes()
        if stored + len(file.content) > service.settings.max_stored_bytes:
            raise StoreFull(
                f"files and batches take {stored} of the {service.settings.max_stored_bytes} bytes "
                "that this server keeps; delete files",
                param="file",
            )
        made = FileObject(
            id=f"file-{secrets.token_hex(12)}",
            bytes=len(file.content),
            created_at=int(time.time()),
            filename=file.filename or "upload.jsonl",
            purpose="batch",
        )
        await self._files.add(record_of(request.scope).tenant, made, file.content)
        return json_response(made)

    async def list_files(self, service: Service, request: Request) -> Response:
        """Handler of `GET /v1/files`."""
        limit = page_limit(request, MAX_PAGE, default=MAX_PAGE)
        page = await self._files.page(
            record_of(request.scope).tenant,
            after=request.query_params.get("after"),
            limit=limit + 1,
            is_ascending=request.query_params.get("order") == "asc",
        )
        has_more = len(page) > limit
        purpose = request.query_params.get("purpose")
        files = [file for file in page[:limit] if purpose in (None, file.purpose)]
        first, last = (files[0].id, files[-1].id) if files else (None, None)
        return json_response(FileList(data=files, first_id=first, last_id=last, has_more=has_more))

    async def retrieve_file(self, service: Service, request: Request) -> Response:
        """Handler of `GET /v1/files/{id}`."""
        return json_response(await self._find(request))

    async def file_content(self, service: Service, request: Request) -> Response:
        """Handler of `GET /v1/files/{id}/content`."""
        file = await self._find(request)
        return StreamingResponse(
            self._files.content(file.id), media_type="application/octet-stream"
        )

    async def delete_file(self, service: Service, request: Request) -> Response:
        """Handler of `DELETE /v1/files/{id}`. A batch that runs goes on without its input."""
        file_id = request.path_params["id"]
        if not await self._files.delete(record_of(request.scope).tenant, file_id):
            raise _unknown(file_id)
        return json_response(FileDeleted(id=file_id))

    async def _find(self, request: Request) -> FileObject:
        file_id = request.path_params["id"]
        file = None
        if _ID.fullmatch(file_id):
            file = await self._files.find(record_of(request.scope).tenant, file_id)
        if file is None:
            raise _unknown(file_id)
        return file


def page_limit(request: Request, maximum: int, *, default: int) -> int:
    """The query's `limit`. Raises `InvalidRequest`."""
    given = request.query_params.get("limit", str(default))
    if not given.isdecimal() or not given.isascii() or not 1 <= int(given[:9]) <= maximum:
        raise InvalidRequest(f"limit={given!r}: expected 1 to {maximum}", param="limit")
    return int(given)


def _check_form(form: dict[str, Part], purpose: str) -> None:
    unknown = sorted(name for name in form if name not in ("file", "purpose"))
    if unknown:
        raise InvalidRequest(
            f"the form has {unknown[0]!r}; it takes file and purpose (files are kept until they "
            "are deleted)",
            param=unknown[0],
        )
    if purpose != "batch":
        raise InvalidRequest(f"purpose={purpose!r}: expected 'batch'", param="purpose")


def _named(form: dict[str, Part], name: str) -> Part:
    if name not in form:
        raise InvalidRequest(f"the form has no field {name!r}", param=name)
    return form[name]


def _unknown(file_id: str) -> UnknownFile:
    return UnknownFile(f"there is no file {file_id!r}", param="id")
