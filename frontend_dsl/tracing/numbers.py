"""Numbers that are not known yet: `int(s["n"])`, `len(s["x"])`, a probability.

A number is the text that spells it, after operations. It can be compared with known numbers (each
comparison is a decision), calculated with, written, and given as an option; what needs its digits
now leaves the trace.
"""

from collections.abc import Hashable
from typing import Any, NoReturn

from umbel.frontend_dsl.graph.nodes import Arg, Number, Op, Ref
from umbel.frontend_dsl.tracing.leaving import LeaveTrace
from umbel.frontend_dsl.tracing.path import Path


class TraceNumber:
    """The number that `part` spells, on `path`. No `int`: Python's own code would use its value."""

    __slots__ = ("_kind", "_path", "part")

    def __init__(self, path: Path, part: Ref | Arg, kind: type) -> None:
        self._path = path
        self._kind = kind  # int or float
        self.part = part

    def trace_key(self) -> Hashable:
        return (self.part, self._kind.__name__)

    def is_a(self, kinds: Any) -> bool:
        """What `isinstance` says of the number."""
        return issubclass(self._kind, kinds)

    def as_data(self) -> Number:
        return Number(self.part)

    def formatted(self, spec: str) -> Ref | Arg:
        """The part that is its text."""
        return self._part(Op("format_number", (spec,))) if spec else self.part

    def __lt__(self, other: object) -> bool:
        return self._compared("lt", other)

    def __le__(self, other: object) -> bool:
        return self._compared("le", other)

    def __gt__(self, other: object) -> bool:
        return self._compared("gt", other)

    def __ge__(self, other: object) -> bool:
        return self._compared("ge", other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | float | TraceNumber):
            return False
        return self._compared("eq", other)

    def __hash__(self) -> int:
        self._leave("a set or dict looks")

    def __bool__(self) -> bool:
        return self != 0

    def __add__(self, other: object) -> Any:
        return self._computed("add", other)

    __radd__ = __add__

    def __sub__(self, other: object) -> Any:
        return self._computed("sub", other)

    def __rsub__(self, other: object) -> Any:
        return self._computed("rsub", other)

    def __mul__(self, other: object) -> Any:
        return self._computed("mul", other)

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> Any:
        return self._computed("floordiv", other)

    def __mod__(self, other: object) -> Any:
        return self._computed("mod", other)

    def __int__(self) -> int:
        self._leave("int() looks")

    def __index__(self) -> int:
        self._leave("a place that needs a whole number looks")

    def __float__(self) -> float:
        self._leave("float() looks")

    def __str__(self) -> str:
        self._leave("str() looks")

    def __repr__(self) -> str:
        self._leave("repr() looks")

    def __format__(self, spec: str) -> str:
        self._leave("a format looks")

    def _part(self, op: Op) -> Ref | Arg:
        return self.part.with_ops((*self.part.ops, op))

    def _compared(self, name: str, other: object) -> bool:
        if isinstance(other, TraceNumber):
            self._leave("a comparison of two values that are not known yet looks")
        if not isinstance(other, int | float):
            raise LeaveTrace(f"a number is compared with a {type(other).__name__}",
                             self._path.site())  # fmt: skip
        return self._path.holds(self._part(Op(name, (other,))))

    def _computed(self, name: str, other: object) -> Any:
        if isinstance(other, bool) or not isinstance(other, int | float):
            self._leave("a calculation with something else looks")
        kind = float if isinstance(other, float) else self._kind
        return TraceNumber(self._path, self._part(Op(name, (other,))), kind)

    def _leave(self, what: str) -> NoReturn:
        raise LeaveTrace(
            f"{what} into a number that is not known yet",
            self._path.site(),
            argument=self.part.path if isinstance(self.part, Arg) else None,
        )
