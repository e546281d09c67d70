"""The state that a program sees while it is traced: appending records nodes.

It answers as `State` does, and raises what `State` raises; whatever it cannot answer leaves the
trace.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn, Self

from umbel.frontend_dsl.calls import Expression, Gen, Message, Select, Sum
from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.graph import nodes
from umbel.frontend_dsl.state import MAX_FORK_WIDTH
from umbel.frontend_dsl.tools import Tool
from umbel.frontend_dsl.tracing.few import known
from umbel.frontend_dsl.tracing.leaving import LeaveTrace, NotTraceable
from umbel.frontend_dsl.tracing.outcomes import gen_outcomes, schema_data
from umbel.frontend_dsl.tracing.path import MAX_OUTCOMES, Path
from umbel.frontend_dsl.tracing.results import Owner, TraceJson, TraceMeta, as_data
from umbel.frontend_dsl.tracing.symbols import Symbol, has_symbol, parts_of
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams


@dataclass(slots=True, eq=False)
class Recording:
    """What all states of one path share. `types`: the Python types given as `json_schema`."""

    path: Path
    defaults: dict[str, Any]
    files: dict[str, int]
    types: dict[Owner, Any]
    states: dict[str, "TraceState"] = field(default_factory=dict)
    tools: dict[str, Tool] = field(default_factory=dict)
    goes_apart: bool = True  # bodies of maps are followed by themselves
    # Calls of `map` whose bodies are not, and why.
    multiplies: dict[Site, str] = field(default_factory=dict)

    def state(self, branch: str) -> "TraceState":
        return self.states.setdefault(branch, TraceState(self, branch))

    def wait_for(self, branch: str, name: str, *, is_json: bool = False) -> None:
        """The program reads a value: whatever it does with it, it fails here if the call failed."""
        self.path.add(nodes.Await(branch=branch, name=name, is_json=is_json, **self.where()))

    def where(self, site: Site | None = None) -> dict[str, int]:
        site = site or self.path.site()
        return {"file": self.files.setdefault(site.file, len(self.files)), "line": site.line}


class TraceState:
    """One branch. All that changes is kept as facts of the path."""

    def __init__(self, recording: Recording, branch: str) -> None:
        self._recording = recording
        self._branch = branch

    def trace_key(self) -> Hashable:
        return self._branch

    def __iadd__(self, value: str | Expression) -> Self:
        self._append(value)
        return self

    def __getitem__(self, name: str) -> Symbol:
        branch, owned = self._owner(name)
        self._recording.wait_for(branch, owned)
        return Symbol(self._path, (nodes.Ref(branch, owned),))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def json(self, name: str) -> "TraceJson":
        owner = self._owner(name)
        self._recording.wait_for(*owner, is_json=True)
        return TraceJson(self._path, owner)

    def fork(self, width: int) -> "TraceForks":
        if isinstance(width, bool) or not isinstance(width, int):
            raise InvalidRequest(f"fork({width!r}) is not valid: expected an integer")
        if not 1 <= width <= MAX_FORK_WIDTH:
            raise InvalidRequest(f"fork({width!r}) is not valid: at most {MAX_FORK_WIDTH}")
        recording, path = self._recording, self._path
        number = self.count_forks()
        names = tuple(f"{self._branch}/fork{number}[{idx}]" for idx in range(width))
        role = path.get(("role", self._branch))
        for name in names:
            path.set(("role", name), (role[0], True) if isinstance(role, tuple) else None)
        path.add(nodes.Fork(branch=self._branch, children=names, **recording.where()))
        return TraceForks([recording.state(name) for name in names], recording)

    def map(self, function: object, items: object) -> NoReturn:
        self._leave("map() is called in a way that cannot be followed")  # else the hooks follow it

    def reduce(self, function: object, items: object) -> NoReturn:
        self._leave("reduce() is called in a way that cannot be followed")

    def system(self) -> "TraceRole":
        return TraceRole(self, "system")

    def user(self) -> "TraceRole":
        return TraceRole(self, "user")

    def assistant(self) -> "TraceRole":
        return TraceRole(self, "assistant")

    @property
    def path(self) -> str:
        return self._branch

    @property
    def result(self) -> None:
        return None

    def meta(self, name: str) -> "TraceMeta":
        return TraceMeta(self._path, self._owner(name))

    def text(self) -> NoReturn:
        self._leave("text() reads the whole branch")

    def messages(self) -> NoReturn:
        self._leave("messages() reads the whole branch")

    def variables(self) -> NoReturn:
        self._leave("variables() reads all values at once")

    @property
    def error(self) -> NoReturn:
        self._leave("error asks whether a branch failed")

    @property
    def branches(self) -> NoReturn:
        self._leave("branches lists what was forked so far")

    @property
    def calls(self) -> NoReturn:
        self._leave("calls reads how calls went")

    # What the recorder's own parts use.

    @property
    def _path(self) -> Path:
        return self._recording.path

    def _leave(self, reason: str) -> NoReturn:
        raise LeaveTrace(reason, self._path.site())

    def _append(self, value: object) -> None:
        recording, path = self._recording, self._path
        if isinstance(value, str):
            if parts := parts_of(value, path):
                where = recording.where()
                path.add(
                    nodes.Say(
                        branch=self._branch, parts=parts, file=where["file"], line=where["line"]
                    )
                )
        elif isinstance(value, Gen):
            self._gen(value)
        elif isinstance(value, Select):
            self._select(value)
        elif isinstance(value, Sum):
            for term in value.terms:
                self._append(term)
        elif isinstance(value, Message):
            with TraceRole(self, value.role):
                for term in value.terms:
                    self._append(term)
        elif has_symbol(value) or isinstance(value, TraceJson):
            self._leave("a value is appended that is no text")
        else:
            raise InvalidRequest(f"cannot append {type(value).__name__} to a program's state")

    def _gen(self, gen: Gen) -> None:
        if has_symbol(gen.name):
            self._leave("the name of gen is made of a value that is not known yet")
        all_options: dict[str, Any] = {name: known(value) for name, value in gen.options.items()}
        given = {name: value for name, value in all_options.items() if has_symbol(value)}
        plain = {name: value for name, value in all_options.items() if name not in given}
        # Raises as a run would, as far as the options are known.
        SamplingParams(**{**self._recording.defaults, **plain})
        if "json_schema" in given:
            self._leave("json_schema is made of a value that is not known yet")
        options: dict[str, Any] = {k: _plain_option(v) for k, v in plain.items()}
        owner = self._define(gen.name)
        if "json_schema" in options:
            if not isinstance(options["json_schema"], dict | bool | str | None):
                self._recording.types[owner] = options["json_schema"]
            options["json_schema"] = schema_data(options["json_schema"])
        found = gen_outcomes({**self._recording.defaults, **options}, MAX_OUTCOMES)
        if {"choices", "regex", "stop", "stop_token_ids"}.intersection(given):
            found = None
        path = self._path
        path.set(("outcomes", owner), found)
        path.set(("regex", owner), options.get("regex"))
        path.add(
            nodes.Generate(
                branch=self._branch,
                name=gen.name,
                options=options,
                given=tuple((option, as_data(value, path)) for option, value in given.items()),
                **self._recording.where(gen.site),
            )
        )

    def _select(self, select: Select) -> None:
        if has_symbol(select.name):
            self._leave("the name of select is made of a value that is not known yet")
        path = self._path
        owner = self._define(select.name)
        choices = tuple(parts_of(choice, path) for choice in select.choices)
        is_known = not any(isinstance(choice, Symbol) for choice in select.choices)
        is_few = is_known and len(choices) <= MAX_OUTCOMES
        path.set(("outcomes", owner), select.choices if is_few else None)
        path.set(("choices", owner), select.choices if is_known else None)
        path.add(
            nodes.Choose(
                branch=self._branch,
                name=select.name,
                choices=choices,
                method=select.method,
                temperature=select.temperature,
                seed=select.seed,
                **self._recording.where(select.site),
            )
        )

    def _define(self, name: str | None) -> Owner:
        if name is None:
            return (self._branch, "")
        key = ("variable", self._branch, name)
        if name.startswith(nodes.INHERITED):
            self._leave(f"the name {name!r} begins as those of a graph's own values do")
        if self._path.get(key) is not None:
            raise InvalidRequest(f"the variable {name!r} exists already")
        num_forks = self._path.get(("forks", self._branch))
        self._path.set(key, num_forks if isinstance(num_forks, int) else 0)
        return (self._branch, name)

    def _owner(self, name: str) -> Owner:
        if has_symbol(name):
            self._leave("the name of a variable is not known yet")
        owner = self._find(name)
        if owner is None:
            raise InvalidRequest(f"there is no variable {name!r} here")
        return owner

    def _find(self, name: str) -> Owner | None:
        """Who made the variable: this branch, or a parent before it forked. Looked up late, so that
        paths with different variables can meet while nobody asks for those.
        """
        branch, before = self._branch, None
        while True:
            num_forks = self._path.get(("variable", branch, name))
            if isinstance(num_forks, int) and (before is None or num_forks < before):
                return (branch, name)
            chosen = self._path.get(("best", branch))
            if isinstance(chosen, tuple):
                return self._find_chosen(branch, name, *chosen)
            branch, fork, number = branch.rpartition("/fork")
            if not fork:
                return None
            before = int(number.partition("[")[0])

    def _find_chosen(
        self, branch: str, name: str, names: tuple[str, ...], others: tuple[str, ...]
    ) -> Owner | None:
        """A variable of a branch that goes on from one of several: all of them have `names`, and
        some have `others`.
        """
        if name in names:
            return (branch, nodes.inherited(name))
        if name in others:
            self._leave(f"not all branches that best() chose from have a variable {name!r}")
        return None

    def owner(self, name: str) -> Owner:
        """Who made the variable, which is there."""
        return self._owner(name)

    def all_names(self) -> set[str]:
        """Names of variables that any branch has so far."""
        path = self._path
        given = {name for key in path.known("best") for name in path.get(key)[0]}  # type: ignore[index]  # a pair
        return given | {key[2] for key in path.known("variable")}

    def count_forks(self) -> int:
        """The number of the next fork or choice below this branch."""
        key = ("forks", self._branch)
        known = self._path.get(key)
        number = (known if isinstance(known, int) else 0) + 1
        self._path.set(key, number)
        return number


class TraceRole:
    """`with s.user():` of a traced state."""

    def __init__(self, state: TraceState, role: str) -> None:
        self._state = state
        self._role = role

    def trace_key(self) -> Hashable:
        return (self._state.trace_key(), self._role)

    def __enter__(self) -> None:
        recording, branch = self._state._recording, self._state._branch
        path = recording.path
        opened = path.get(("role", branch))
        if isinstance(opened, tuple):
            role, is_inherited = opened
            if not is_inherited:
                raise InvalidRequest(f"a message of {self._role} inside one of {role}")
            path.add(nodes.CloseRole(branch=branch, role=role, **recording.where()))
        path.set(("role", branch), (self._role, False))
        path.add(nodes.OpenRole(branch=branch, role=self._role, **recording.where()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if kind is None:
            recording, branch = self._state._recording, self._state._branch
            recording.path.set(("role", branch), None)
            recording.path.add(nodes.CloseRole(branch=branch, role=self._role, **recording.where()))


class TraceForks(Sequence[TraceState]):
    """The branches of a traced fork."""

    def __init__(self, states: list[TraceState], recording: Recording) -> None:
        self._states = states
        self._recording = recording

    def trace_key(self) -> Hashable:
        return tuple(state.trace_key() for state in self._states)

    def join(self, *, first: int | None = None, raise_errors: bool = False) -> "list[TraceState]":
        recording = self._recording
        if first is not None:
            self._depends_on_time("join(first=...)")
        if raise_errors:
            raise LeaveTrace("join(raise_errors=True) looks at failures", recording.path.site())
        branches = tuple(state._branch for state in self._states)
        recording.path.add(nodes.Join(branches=branches, **recording.where()))
        return list(self._states)

    def race(self) -> NoReturn:
        self._depends_on_time("race()")

    def _depends_on_time(self, what: str) -> NoReturn:
        # Not a path that leaves: before Python went on, all branches would be waited for.
        site = self._recording.path.site()
        raise NotTraceable(LeaveTrace(f"{what} depends on which branch is first", site))

    @property
    def errors(self) -> NoReturn:
        raise LeaveTrace("errors asks which branches failed", self._recording.path.site())

    @property
    def succeeded(self) -> NoReturn:
        raise LeaveTrace("succeeded asks which branches failed", self._recording.path.site())

    def __getitem__(self, index: Any) -> Any:
        return self._states[index]

    def __setitem__(self, index: int, value: TraceState) -> None:
        if value is not self._states[index]:
            raise InvalidRequest("the branches of a fork cannot be replaced")

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[TraceState]:
        return iter(self._states)


def _plain_option(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()}
    return value
