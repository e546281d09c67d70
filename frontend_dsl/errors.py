"""Errors of programs: what failed, at which call and line, in which branch, and why."""

import os
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar

from umbel.runtime.errors import UmbelError

_PACKAGE = os.path.dirname(__file__) + os.sep


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @classmethod
    def here(cls) -> "Site":
        """The line outside this package that is being executed."""
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
            frame = frame.f_back
        return cls(frame.f_code.co_filename, frame.f_lineno)

    @classmethod
    def of_error(cls, error: BaseException, program_file: str) -> "Site | None":
        """The last line of `program_file` (else of any user file) that `error` passed through."""
        in_program: Site | None = None
        elsewhere: Site | None = None
        traceback: TracebackType | None = error.__traceback__
        while traceback is not None:
            site = cls(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
            if site.file == program_file:
                in_program = site
            elif not site.file.startswith(_PACKAGE):
                elsewhere = site
            traceback = traceback.tb_next
        return in_program or elsewhere


class ProgramError(UmbelError):
    """A program run, or one of its calls, failed; `cause` (also `__cause__`) is the original error.

    `call` describes the call as it was written (`gen('verdict')`), None when the program's own code
    failed. `was_seen` turns True when the program met the error: by reading a value, or by looking
    at `.error`.
    """

    code: ClassVar[str] = "program_error"

    def __init__(
        self,
        cause: BaseException,
        *,
        program: str,
        branch: str,
        call: str | None,
        site: Site | None,
    ) -> None:
        where = (
            f"{call or 'program code'} at {site}" if site is not None else (call or "program code")
        )
        detail = str(cause) if isinstance(cause, UmbelError) else f"{type(cause).__name__}: {cause}"
        super().__init__(f"program {program!r}, branch {branch}, {where}: {detail}")
        self.cause = cause
        self.program = program
        self.branch = branch
        self.call = call
        self.site = site
        self.was_seen = False
        self.__cause__ = cause
