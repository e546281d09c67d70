"""What `stream` yields. Branches are named by their path: "root", "root/fork1[0]", ..."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from umbel.frontend_dsl.errors import ProgramError
from umbel.frontend_dsl.record import CallRecord

if TYPE_CHECKING:
    from umbel.frontend_dsl.state import State


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text was appended to `branch`; the texts of a branch in order are what it added to its
    parent's.

    `variable` is None for the program's own text and for a `gen` without a name.
    """

    branch: str
    variable: str | None
    text: str


@dataclass(frozen=True, slots=True)
class VariableDone:
    """A `gen` or `select` ended."""

    branch: str
    variable: str | None
    value: str
    record: CallRecord


@dataclass(frozen=True, slots=True)
class VariableFailed:
    """A `gen` or `select` failed, or was never tried because its branch had failed."""

    branch: str
    variable: str | None
    error: ProgramError


@dataclass(frozen=True, slots=True)
class ProgramDone:
    """The last event of a run that ended well."""

    state: "State"


@dataclass(frozen=True, slots=True)
class ProgramFailed:
    """The last event of a run that failed; the stream raises `error` after it."""

    state: "State"
    error: ProgramError


Event = TextDelta | VariableDone | VariableFailed | ProgramDone | ProgramFailed
