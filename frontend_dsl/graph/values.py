"""From templates to text: the pure string operations that a graph may apply to a value.

Each is a method of `str` (or a slice) and gives a `str`, so a compiled program writes what the
eager one writes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from umbel.frontend_dsl.graph.nodes import Arg, Op, Part, Ref, Template
from umbel.runtime.errors import InvalidRequest

METHODS = (
    "strip", "lstrip", "rstrip", "lower", "upper", "title", "capitalize", "casefold", "swapcase",
    "removeprefix", "removesuffix", "replace",
)  # fmt: skip
MAX_WIDTH = 10_000  # of a format: "{:>99999999}" would fill the memory
_FORMATS: dict[str, Callable[..., str]] = {
    "format": lambda text, spec: format(text, spec),
    "repr": lambda text: repr(text),
    "ascii": lambda text: ascii(text),
    "slice": lambda text, start, stop, step: text[start:stop:step],
}
OPERATIONS = (*METHODS, *_FORMATS)


def apply_ops(text: str, ops: tuple[Op, ...]) -> str:
    for op in ops:
        try:
            if op.name in METHODS:
                text = getattr(text, op.name)(*op.args)
            else:
                text = _FORMATS[op.name](text, *op.args)
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidRequest(f"{op.name}{op.args} cannot be applied to text: {error}") from None
    return text


def check_op(op: Op) -> None:
    """Refuse what is unknown, and formats or replacements that make text of unbounded length."""
    if op.name not in OPERATIONS:
        raise InvalidRequest(
            f"{op.name!r} is not an operation on text; accepted are {', '.join(OPERATIONS)}"
        )
    digits = "".join(c if c.isdigit() else " " for a in op.args for c in str(a) if a is not None)
    if op.name == "format" and any(int(number) > MAX_WIDTH for number in digits.split()):
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
    return "".join(part_text(part, arguments, value) for part in template)


def part_text(part: Part, arguments: Mapping[str, Any], value: Callable[[Ref], str]) -> str:
    if isinstance(part, str):
        return part
    text = argument(arguments, part.path) if isinstance(part, Arg) else value(part)
    return apply_ops(text, part.ops)


def _spell(path: tuple[str | int, ...]) -> str:
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])
