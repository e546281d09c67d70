"""What calls gave, while a program is traced: decoded JSON, probabilities, results."""

from collections.abc import Hashable, Iterator
from typing import Any, NoReturn

from umbel.frontend_dsl.graph import nodes
from umbel.frontend_dsl.tracing.leaving import LeaveTrace
from umbel.frontend_dsl.tracing.numbers import TraceNumber
from umbel.frontend_dsl.tracing.path import Path
from umbel.frontend_dsl.tracing.symbols import MARK, Symbol

Owner = tuple[str, str]  # the branch that made a value, and its name there


class TraceJson:
    """A decoded JSON value: it can be returned, not looked into."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self._path = path
        self.owner = owner

    def trace_key(self) -> Hashable:
        return self.owner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._leave(f".{name} looks")

    def _leave(self, what: str) -> NoReturn:
        raise LeaveTrace(f"{what} into a generated JSON value", self._path.site())

    def __getitem__(self, key: object) -> Any:
        self._leave("[...] looks")

    def __bool__(self) -> bool:
        self._leave("a condition looks")

    def __eq__(self, other: object) -> bool:
        self._leave("== looks")

    def __hash__(self) -> int:
        self._leave("a set or dict looks")

    def __iter__(self) -> Iterator[Any]:
        self._leave("a loop looks")

    def __len__(self) -> int:
        self._leave("len() looks")

    def __contains__(self, item: object) -> bool:
        self._leave("in looks")

    def __format__(self, spec: str) -> str:
        self._leave("a text with it looks")

    def __str__(self) -> str:
        self._leave("str() looks")


class TraceMeta:
    """What `meta` gives: of a `select`, the probabilities of its choices."""

    def __init__(self, path: Path, owner: Owner) -> None:
        self._path = path
        self.owner = owner

    def trace_key(self) -> Hashable:
        return self.owner

    @property
    def distribution(self) -> "TraceDistribution":
        choices = self._path.get(("choices", self.owner))
        if not isinstance(choices, tuple):
            raise LeaveTrace(
                f"meta({self.owner[1]!r}).distribution is that of no select with known choices",
                self._path.site(),
            )
        return TraceDistribution(self._path, self.owner, choices)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise LeaveTrace(f"meta().{name} reads how a call went", self._path.site())


class TraceDistribution:
    """The probabilities of a `select`, by choice."""

    def __init__(self, path: Path, owner: Owner, choices: tuple[str, ...]) -> None:
        self._path = path
        self._owner = owner
        self._choices = choices

    def trace_key(self) -> Hashable:
        return (self._owner, self._choices)

    def __getitem__(self, choice: object) -> TraceNumber:
        if isinstance(choice, Symbol):
            choice = choice.known("a choice")
        if choice not in self._choices:
            raise KeyError(choice)
        return TraceNumber(self._path, nodes.Ref(*self._owner, probability_of=str(choice)), float)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise LeaveTrace(f"distribution.{name} reads how a call went", self._path.site())

    def __iter__(self) -> Iterator[str]:
        raise LeaveTrace("a loop over a distribution reads how a call went", self._path.site())

    def __len__(self) -> int:
        return len(self._choices)


def as_data(value: object, path: Path) -> nodes.Data:
    """What a program returned, as data of the graph. Leaves the trace for what is no data."""
    if isinstance(value, TraceJson):
        return nodes.Decoded(*value.owner)
    if hasattr(value, "as_data"):  # what a tool returned
        data: nodes.Data = value.as_data()
        return data
    if isinstance(value, Symbol):
        return nodes.Words(value.parts)
    if isinstance(value, str) and MARK in value:
        raise LeaveTrace("a text was put together in a way that cannot be followed", path.site())
    if value is None or type(value) in (bool, int, float, str):
        return nodes.Literal(value)  # type: ignore[arg-type]  # just checked
    if type(value) in (list, tuple):
        items = tuple(as_data(item, path) for item in value)  # type: ignore[attr-defined]
        return nodes.Sequence(items, type(value) is tuple)
    if type(value) is dict and all(type(key) is str for key in value):
        return nodes.Mapping(tuple((key, as_data(item, path)) for key, item in value.items()))
    raise LeaveTrace(f"a {type(value).__name__} is returned, which is no plain data", path.site())
