"""The lines of a batch: reading them, and answering one through the same handler as a request.

Used by the server's batches and by `umbel batch`.
"""

import asyncio
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.types import Message

from umbel.runtime.errors import UmbelError
from umbel.server.chat import chat_completions
from umbel.server.completions import completions
from umbel.server.guard import answer
from umbel.server.protocol.batches import (
    BatchEndpoint,
    BatchFault,
    InputLine,
    LineError,
    LineResponse,
    OutputLine,
)
from umbel.server.record import RequestRecord, put_record
from umbel.server.responses import responses
from umbel.server.routes import Handler
from umbel.server.service import Service

MAX_FAULTS = 100  # that are told
_HANDLERS: dict[BatchEndpoint, Handler] = {
    "/v1/chat/completions": chat_completions,
    "/v1/completions": completions,
    "/v1/responses": responses,
}
_QUEUE_FULL = 429
_STOPPED = frozenset({499, 503})  # we left; the server or its engine ends
_STREAM = re.compile(rb'"stream"\s*:\s*true')
_RETRY_S = (0.02, 1.0)  # the first wait and the longest

_decode_line = msgspec.json.Decoder(InputLine).decode
_decode_output = msgspec.json.Decoder(OutputLine).decode
encode_line = msgspec.json.Encoder().encode


class LinesStopped(UmbelError):
    """A line was given up before its answer came; it may be done again."""

    code = "cancelled"
    status = 499
    retryable = True


class StreamedLine(msgspec.Struct):
    """As much of a body as tells whether it wants a stream."""

    stream: bool | None = None


@dataclass(frozen=True, slots=True)
class ReadLines:
    """An input file, read. With faults nothing of it is done."""

    lines: list[tuple[int, InputLine]]  # number of the line, from 1
    faults: list[BatchFault]


def read_lines(data: bytes, *, max_lines: int, endpoint: str | None = None) -> ReadLines:
    """The requests of a file, blank lines left out. `endpoint`: the only url that is right."""
    lines: list[tuple[int, InputLine]] = []
    faults: list[BatchFault] = []
    seen: dict[str, int] = {}
    for number, text in _lines(data):
        fault = _read_line(text, number, lines, seen, endpoint)
        if fault is not None:
            faults.append(fault)
        if len(faults) == MAX_FAULTS or len(lines) > max_lines:
            break
    if len(lines) > max_lines:
        message = f"the file has more than the {max_lines} lines that a batch may have"
        faults.append(BatchFault(code="too_many_lines", message=message, line=max_lines + 1))
    if not lines and not faults:
        faults.append(BatchFault(code="empty_file", message="the file has no requests"))
    return ReadLines(lines, faults)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    start, number = 0, 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        text = data[start:end].strip()
        if text:
            yield number, text
        start = end + 1


def _read_line(
    text: bytes,
    number: int,
    lines: list[tuple[int, InputLine]],
    seen: dict[str, int],
    endpoint: str | None,
) -> BatchFault | None:
    try:
        line = _decode_line(text)
    except msgspec.ValidationError as exc:
        return BatchFault(code="invalid_line", message=str(exc), line=number)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return BatchFault(code="invalid_json_line", message=f"not JSON: {exc}", line=number)
    if endpoint is not None and line.url != endpoint:
        message = f"url is {line.url!r}, but the batch's endpoint is {endpoint!r}"
        return BatchFault(code="mismatched_endpoint", message=message, line=number, param="url")
    first = seen.setdefault(line.custom_id, number)
    if first != number:
        message = f"custom_id {line.custom_id!r} was used in line {first}; each must be unique"
        return BatchFault(
            code="duplicate_custom_id", message=message, line=number, param="custom_id"
        )
    lines.append((number, line))
    return None


def decode_stored(data: bytes) -> InputLine:
    """A line that was read before."""
    return _decode_line(data)


def decode_output(data: bytes) -> OutputLine:
    """A line of an output or error file. Raises `msgspec.DecodeError`."""
    return _decode_output(data)


async def answer_line(
    service: Service, line: InputLine, *, tenant: str | None, left: asyncio.Event
) -> OutputLine:
    """The answer to one line, tried again as long as the engine's queue is full. Once `left` is
    set what runs ends, and `LinesStopped` is raised; so it is when the server stops.
    """
    if _wants_stream(line):
        return refused_line(
            line, "unsupported_field", "stream=true has no meaning in a batch: leave it out"
        )
    wait_s, longest_s = _RETRY_S
    while not left.is_set() and not service.is_draining:
        request_id = f"req_{secrets.token_hex(12)}"
        request = _request(line, request_id, tenant, left)
        response = await answer(service, _HANDLERS[line.url], request)
        if response.status_code in _STOPPED:
            break
        if response.status_code != _QUEUE_FULL:
            body = msgspec.Raw(bytes(response.body))
            return OutputLine(
                id=_output_id(),
                custom_id=line.custom_id,
                response=LineResponse(
                    status_code=response.status_code, request_id=request_id, body=body
                ),
            )
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, longest_s)
    raise LinesStopped("the work on the requests was stopped before all of them were done")


def refused_line(line: InputLine, code: str, message: str) -> OutputLine:
    """An answer to a line that was not run."""
    error = LineError(code=code, message=message)
    return OutputLine(id=_output_id(), custom_id=line.custom_id, response=None, error=error)


def is_success(output: OutputLine) -> bool:
    """Whether it belongs in the output file; others belong in the error file."""
    return output.response is not None and output.response.status_code == 200


def input_lines(lines: Sequence[tuple[int, InputLine]]) -> list[bytes]:
    """Lines as they are stored."""
    return [encode_line(line) for _, line in lines]


def _wants_stream(line: InputLine) -> bool:
    if not _STREAM.search(bytes(line.body)):
        return False
    try:
        return msgspec.json.decode(line.body, type=StreamedLine).stream is True
    except msgspec.DecodeError:
        return False  # the handler says what is wrong


def _request(line: InputLine, request_id: str, tenant: str | None, left: asyncio.Event) -> Request:
    """A request as the gate would let it in. Its client leaves when `left` is set."""
    scope = {
        "type": "http", "http_version": "1.1", "method": line.method, "scheme": "http",
        "path": line.url, "raw_path": line.url.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"content-type", b"application/json")], "client": None, "server": None,
    }  # fmt: skip
    put_record(scope, RequestRecord(request_id, line.method, line.url, None, tenant=tenant))
    body = iter((bytes(line.body),))

    async def receive() -> Message:
        for part in body:
            return {"type": "http.request", "body": part, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    return Request(scope, receive)


def _output_id() -> str:
    return f"batch_req_{secrets.token_hex(12)}"
