"""What a run on another machine says of itself: its report, and the events of its stream, as JSON.

`report_of` is the server's side; `served.state_of` makes a state of a report again.
"""

from typing import Any, TypeAlias

import msgspec

from umbel.frontend_dsl.branch import Branch
from umbel.frontend_dsl.errors import ProgramError, Site
from umbel.frontend_dsl.execution import Execution
from umbel.frontend_dsl.record import CallRecord
from umbel.frontend_dsl.segments import Segment, text_between
from umbel.runtime.errors import InvalidRequest, UmbelError
from umbel.runtime.outputs import CapturedText, FinishReason, Timing, TokenLogprob, Usage

Path: TypeAlias = tuple[str | int, ...]


class FailureReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `ProgramError`: `code` and `message` are those of its cause."""

    message: str
    code: str
    branch: str
    call: str | None = None
    site: Site | None = None


class CallReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `CallRecord`."""

    kind: str
    name: str | None = None
    site: Site
    text: str | None = None
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    usage: Usage = Usage()
    num_scored_tokens: int = 0
    timing: Timing = Timing()
    method: str | None = None
    scores: dict[str, float] = {}
    distribution: dict[str, float] = {}
    captures: dict[str, tuple[CapturedText, ...]] = {}
    retries: tuple[str, ...] = ()
    error: FailureReport | None = None


class BranchReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A branch shares the first `num_shared_chars` of its parent's text and the first
    `num_shared_messages` of its messages, and has the variables `inherited` from it. `open_role`
    is the message that it ends in, whose content begins at `open_start`.
    """

    branch: str
    parent: str | None = None
    num_shared_chars: int = 0
    text: str = ""
    num_shared_messages: int = 0
    messages: tuple[tuple[str, str], ...] = ()
    open_role: str | None = None
    open_start: int = 0
    inherited: tuple[str, ...] = ()
    calls: tuple[CallReport, ...] = ()
    error: FailureReport | None = None


class RunReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that ended well. `tuples`: where in `result` a list was a tuple."""

    branches: tuple[BranchReport, ...]
    result: Any = None
    tuples: tuple[Path, ...] = ()


class BranchStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="branch"):
    """A branch was forked; the first is the root, without a parent."""

    branch: str
    parent: str | None


class TextAppended(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """Text of a branch, in order. `variable` None: the program's own text, or an unnamed `gen`."""

    branch: str
    variable: str | None
    text: str


class VariableSet(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="variable"):
    """A `gen` or `select` ended."""

    branch: str
    variable: str | None
    value: str
    call: CallReport


class RunFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """A call failed, or (`is_last`) the whole run; `branch` and `variable` are those of a call."""

    error: FailureReport
    branch: str | None = None
    variable: str | None = None
    is_last: bool = False


class RunDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="done"):
    """The last event of a run that ended well. `usage` is the sum over its calls."""

    report: RunReport
    usage: Usage


RunEvent: TypeAlias = BranchStarted | TextAppended | VariableSet | RunFailed | RunDone


def report_of(execution: Execution) -> RunReport:
    """Raises `InvalidRequest` for a result that is not JSON."""
    try:
        result = msgspec.to_builtins(execution.result, str_keys=False)
        msgspec.json.encode(result)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the result of {execution.name!r} cannot be sent: {error}; return texts, numbers, "
            "lists and dicts with texts for keys"
        ) from error
    return RunReport(
        branches=tuple(_branch(branch) for branch in execution.branches),
        result=result,
        tuples=tuple(_tuples(execution.result, ())),
    )


def failure_of(error: ProgramError) -> FailureReport:
    cause = error.cause
    return FailureReport(
        message=str(cause) if isinstance(cause, UmbelError) else f"{type(cause).__name__}: {cause}",
        code=cause.code if isinstance(cause, UmbelError) else error.code,
        branch=error.branch,
        call=error.call,
        site=error.site,
    )


def call_of(record: CallRecord) -> CallReport:
    return CallReport(
        kind=record.kind,
        name=record.name,
        site=record.site,
        text=record.text,
        token_ids=record.token_ids,
        finish_reason=record.finish_reason,
        stop_reason=record.stop_reason,
        logprobs=record.logprobs,
        prompt_logprobs=record.prompt_logprobs,
        usage=record.usage,
        num_scored_tokens=record.num_scored_tokens,
        timing=record.timing,
        method=record.method,
        scores=dict(record.scores),
        distribution=dict(record.distribution),
        captures=dict(record.captures),
        retries=record.retries,
        error=None if record.error is None else failure_of(record.error),
    )


def inherited_by(branch: Branch) -> tuple[str, ...]:
    """The names of variables that a branch has from before its fork."""
    return tuple(name for name, call in branch.variables.items() if call.branch is not branch)


def _branch(branch: Branch) -> BranchReport:
    parent = branch.parent
    shared = None if parent is None else _shared(parent.end, branch.end)
    num_shared = 0
    if parent is not None:
        pairs = zip(parent.messages, branch.messages, strict=False)
        num_shared = next(
            (at for at, (a, b) in enumerate(pairs) if a != b),
            min(len(parent.messages), len(branch.messages)),
        )
    opened = branch.open_message
    return BranchReport(
        branch=branch.path,
        parent=None if parent is None else parent.path,
        num_shared_chars=len(text_between(None, shared)),
        text=text_between(shared, branch.end),
        num_shared_messages=num_shared,
        messages=branch.messages[num_shared:],
        open_role=None if opened is None else opened.role,
        open_start=0 if opened is None else len(text_between(None, opened.start)),
        inherited=inherited_by(branch),
        calls=tuple(call_of(call.record) for call in branch.calls if call.record is not None),
        error=None if branch.error is None else failure_of(branch.error),
    )


def _shared(parent: Segment | None, child: Segment | None) -> Segment | None:
    """The last segment that both have."""
    of_parent = set()
    while parent is not None:
        of_parent.add(id(parent))
        parent = parent.parent
    while child is not None and id(child) not in of_parent:
        child = child.parent
    return child


def _tuples(value: object, path: Path) -> list[Path]:
    items: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list | tuple):
        items = list(enumerate(value))
    found = [path] if isinstance(value, tuple) else []
    for key, item in items:
        found += _tuples(item, (*path, key))
    return found
