"""`/v1/files` and `/v1/batches`: what is sent, what is stored, and the lines of the files."""

from typing import Literal

import msgspec

BatchEndpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses"]
BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
    "cancelled",
]  # fmt: skip
Purpose = Literal["batch", "batch_output"]


class FileObject(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"  # the deprecated field that clients still read


class FileList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class BatchBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`completion_window`: "1h" to "168h"; lines that are left then have expired."""

    input_file_id: str
    endpoint: BatchEndpoint
    completion_window: str
    metadata: dict[str, str] | None = None


class BatchFault(msgspec.Struct, kw_only=True):
    """A line of the input file that cannot be one."""

    code: str
    message: str
    line: int | None = None  # from 1
    param: str | None = None


class BatchFaults(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchFault]


class RequestCounts(msgspec.Struct, kw_only=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(msgspec.Struct, kw_only=True):
    """Times are Unix times in seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: BatchEndpoint
    errors: BatchFaults | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None


class BatchList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputLine(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One request of a batch: a line of its input file."""

    custom_id: str
    method: Literal["POST"]
    url: BatchEndpoint
    body: msgspec.Raw


class LineResponse(msgspec.Struct, kw_only=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, kw_only=True):
    code: str
    message: str


class OutputLine(msgspec.Struct, kw_only=True):
    """What came of a line: of the output file (status 200) or the error file (all others)."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None = None
