"""From templates to text: the pure operations that a graph may apply to a value.

Each gives a text again, so operations can follow one another: a number is its decimal text, a test
gives "True" or "False". They are what Python's own methods of `str`, `int` and `float` give, so a
compiled program writes and decides what the eager one does.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from umbel.frontend_dsl.graph.nodes import Arg, Op, Part, Ref, Template, Turn
from umbel.runtime.errors import InvalidRequest

METHODS = (
    "strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize", "casefold", "swapcase",
    "removeprefix", "removesuffix", "replace",
)  # fmt: skip
TESTS = (
    "startswith", "endswith", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
    "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper",
)  # fmt: skip
COUNTS = ("count", "find", "rfind")  # methods that give a number for any text
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq,
}  # fmt: skip
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "mod": operator.mod, "rsub": lambda number, other: other - number,
}  # fmt: skip
MAX_WIDTH = 10_000  # of a format: "{:>99999999}" would fill the memory
MAX_TEXT = 1 << 24  # characters of one text: replacements that follow one another grow without end
MAX_OPS = 64  # on one value
MAX_DIGITS = 40  # of a number: what is written as text can grow no further than that


class NoValue(InvalidRequest):
    """An operation has no value for this text: in Python it would have raised."""


def number_of(text: str) -> int | float:
    """The number that `text` spells, as `int()` and `float()` read it."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _test(result: object) -> str:
    return str(bool(result))


_FORMATS: dict[str, Callable[..., str]] = {
    "format": lambda text, spec: format(text, spec),
    "repr": lambda text: repr(text),
    "ascii": lambda text: ascii(text),
    "slice": lambda text, start, stop, step: text[start:stop:step],
    "item": lambda text, index: text[index],
    "int": lambda text: str(int(text)),
    "float": lambda text: repr(float(text)),
    "len": lambda text: str(len(text)),
    "contains": lambda text, part: _test(part in text),
    "is_in": lambda text, whole: _test(text in whole),
    "format_number": lambda text, spec: format(number_of(text), spec),
    **{name: lambda text, *args, name=name: _test(getattr(text, name)(*args)) for name in TESTS},
    **{name: lambda text, *args, name=name: str(getattr(text, name)(*args)) for name in COUNTS},
    **{
        name: lambda text, other, compare=compare: _test(compare(number_of(text), other))
        for name, compare in COMPARISONS.items()
    },
    **{
        name: lambda text, other, compute=compute: repr(compute(number_of(text), other))
        for name, compute in ARITHMETIC.items()
    },
}
OPERATIONS = (*METHODS, *_FORMATS)


def apply_ops(text: str, ops: tuple[Op, ...]) -> str:
    """`text` after `ops`. Raises `NoValue` where Python would have raised."""
    for op in ops:
        try:
            if op.name == "replace":
                _check_replaced(text, *op.args)
            if op.name in METHODS:
                text = getattr(text, op.name)(*op.args)
            else:
                text = _FORMATS[op.name](text, *op.args)
        except (TypeError, ValueError, KeyError, ArithmeticError, IndexError) as error:
            raise NoValue(f"{op.name}{op.args} has no value for {text[:80]!r}: {error}") from None
        if op.name in ARITHMETIC and len(text) > MAX_DIGITS:
            raise NoValue(f"a number has more than {MAX_DIGITS} digits")
        if len(text) > MAX_TEXT:
            raise NoValue(f"a text has more than {MAX_TEXT} characters")
    return text


def _check_replaced(text: str, old: Any, new: Any, count: Any = -1) -> None:
    num_times = text.count(old) if count < 0 else min(text.count(old), count)
    if len(text) + num_times * (len(new) - len(old)) > MAX_TEXT:
        raise NoValue(f"the text of a replacement has more than {MAX_TEXT} characters")


def check_op(op: Op) -> None:
    """Refuse what is unknown, and formats or replacements that make text of unbounded length."""
    if op.name not in OPERATIONS:
        raise InvalidRequest(
            f"{op.name!r} is not an operation on text; accepted are {', '.join(OPERATIONS)}"
        )
    digits = "".join(c if c.isdigit() else " " for a in op.args for c in str(a) if a is not None)
    is_format = op.name in ("format", "format_number")
    if is_format and any(int(number) > MAX_WIDTH for number in digits.split()):
        raise InvalidRequest(f"format {op.args[0]!r} is wider than {MAX_WIDTH} characters")
    if op.name == "replace" and op.args and op.args[0] == "":
        raise InvalidRequest("replace needs a text to look for")


def argument(arguments: Mapping[str, Any], path: tuple[str | int, ...]) -> str:
    """The string at `path`; `InvalidRequest` says what stands there instead."""
    value: Any = arguments
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise InvalidRequest(
                f"argument {_spell(path)} is missing; give {path[0]!r} as the program wants it"
            ) from None
    if not isinstance(value, str):
        raise InvalidRequest(f"argument {_spell(path)} is {value!r}; expected a string")
    return value


def fill(template: Template, arguments: Mapping[str, Any], value: Callable[[Ref], str]) -> str:
    """The text of `template`; `value` gives the text of a call, without its operations."""
    texts = []
    num_chars = 0
    for part in template:
        texts.append(part_text(part, arguments, value))
        num_chars += len(texts[-1])
        if num_chars > MAX_TEXT:
            raise NoValue(f"a text has more than {MAX_TEXT} characters")
    return "".join(texts)


def part_text(part: Part, arguments: Mapping[str, Any], value: Callable[[Ref], str]) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Turn):
        raise InvalidRequest(f"the turn of the loop {part.index!r} is asked for outside of it")
    text = argument(arguments, part.path) if isinstance(part, Arg) else value(part)
    return apply_ops(text, part.ops)


def _spell(path: tuple[str | int, ...]) -> str:
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])
