"""What a program sees: `s += ...`, `s["x"]`, `s.fork(n)`, roles, and after the run the same to
read.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Self, overload

from umbel.frontend_dsl.branch import Branch
from umbel.frontend_dsl.calls import Expression, Gen, Message, Select, Sum
from umbel.frontend_dsl.decoding import decode_json
from umbel.frontend_dsl.errors import ProgramError, Site
from umbel.frontend_dsl.fibers import run_bodies
from umbel.frontend_dsl.generation import GenCall, SelectCall
from umbel.frontend_dsl.operations import AppendText, CloseRole, ForkPoint, OpenRole
from umbel.frontend_dsl.pending import PendingCall
from umbel.frontend_dsl.record import CallRecord
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams

MAX_FORK_WIDTH = 4096


class State:
    """One branch of a program run.

    Appending never waits. Reading (`s["x"]`, `text()`, `messages()`, ...) waits for what it reads,
    and raises the `ProgramError` of a call that failed. A branch ends with its first failed call:
    what was appended after it is not run, and reading it raises the same error.
    """

    __slots__ = ("_branch",)

    def __init__(self, branch: Branch) -> None:
        self._branch = branch

    def __iadd__(self, value: str | Expression) -> Self:
        self._branch.execution.require_open(self._branch)
        self._append(value, Site.here())
        return self

    def __getitem__(self, name: str) -> str:
        """The text of the `gen` or the choice of the `select` called `name`."""
        value = self._finished(name).value
        assert value is not None
        return value

    def __contains__(self, name: object) -> bool:
        """Whether the branch (or a parent before the fork) has a variable of that name; never
        waits.
        """
        return name in self._branch.variables

    def __repr__(self) -> str:
        return f"<State of {self._branch.execution.name}, {self._branch.path}>"

    def json(self, name: str) -> Any:
        """The variable decoded from JSON; an instance of its `json_schema`, if that was a type."""
        return self.json_at(name, Site.here())

    def json_at(self, name: str, site: Site) -> Any:
        """`json` for a reader at `site`."""
        call = self._finished(name)
        assert call.value is not None
        assert call.record is not None
        schema = call.params.json_schema if isinstance(call, GenCall) else None
        try:
            return decode_json(call.value, schema)
        except ValueError as error:
            reason = call.record.finish_reason
            cause = InvalidRequest(
                f"the value of {name!r} is not JSON for its schema ({error}); it ended by "
                f"{reason.value if reason else 'choice'}: {call.value!r}"
            )
            raise self._refusal(cause, str(call), site) from error

    def meta(self, name: str) -> CallRecord:
        """Tokens, timing, log-probabilities, distribution of the call `name`; never raises its
        error.
        """
        call = self._call(name)
        self._branch.execution.wait(call)
        assert call.record is not None
        if call.error is not None:
            call.error.was_seen = True
        return call.record

    def text(self) -> str:
        """All text of the branch from the start, the template's included."""
        self._settle()
        return self._branch.text()

    def messages(self) -> list[dict[str, str]]:
        """The messages so far ({"role", "content"}), the open one last."""
        self._settle()
        return self._branch.all_messages()

    def variables(self) -> dict[str, str]:
        """All variables by name; those that failed are left out (see `error`)."""
        calls = self._branch.variables
        for call in calls.values():
            self._branch.execution.wait(call)
        return {name: call.value for name, call in calls.items() if call.value is not None}

    def fork(self, width: int) -> "Forks":
        """`width` branches that go on from here; they share what is there so far."""
        branch = self._branch
        branch.execution.require_open(branch)
        if (
            isinstance(width, bool)
            or not isinstance(width, int)
            or not 1 <= width <= MAX_FORK_WIDTH
        ):
            raise InvalidRequest(
                f"fork({width!r}) is not valid: expected an integer from 1 to {MAX_FORK_WIDTH}"
            )
        branch.num_forks += 1
        name = f"{branch.path}/fork{branch.num_forks}"
        children = [branch.execution.new_branch(branch, f"{name}[{idx}]") for idx in range(width)]
        branch.add(ForkPoint(children, Site.here()))
        return Forks([State(child) for child in children])

    def map(self, function: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """`function(branch, item)` for each item, each on a branch of its own, all at the same
        time; what they return, in the order of the items.

        The function appends to its own branch only. Raises the error of the first item that failed.
        """
        return map_on(self, function, [(item,) for item in items])

    def reduce(self, function: Callable[..., Any], items: Iterable[Any]) -> Any:
        """Combine the items two by two with `function(branch, left, right)`, each pair on a branch
        of its own, and then what they return, until one is left: as many rounds as the logarithm.
        The order of the items is kept.
        """
        return reduced(list(items), lambda pairs: map_on(self, function, pairs))

    def system(self) -> "RoleContext":
        """`with s.system():` what is appended inside is a system message."""
        return RoleContext(self._branch, "system")

    def user(self) -> "RoleContext":
        """`with s.user():` what is appended inside is a user message."""
        return RoleContext(self._branch, "user")

    def assistant(self) -> "RoleContext":
        """`with s.assistant():` what is appended inside is an assistant message."""
        return RoleContext(self._branch, "assistant")

    @property
    def error(self) -> ProgramError | None:
        """Why this branch (for the root after a run: the run) failed, or None. Waits; never raises
        it.
        """
        branch = self._branch
        branch.execution.settle(branch)
        error = branch.error
        if branch.execution.is_over and branch.parent is None:
            error = branch.execution.error or error
        if error is not None:
            error.was_seen = True
        return error

    @property
    def path(self) -> str:
        """The branch's name: "root", "root/fork1[0]", ..."""
        return self._branch.path

    @property
    def branches(self) -> list["State"]:
        """The branches that were forked from this one, in order."""
        return [State(child) for child in self._branch.children]

    @property
    def calls(self) -> list[CallRecord]:
        """The calls of this branch alone, in order, unnamed ones included. Waits for them."""
        self._branch.execution.settle(self._branch)
        return [call.record for call in self._branch.calls if call.record is not None]

    @property
    def result(self) -> Any:
        """What the program's function returned; None before."""
        return self._branch.execution.result

    def _append(self, value: object, site: Site) -> None:
        branch = self._branch
        if isinstance(value, str):
            if value:
                branch.add(AppendText(value, site))
        elif isinstance(value, Gen | Select):
            append_call(branch, value)
        elif isinstance(value, Sum):
            for term in value.terms:
                self._append(term, site)
        elif isinstance(value, Message):
            with RoleContext(branch, value.role):
                for term in value.terms:
                    self._append(term, site)
        else:
            raise InvalidRequest(
                f"cannot append {type(value).__name__} {value!r} to a program's state; "
                "append text (str(...)), gen, select or a message"
            )

    def _call(self, name: str) -> PendingCall:
        call = self._branch.variables.get(name)
        if call is None:
            known = ", ".join(sorted(self._branch.variables)) or "none so far"
            cause = InvalidRequest(f"there is no variable {name!r}; the branch has: {known}")
            raise self._refusal(cause, f"reading {name!r}", Site.here())
        return call

    def _finished(self, name: str) -> PendingCall:
        call = self._call(name)
        self._branch.execution.wait(call)
        if call.error is not None:
            call.error.was_seen = True
            raise call.error
        return call

    def _settle(self) -> None:
        branch = self._branch
        branch.execution.settle(branch)
        if branch.error is not None and not branch.execution.is_over:
            branch.error.was_seen = True
            raise branch.error

    def _refusal(self, cause: BaseException, call: str, site: Site) -> ProgramError:
        return _refusal(self._branch, cause, call, site)


def map_on(
    state: State, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """`function(branch, *arguments)` for each, on branches of `state`."""
    if not arguments:
        return []
    forks = state.fork(len(arguments))
    bodies = [
        partial(function, branch, *given) for branch, given in zip(forks, arguments, strict=True)
    ]
    branches = [branch._branch for branch in forks]
    return run_bodies(branches[0].execution, branches, bodies)


def reduced(values: list[Any], combine: Callable[[list[tuple[Any, Any]]], list[Any]]) -> Any:
    """One value of all; `combine` makes one of each pair. Raises `InvalidRequest` for none."""
    if not values:
        raise InvalidRequest("reduce of no items has no value; give it at least one")
    while len(values) > 1:
        pairs = list(zip(values[::2], values[1::2], strict=False))
        odd = values[-1:] if len(values) % 2 else []
        values = [*combine(pairs), *odd]
    return values[0]


def append_call(branch: Branch, expression: Gen | Select, *, rank: int = 0) -> PendingCall:
    """Append a call to `branch`; what `s += gen(...)` and the nodes of a graph do.

    Of the calls that are ready together those of higher `rank` are submitted first.
    """
    call: PendingCall
    if isinstance(expression, Gen):
        options = {**branch.execution.defaults, **expression.options}
        call = GenCall(branch, expression, SamplingParams(**options))
    else:
        call = SelectCall(branch, expression)
    call.rank = rank
    name = expression.name
    if name is not None:
        other = branch.variables.get(name)
        # A child may use a parent's name again: it is another branch.
        if other is not None and other.branch is branch:
            cause = InvalidRequest(
                f"the variable {name!r} exists already: {other} at {other.site}; "
                f'use another name (in a loop: f"{name}{{i}}") or a fork'
            )
            raise _refusal(branch, cause, str(call), call.site)
        branch.variables[name] = call
    call.recorded = branch.execution.recorded(branch.path, len(branch.calls))
    branch.calls.append(call)
    branch.add(call)
    return call


def _refusal(branch: Branch, cause: BaseException, call: str, site: Site) -> ProgramError:
    program = branch.execution.name
    return ProgramError(cause, program=program, branch=branch.path, call=call, site=site)


class RoleContext:
    """`with s.user(): ...`: opens a message of the model's template and closes it at the end."""

    def __init__(self, branch: Branch, role: str) -> None:
        self._branch = branch
        self._role = role

    def __enter__(self) -> None:
        branch = self._branch
        branch.execution.require_open(branch)
        site = Site.here()
        if branch.role is not None:
            if not branch.role_is_inherited:
                raise InvalidRequest(
                    f"a message of {self._role} inside one of {branch.role}; "
                    "close the one before the other"
                )
            # The parent's `with` cannot end here, so the message it opened ends with the next one.
            branch.add(CloseRole(branch.role, site))
        branch.role, branch.role_is_inherited = self._role, False
        branch.add(OpenRole(self._role, site))

    def __exit__(self, *_: object) -> None:
        branch = self._branch
        branch.role = None
        if not branch.execution.is_over:
            branch.add(CloseRole(self._role, Site.here()))


class Forks(Sequence[State]):
    """The branches of one `fork`, like a list."""

    def __init__(self, branches: list[State]) -> None:
        self._branches = branches

    def join(self, *, first: int | None = None, raise_errors: bool = False) -> list[State]:
        """Wait until all branches have done what was appended to them; gives the branches.

        `first`: wait only until so many of them are done without an error, and cancel what the
        others and their forks still have under way; those end with `RequestCancelled`. Gives the
        ones that were first; fewer than `first` if too many failed.

        A failed branch is a value: see `errors`. With `raise_errors` the first error is raised.
        """
        if first is not None:
            return self._join_first(first, raise_errors)
        errors = self.errors if raise_errors else self._settle()
        for error in errors:
            if error is not None and raise_errors:
                raise error
        return list(self._branches)

    def race(self) -> State:
        """The first branch that is done without an error; the others are cancelled. Raises the
        first branch's error if all failed.
        """
        winners = self.join(first=1)
        if not winners:
            errors = [error for error in self.errors if error is not None]
            raise errors[0]
        return winners[0]

    @property
    def errors(self) -> list[ProgramError | None]:
        """Per branch why it failed, or None. Waits. Looking counts as having met the errors."""
        return [branch.error for branch in self._branches]

    @property
    def succeeded(self) -> list[State]:
        """The branches that did not fail. Waits. Asking counts as having met the errors."""
        return [branch for branch in self._branches if branch.error is None]

    @overload
    def __getitem__(self, index: int) -> State: ...
    @overload
    def __getitem__(self, index: slice) -> list[State]: ...
    def __getitem__(self, index: int | slice) -> State | list[State]:
        return self._branches[index]

    def __setitem__(self, index: int, value: State) -> None:
        """`forks[i] += ...` assigns what `+=` returned; nothing else may be put in."""
        if value is not self._branches[index]:
            raise InvalidRequest("the branches of a fork cannot be replaced")

    def __len__(self) -> int:
        return len(self._branches)

    def __iter__(self) -> Iterator[State]:
        return iter(self._branches)

    def _join_first(self, first: int, raise_errors: bool) -> list[State]:
        if isinstance(first, bool) or not isinstance(first, int) or first < 1:
            raise InvalidRequest(f"join(first={first!r}) is not valid: expected 1 or more")
        branches = [state._branch for state in self._branches]
        winners = branches[0].execution.settle_first(branches, first)
        if raise_errors and len(winners) < first:
            for error in self.errors:
                if error is not None:
                    raise error
        return [State(branch) for branch in winners]

    def _settle(self) -> list[ProgramError | None]:
        for branch in self._branches:
            branch._branch.execution.settle(branch._branch)
        return []
