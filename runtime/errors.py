"""Every error that Umbel raises on purpose.

    UmbelError
    ├── InvalidRequest            the caller's fault: an option, a prompt, an argument          400
    │   ├── ContextTooLong        prompt + max_tokens do not fit the model's context           400
    │   └── InvalidConstraint     a regex, choice list, schema or grammar that cannot be used  400
    │       ├── UnsupportedConstraint   valid, but not enforceable exactly: refused by name    400
    │       └── UnsatisfiableConstraint valid, but no output can ever satisfy it               400
    ├── ModelError                a model that cannot be loaded: path, format, architecture    400
    ├── QueueFull                 load: the waiting queue is at its bound                      429
    ├── RequestCancelled          aborted by its owner                                         499
    ├── DeadlineExceeded          the request's own time limit passed                          504
    ├── EngineClosed              submitted to an engine that was closed                       503
    └── EngineError               ours: a fault inside the engine                              500

`code` is stable and meant for programs, `status` is the HTTP status, `retryable` tells whether the
same request may succeed later. `frontend_dsl.errors.ProgramError` wraps these with program, call
and branch.
"""

from typing import ClassVar


class UmbelError(Exception):
    """Base of all errors raised on purpose; `str(error)` says what was got, what is accepted and
    what to do.
    """

    code: ClassVar[str] = "umbel_error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False


class InvalidRequest(UmbelError):
    """The request can never succeed as it stands. `param` names the option at fault, if any."""

    code = "invalid_request"
    status = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextTooLong(InvalidRequest):
    """Prompt and output together do not fit the model's context."""

    code = "context_length_exceeded"


class InvalidConstraint(InvalidRequest):
    """A constraint that cannot be compiled. `where`: a JSON Pointer, "line:column", or None."""

    code = "invalid_constraint"

    def __init__(self, message: str, *, param: str | None = None, where: str | None = None) -> None:
        super().__init__(message, param=param)
        self.where = where


class UnsupportedConstraint(InvalidConstraint):
    """A valid constraint that this version cannot enforce exactly, and therefore refuses."""

    code = "unsupported_constraint"


class UnsatisfiableConstraint(InvalidConstraint):
    """A valid constraint that no output of this model can satisfy."""

    code = "unsatisfiable_constraint"


class ModelError(UmbelError):
    """A model, tokenizer or weight file that cannot be loaded."""

    code = "model_error"
    status = 400


class QueueFull(UmbelError):
    """The waiting queue is at `EngineConfig.max_waiting`."""

    code = "queue_full"
    status = 429
    retryable = True


class RequestCancelled(UmbelError):
    """The request was cancelled by its owner before it finished."""

    code = "cancelled"
    status = 499


class DeadlineExceeded(UmbelError):
    """The request's own time limit passed before it finished."""

    code = "deadline_exceeded"
    status = 504


class EngineClosed(UmbelError):
    """The engine was closed before or while the request ran."""

    code = "engine_closed"
    status = 503


class EngineError(UmbelError):
    """A fault inside the engine; the message names the step and the original error is its cause."""

    code = "engine_error"
    status = 500
