"""Values that are one of few constants: what a tool of type `bool` gives, or the body of a map.

What Python does with one needs its value: a decision between the constants. Until then it is data
that a graph can hand on.
"""

import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

from umbel.frontend_dsl.graph.nodes import Data, Ref
from umbel.frontend_dsl.tracing.path import Path
from umbel.frontend_dsl.tracing.symbols import Symbol

Constant: TypeAlias = bool | int | float | str | None


def spelled(value: Constant) -> str:
    """The text that stands for a constant in a graph."""
    return value if isinstance(value, str) else repr(value)


class Few:
    """The constant of `values` that has the text of `subject`; `data` is it in a graph."""

    def __init__(
        self, path: Path, subject: Ref, values: Mapping[str, Constant], data: Data
    ) -> None:
        self._path = path
        self._data = data
        self.subject = subject
        self.values = values

    def trace_key(self) -> Hashable:
        return (self.subject, *(repr(value) for value in self.values.values()))

    def as_data(self) -> Data:
        return self._data

    def known(self) -> Constant:
        """The value on this path; the other paths follow the others."""
        return self._path.observe(self.subject, self.values.__getitem__, "a condition")

    def __str__(self) -> str:
        if any(isinstance(value, str) for value in self.values.values()):
            return str(self.known())
        return Symbol(self._path, (self.subject,))  # its text needs no decision

    def __format__(self, spec: str) -> str:
        return format(self.known(), spec) if spec else str(self)

    def __getitem__(self, index: Any) -> Any:
        return self.known()[index]  # type: ignore[index]  # raises as the value itself does

    def __contains__(self, item: object) -> bool:
        return item in self.known()  # type: ignore[operator]  # the same


def known(value: Any) -> Any:
    """`value`, decided on if it is one of few."""
    return value.known() if isinstance(value, Few) else value


def _unary(function: Callable[[Any], Any]) -> Callable[[Few], Any]:
    return lambda self: function(self.known())


def _binary(function: Callable[[Any, Any], Any], *, is_reflected: bool) -> Callable[..., Any]:
    if is_reflected:
        return lambda self, other: function(known(other), self.known())
    return lambda self, other: function(self.known(), known(other))


_UNARY: tuple[Callable[[Any], Any], ...] = (
    bool, int, float, len, iter, hash, repr, abs, round, operator.index, operator.neg,
)  # fmt: skip
for _function in _UNARY:
    setattr(Few, f"__{_function.__name__}__", _unary(_function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Few, f"__{_name}__", _binary(getattr(operator, _name), is_reflected=False))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod"):
    for _reflected in ("", "r"):
        _method = _binary(getattr(operator, _name), is_reflected=bool(_reflected))
        setattr(Few, f"__{_reflected}{_name}__", _method)
