"""What is known of one HTTP request: filled while it is served, written to the access log once."""

import logging
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.types import Scope

logger = logging.getLogger("umbel.access")
_SCOPE_KEY = "umbel.record"
_encoder = msgspec.json.Encoder()


@dataclass(slots=True)
class RequestRecord:
    """One line of the access log."""

    request_id: str
    method: str
    path: str
    client: str | None
    started_s: float = field(default_factory=time.perf_counter)
    tenant: str | None = None  # set by the gate
    status: int = 0  # set by the gate
    error: str | None = None  # code of the error, also of one in the middle of a stream
    is_stream: bool = False
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish: str | None = None

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started_s

    def log(self) -> None:
        """INFO: a JSON object; costs nothing when nobody listens."""
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", _encoder.encode(self._line()).decode())

    def _line(self) -> dict[str, Any]:
        return {
            "time": time.time(),
            "request_id": self.request_id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "duration_s": round(self.elapsed_s, 6),
            "client": self.client,
            "tenant": self.tenant,
            "stream": self.is_stream,
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.num_cached_tokens,
            "completion_tokens": self.num_output_tokens,
            "finish": self.finish,
            "error": self.error,
        }


def put_record(scope: Scope, record: RequestRecord) -> None:
    scope[_SCOPE_KEY] = record


def record_of(scope: Scope) -> RequestRecord:
    """The record that the gate made for the request."""
    record = scope[_SCOPE_KEY]
    assert isinstance(record, RequestRecord)
    return record
