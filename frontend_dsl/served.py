"""From the report of a run on a server back to a state, as if the program had run here."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from umbel.frontend_dsl.branch import Branch, OpenMessage
from umbel.frontend_dsl.calls import Gen, Select
from umbel.frontend_dsl.errors import ProgramError
from umbel.frontend_dsl.execution import Execution
from umbel.frontend_dsl.generation import GenCall, SelectCall
from umbel.frontend_dsl.pending import PendingCall
from umbel.frontend_dsl.record import CallRecord
from umbel.frontend_dsl.report_wire import BranchReport, CallReport, FailureReport, Path, RunReport
from umbel.frontend_dsl.segments import Segment
from umbel.frontend_dsl.state import State
from umbel.runtime.errors import EngineError, UmbelError
from umbel.runtime.params import SamplingParams

Types = Mapping[tuple[str, str], Any]  # classes that `json_schema` was, by branch and name


def state_of(report: RunReport, program: str, types: Types) -> State:
    """A state that is over. Its branches have text but no tokens: those are the server's."""
    execution = Execution.ended(program)
    branches: dict[str, Branch] = {"root": execution.root}
    for of_branch in report.branches:
        _fill(execution, branches, of_branch, types)
    execution.result = _restored(report.result, set(report.tuples), ())
    return State(execution.root)


def program_error(report: FailureReport, program: str) -> ProgramError:
    """The error that an engine here would have given, but for its own cause."""
    error = ProgramError(
        error_of(report.code, report.message),
        program=program,
        branch=report.branch,
        call=report.call,
        site=report.site,
    )
    error.was_seen = True
    return error


def error_of(code: str, message: str) -> UmbelError:
    """The error of that code; `EngineError` for one that only the server knows."""
    kinds: list[type[UmbelError]] = [UmbelError]
    for kind in kinds:
        if kind.code == code and kind is not ProgramError:
            return kind(message)
        kinds += kind.__subclasses__()
    return EngineError(f"{code}: {message}")


def record_of(report: CallReport, branch: str, program: str) -> CallRecord:
    """The record of a call of `branch`."""
    same = {field.name for field in fields(CallRecord)} - {"branch", "error"}
    error = None if report.error is None else program_error(report.error, program)
    return CallRecord(branch=branch, error=error, **{name: getattr(report, name) for name in same})


def _fill(
    execution: Execution, branches: dict[str, Branch], report: BranchReport, types: Types
) -> None:
    parent = branches[report.parent] if report.parent is not None else None
    if parent is None:
        branch = execution.root
        text, messages = report.text, report.messages
    else:
        branch = branches[report.branch] = execution.new_branch(parent, report.branch)
        branch.variables = {name: parent.variables[name] for name in report.inherited}
        text = parent.text()[: report.num_shared_chars] + report.text
        messages = (*parent.messages[: report.num_shared_messages], *report.messages)
    start = Segment(None, (), text[: report.open_start])
    branch.end = Segment(start, (), text[report.open_start :])
    branch.messages = messages
    if report.open_role is not None:
        branch.open_message = OpenMessage(report.open_role, start)
    if report.error is not None:
        branch.error = program_error(report.error, execution.name)
    for of_call in report.calls:
        call = _call(branch, of_call, types)
        branch.calls.append(call)
        if call.name is not None:
            branch.variables[call.name] = call


def _call(branch: Branch, report: CallReport, types: Types) -> PendingCall:
    call: PendingCall
    if report.kind == "select":
        method = report.method or ""
        select = Select(report.name, tuple(report.scores), method, 0.0, None, report.site)
        call = SelectCall(branch, select)
    else:
        schema = types.get((branch.path, report.name or ""))
        call = GenCall(
            branch, Gen(report.name, {}, report.site), SamplingParams(json_schema=schema)
        )
    call.value = report.text
    call.record = record_of(report, branch.path, branch.execution.name)
    call.error = call.record.error
    call.is_set = True
    return call


def _restored(value: Any, tuples: set[Path], path: Path) -> Any:
    if isinstance(value, dict):
        return {key: _restored(item, tuples, (*path, key)) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items = [_restored(item, tuples, (*path, at)) for at, item in enumerate(value)]
    return tuple(items) if path in tuples else items
