"""Strings that are not known yet: arguments and generated values while a program is traced.

`Symbol` is a `str`, so that programs can do with it what they do with text. It is put together from
parts; looking into it is a decision over the outcomes that its parts allow, or leaves the trace.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from umbel.frontend_dsl.calls import Expression
from umbel.frontend_dsl.graph.nodes import Arg, Op, Part, Ref, Template
from umbel.frontend_dsl.graph.values import COUNTS, METHODS, TESTS, apply_ops
from umbel.frontend_dsl.tracing.leaving import LeaveTrace
from umbel.frontend_dsl.tracing.numbers import TraceNumber
from umbel.frontend_dsl.tracing.path import Path

MARK = "\x00umbel symbol\x00"  # what a symbol looks like to code that does not ask it


class Symbol(str):
    """Text made of `parts`, on `path`."""

    __slots__ = ("parts", "path")

    parts: Template
    path: Path

    def __new__(cls, path: Path, parts: Template) -> "Symbol":
        self = super().__new__(cls, MARK)
        self.path = path
        self.parts = parts
        return self

    def trace_key(self) -> Hashable:
        return self.parts

    def observe(self, function: Callable[[str], Any], what: str) -> Any:
        """`function` of the text; several paths if it depends on outcomes."""
        if self.only_part is not None:
            return self.path.observe(self.only_part, function, what)
        text = "".join(
            self.path.observe(part, _same, what) if isinstance(part, Ref | Arg) else str(part)
            for part in self.parts
        )
        return function(text)

    def known(self, what: str) -> str:
        return str(self.observe(_same, what))

    def with_op(self, name: str, *args: str | int | None) -> "Symbol | str":
        part = self.only_part
        if part is not None:
            return Symbol(self.path, (part.with_ops((*part.ops, Op(name, args))),))
        return apply_ops(self.known(name), (Op(name, args),))

    @property
    def only_part(self) -> Ref | Arg | None:
        """The one value that the text is; None: it is put together."""
        part = self.parts[0] if len(self.parts) == 1 else None
        return part if isinstance(part, Ref | Arg) else None

    @property
    def open_part(self) -> Ref | Arg | None:
        """The one value that the text is, if it can be any."""
        part = self.only_part
        return part if part is not None and self.path.is_open(part) else None

    def test(self, name: str, *args: Any) -> bool | None:
        """Whether the test `name` holds; None: not asked, since the text has few outcomes, or is
        put together.
        """
        part = self.open_part
        if part is None:
            return None
        return self.path.holds(part.with_ops((*part.ops, Op(name, args))))

    def __str__(self) -> str:
        return self

    def __format__(self, spec: str) -> str:
        return self.with_op("format", spec) if spec else self

    def __repr__(self) -> str:
        return self.with_op("repr")

    def __add__(self, other: object) -> Any:
        if isinstance(other, Expression) or not isinstance(other, str):
            return NotImplemented
        return join_parts(self.path, [self, other])

    def __radd__(self, other: object) -> Any:
        return join_parts(self.path, [other, self]) if isinstance(other, str) else NotImplemented

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return False
        if isinstance(other, Symbol):
            if other.parts == self.parts:
                return True
            # The one with few outcomes is looked at; the other is then compared with plain text.
            return self._equals(other.known("==")) if _is_open(self) else other == self.known("==")
        return self._equals(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.known("a set or dict"))

    def __bool__(self) -> bool:
        return self != ""

    def __len__(self) -> int:
        return int(self.observe(len, "len()"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.known("a loop"))

    def __contains__(self, other: object) -> bool:
        text = plain(other, "in")
        found = self.test("contains", text) if isinstance(text, str) else None
        return bool(self.observe(lambda mine: text in mine, "in")) if found is None else found

    def __getitem__(self, index: Any) -> str:
        if isinstance(index, slice):
            return self.with_op("slice", index.start, index.stop, index.step)
        if isinstance(index, int) and self.open_part is not None:
            return self.with_op("item", index)
        return str(self.observe(lambda text: text[index], "an index"))

    def __int__(self) -> int:
        return int(self.observe(int, "int()"))

    def __float__(self) -> float:
        return float(self.observe(float, "float()"))

    def _equals(self, other: str) -> bool:
        if self.only_part is not None:
            return self.path.equals(self.only_part, other)
        return bool(self.observe(lambda text: text == other, "=="))


def _method(name: str) -> Callable[..., Any]:
    def method(self: Symbol, *args: Any, **options: Any) -> Any:
        known = [plain(arg, name) for arg in args]
        if name in METHODS and not options:
            return self.with_op(name, *known)
        part = self.open_part
        if part is not None and not options and all(isinstance(arg, str | int) for arg in known):
            op = Op(name, tuple(known))
            if name in TESTS:
                return self.path.holds(part.with_ops((*part.ops, op)))
            if name in COUNTS:
                return TraceNumber(self.path, part.with_ops((*part.ops, op)), int)
        return self.observe(lambda text: getattr(text, name)(*known, **options), f"{name}()")

    return method


_OWN = {
    "__add__", "__radd__", "__eq__", "__ne__", "__hash__", "__len__", "__iter__", "__contains__",
    "__getitem__", "__str__", "__repr__", "__format__", "__new__", "__init__", "__class__",
    "__getattribute__", "__getnewargs__", "__setattr__", "__delattr__", "__dir__", "__doc__",
    "__init_subclass__", "__subclasshook__", "__reduce__", "__reduce_ex__", "__sizeof__",
    "__getstate__",
}  # fmt: skip
for _name in dir(str):
    if _name not in _OWN:
        setattr(Symbol, _name, _method(_name))


def join_parts(path: Path, pieces: list[str]) -> str:
    """The text of all pieces: a symbol if one of them is."""
    parts: list[Part] = []
    for piece in pieces:
        for part in piece.parts if isinstance(piece, Symbol) else (str(piece),):
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            elif part != "":
                parts.append(part)
    if all(isinstance(part, str) for part in parts):
        return "".join(part for part in parts if isinstance(part, str))
    return Symbol(path, tuple(parts))


def plain(value: Any, what: str) -> Any:
    """`value` without symbols: they become known on this path."""
    if isinstance(value, Symbol):
        return value.known(what)
    if isinstance(value, tuple | list):
        return type(value)(plain(item, what) for item in value)
    return value


def parts_of(value: str, path: Path) -> Template:
    """What a text that arrives at the state is made of."""
    if isinstance(value, Symbol):
        return value.parts
    if MARK in value:
        raise LeaveTrace("a text was put together in a way that cannot be followed", path.site())
    return (value,) if value else ()


def has_symbol(value: object) -> bool:
    if isinstance(value, tuple | list | set | frozenset):
        return any(has_symbol(item) for item in value)
    if isinstance(value, dict):
        return any(has_symbol(item) for pair in value.items() for item in pair)
    return isinstance(value, Symbol | TraceNumber) or (isinstance(value, str) and MARK in value)


def _is_open(symbol: Symbol) -> bool:
    values = (part for part in symbol.parts if isinstance(part, Ref | Arg))
    return any(symbol.path.is_open(part) for part in values)


def _same(text: str) -> str:
    return text
