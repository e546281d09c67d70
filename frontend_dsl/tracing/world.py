"""What a traced program may use of the world outside: constants, pure functions, helpers.

Containers are copied, so tracing cannot change them; everything read is guarded: a graph holds only
as long as it is what it was.
"""

import collections
import itertools
import json
import math
import operator
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from umbel.frontend_dsl import calls
from umbel.frontend_dsl.calls import Expression

PLAIN = (str, int, float, bool, bytes, complex, type(None), type(Ellipsis), range)
CONTAINERS = (tuple, list, dict, set, frozenset)
MAX_ITEMS = 100_000  # of outside containers that are copied for a path
PURE = (
    len, range, enumerate, zip, sorted, min, max, sum, int, float, str, bool, list, dict, tuple,
    set, frozenset, isinstance, abs, round, reversed, any, all, chr, ord, map, filter, repr,
    divmod, pow, format, slice, iter, next, collections.Counter, collections.defaultdict,
)  # fmt: skip
LANGUAGE = (calls.gen, calls.system, calls.user, calls.assistant, calls.message)
_PURE_MODULES = (math, operator, itertools, textwrap)
_PURE_IDS = {
    id(value) for module in _PURE_MODULES for value in vars(module).values() if callable(value)
} | {id(json.dumps), id(json.loads)}


class NotPlain(Exception):
    """A value whose use cannot be followed."""


def is_pure_library(function: object) -> bool:
    """Functions of the standard library without effects; only for arguments that are known."""
    return id(function) in _PURE_IDS


def copied(value: Any, extra: tuple[type, ...], budget: list[int] | None = None) -> Any:
    """`value` with its own containers. Raises `NotPlain` for objects that could change or act."""
    budget = budget if budget is not None else [MAX_ITEMS]
    kind = type(value)
    if kind in PLAIN or isinstance(value, (Enum, Expression, *extra)):
        return value
    if kind in CONTAINERS:
        budget[0] -= len(value)
        if budget[0] < 0:
            raise NotPlain(f"a {kind.__name__} with very many items")
        if kind is dict:
            return {copied(k, extra, budget): copied(v, extra, budget) for k, v in value.items()}
        return kind(copied(item, extra, budget) for item in value)
    if isinstance(value, FunctionType | BuiltinFunctionType | ModuleType | type):
        return value
    if isinstance(value, Callable):  # type: ignore[arg-type]  # typing's form works at run time
        return value  # whether it may be called is asked when it is
    raise NotPlain(f"a {kind.__name__}")


@dataclass(frozen=True, slots=True)
class Guard:
    """`read()` gave `value` (containers: equal to `value`) when the program was traced."""

    read: Callable[[], Any]
    value: Any

    def holds(self) -> bool:
        try:
            now = self.read()
        except Exception:
            return False
        if now is self.value:
            return True
        same_kind = type(now) is type(self.value)
        return same_kind and type(now) in (*PLAIN, *CONTAINERS) and bool(now == self.value)
