"""What a server is told at start. Checked when built; opens nothing."""

from dataclasses import dataclass
from pathlib import Path

from umbel.frontend_dsl.graph.serial import GraphLimits
from umbel.runtime.errors import InvalidRequest

PROGRAM_LIMITS = GraphLimits(
    max_nodes=10_000, max_width=1024, max_branches=4096, max_calls=8192, max_tokens=2_000_000
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server, fixed at start. Raises `InvalidRequest` for a value out of range."""

    model_name: str | None = None  # what clients call the model; None: the engine's name for it
    api_keys: tuple[str, ...] = ()  # none: everybody may call
    max_body_bytes: int = 16 << 20
    max_request_s: float | None = None  # of every request; its own deadline may be shorter
    max_prompts: int = 1024  # of one completion request
    write_timeout_s: float = 60.0  # a client that reads nothing for so long is disconnected
    drain_s: float = 30.0  # after SIGTERM: how long running requests may go on
    retry_after_s: int = 1  # what clients are told when the queue is full
    num_workers: int = 2  # threads that render templates and tokenize
    dump: Path | None = None  # each request is appended to this file as a line of JSON
    state: Path | None = None  # folder of files and batches; None: they go with the process
    max_file_bytes: int = 64 << 20  # of an upload, which is held in memory
    max_stored_bytes: int = 8 << 30  # of all files and batches
    max_batch_lines: int = 50_000
    max_open_batches: int = 64
    max_programs: int = 32  # that run at a time, each in a thread
    program_limits: GraphLimits = PROGRAM_LIMITS
    max_program_chars: int = 1 << 24  # of text that one run puts together

    def __post_init__(self) -> None:
        for name in (
            "max_body_bytes", "max_prompts", "retry_after_s", "num_workers", "max_file_bytes",
            "max_stored_bytes", "max_batch_lines", "max_open_batches", "max_programs",
            "max_program_chars",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise self._bad(name, "at least 1")
        if self.drain_s < 0:
            raise self._bad("drain_s", "at least 0")
        if self.write_timeout_s <= 0:
            raise self._bad("write_timeout_s", "more than 0")
        if self.max_request_s is not None and self.max_request_s <= 0:
            raise self._bad("max_request_s", "more than 0, or None")
        if not all(key and key.isascii() for key in self.api_keys):
            raise InvalidRequest("api_keys must be non-empty ASCII strings", param="api_keys")

    def _bad(self, name: str, accepted: str) -> InvalidRequest:
        return InvalidRequest(
            f"{name}={getattr(self, name)!r} is not valid: expected {accepted}", param=name
        )
