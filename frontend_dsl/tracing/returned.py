"""What the ways through a body return, place by place: text, a number, one of few constants, or the
same on all ways.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from umbel.frontend_dsl.graph.nodes import Literal, Pick, Ref, Template
from umbel.frontend_dsl.tracing.few import Constant, Few, spelled
from umbel.frontend_dsl.tracing.numbers import TraceNumber
from umbel.frontend_dsl.tracing.path import MAX_OUTCOMES, Path
from umbel.frontend_dsl.tracing.snapshot import freeze
from umbel.frontend_dsl.tracing.symbols import Symbol, parts_of

_CONSTANTS = (bool, int, float, str, type(None))


class Differs(Exception):
    """What the ways return can be no value in common; the message says what they return."""


def shape_of(value: Any, places: list[Any]) -> object:
    """The containers of `value`; what is in them goes into `places`."""
    kind = type(value)
    if kind in (list, tuple):
        return (kind, *(shape_of(item, places) for item in value))
    if kind is dict and all(type(key) is str for key in value):
        return (kind, *((key, shape_of(item, places)) for key, item in value.items()))
    places.append(value)
    return None


def rebuilt(shape: Any, places: Iterator[Any]) -> Any:
    """A value of this shape, with `places` in it."""
    if shape is None:
        return next(places)
    kind, *inner = shape
    if kind is dict:
        return {key: rebuilt(item, places) for key, item in inner}
    return kind(rebuilt(item, places) for item in inner)


@dataclass(slots=True, eq=False)
class Place:
    """One place of what is returned. `owner`: the branch and name of the value that stands for it
    in a graph.
    """

    owner: tuple[str, str]
    values: list[Any] = field(default_factory=list)  # on the ways so far

    @property
    def is_same(self) -> bool:
        """Whether it is the same on all ways, so that nothing has to stand for it."""
        keys = {freeze(value) for value in self.values}
        return len(keys) == 1 and None not in keys

    def value(self, path: Path) -> Any:
        """What the program goes on with. Raises `Differs`."""
        subject = Ref(*self.owner)
        if self.is_same:
            return self.values[0]
        constants = self._constants()
        outcomes = None if constants is None else tuple(constants)
        if all(isinstance(value, str) for value in self.values):
            path.set(("outcomes", self.owner), outcomes)
            return Symbol(path, (subject,))
        if constants is not None:
            path.set(("outcomes", self.owner), outcomes)
            picks = tuple((text, Literal(value)) for text, value in constants.items())
            return Few(path, subject, constants, Pick(subject, picks))
        for kind in (int, float):
            if all(_is_number(value, kind) for value in self.values):
                return TraceNumber(path, subject, kind)
        raise Differs(" or ".join(dict.fromkeys(map(_kind, self.values))))

    def _constants(self) -> dict[str, Constant] | None:
        """By their text, if there are no other values, and few."""
        found: dict[str, Constant] = {}
        for value in self.values:
            if type(value) not in (Few, *_CONSTANTS):
                return None
            few = value.values if isinstance(value, Few) else {spelled(value): value}
            for text, constant in few.items():
                known = found.setdefault(text, constant)
                if type(known) is not type(constant):
                    return None  # None and "None"
        return found if len(found) <= MAX_OUTCOMES else None


def template_of(value: Any, path: Path) -> Template:
    """The text that stands for a value; of what has none, nothing."""
    if isinstance(value, Few):
        return (value.subject,)
    if isinstance(value, TraceNumber):
        return (value.part,)
    if isinstance(value, str):
        return parts_of(value, path)
    return (spelled(value),) if type(value) in _CONSTANTS else ()


def _is_number(value: Any, kind: type) -> bool:
    return value.is_a(kind) if isinstance(value, TraceNumber) else type(value) is kind


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "a text"
    if isinstance(value, TraceNumber):
        return "a number"
    return "None" if value is None else f"a {type(value).__name__.removeprefix('Trace').lower()}"
