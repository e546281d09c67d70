"""Arguments as symbols: strings are left open, everything else is part of the graph's variant."""

from collections.abc import Hashable, Mapping
from typing import Any

from umbel.frontend_dsl.graph.nodes import Arg
from umbel.frontend_dsl.tracing.path import Path
from umbel.frontend_dsl.tracing.snapshot import freeze
from umbel.frontend_dsl.tracing.symbols import Symbol

MAX_LEAVES = 4096
ArgPath = tuple[str | int, ...]


class Unshaped(Exception):
    """An argument that cannot be part of a graph; the message says which."""


def shape(arguments: Mapping[str, Any], fixed: frozenset[ArgPath]) -> Hashable:
    """What two calls must share to share a graph: all but the strings that are left open.

    Raises `Unshaped`.
    """
    budget = [MAX_LEAVES]
    return tuple((name, _shape(value, (name,), fixed, budget)) for name, value in arguments.items())


def symbols(arguments: Mapping[str, Any], fixed: frozenset[ArgPath], path: Path) -> dict[str, Any]:
    """`arguments` with new containers, and symbols for the open strings."""
    return {name: _symbols(value, (name,), fixed, path) for name, value in arguments.items()}


def string_paths(value: Any, at: ArgPath) -> list[ArgPath]:
    """Where in `value`, which stands at `at`, there are strings."""
    if isinstance(value, str):
        return [at]
    if isinstance(value, list | tuple):
        return [p for i, item in enumerate(value) for p in string_paths(item, (*at, i))]
    if isinstance(value, dict):
        return [p for key, item in value.items() for p in string_paths(item, (*at, key))]
    return []


def is_string_at(arguments: Mapping[str, Any], path: ArgPath) -> bool:
    """Whether there is a string at `path`: what is fixed for some arguments others may not have."""
    value: Any = arguments
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return False
    return type(value) is str


def _shape(value: Any, at: ArgPath, fixed: frozenset[ArgPath], budget: list[int]) -> Hashable:
    budget[0] -= 1
    if budget[0] < 0:
        raise Unshaped(f"argument {at[0]!r} has more than {MAX_LEAVES} items")
    kind = type(value)
    if kind is str:
        return ("text", value if at in fixed else None)
    if kind in (list, tuple):
        items = [_shape(item, (*at, i), fixed, budget) for i, item in enumerate(value)]
        return (kind.__name__, *items)
    if kind is dict and all(type(key) is str for key in value):
        return ("dict", *((k, _shape(v, (*at, k), fixed, budget)) for k, v in value.items()))
    if kind in (int, float, bool, type(None)):
        return (kind.__name__, freeze(value))
    raise Unshaped(f"argument {at[0]!r} is a {kind.__name__}, which a graph cannot hold")


def _symbols(value: Any, at: ArgPath, fixed: frozenset[ArgPath], path: Path) -> Any:
    kind = type(value)
    if kind is str:
        return value if at in fixed else Symbol(path, (Arg(at),))
    if kind in (list, tuple):
        return kind(_symbols(item, (*at, i), fixed, path) for i, item in enumerate(value))
    if kind is dict:
        return {key: _symbols(item, (*at, key), fixed, path) for key, item in value.items()}
    return value
