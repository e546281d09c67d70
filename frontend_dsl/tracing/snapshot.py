"""Python values as hashable keys: where two paths of a program stand at the same place."""

from collections.abc import Hashable
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType

from umbel.frontend_dsl.calls import Expression

_PLAIN = (str, int, float, bool, bytes, type(None), complex)
_MAX_DEPTH = 24


class _Unknown(Exception):
    pass


def freeze(value: object) -> Hashable | None:
    """A key that two values share only if a program cannot tell them apart; None: unknown.

    Which containers are one and the same is part of it.
    """
    try:
        return _freeze(value, {}, 0)
    except _Unknown:
        return None


def _function(value: FunctionType, seen: dict[int, int], depth: int) -> Hashable:
    """A function is its code (which is kept) and what it closes over: it may be made anew in each
    run.
    """
    if id(value) in seen:
        return ("seen", seen[id(value)])
    seen[id(value)] = len(seen)
    try:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # a name that is bound further down
        raise _Unknown from None
    parts = (*cells, value.__defaults__, value.__kwdefaults__)
    code = value.__code__
    return ("function", code.co_filename, code, *(_freeze(p, seen, depth + 1) for p in parts))


def _freeze(value: object, seen: dict[int, int], depth: int) -> Hashable:
    kind = type(value)
    trace_key = getattr(kind, "trace_key", None)  # a symbol knows what it stands for
    if trace_key is not None:
        return (kind.__name__, trace_key(value))
    if kind in _PLAIN:
        return (kind.__name__, value)
    if value is NotImplemented or value is Ellipsis:
        return repr(value)
    if depth > _MAX_DEPTH:
        raise _Unknown
    if kind in (tuple, list, set, frozenset, dict):
        if kind is not tuple and id(value) in seen:
            return ("seen", seen[id(value)])
        seen[id(value)] = len(seen)
        if isinstance(value, dict):
            items: list[object] = [item for pair in value.items() for item in pair]
        elif isinstance(value, set | frozenset):
            items = sorted(value, key=repr)
        else:
            items = list(value)  # type: ignore[call-overload]  # a tuple or list
        return (kind.__name__, *(_freeze(item, seen, depth + 1) for item in items))
    if isinstance(value, range | Enum):
        return (kind.__name__, repr(value))
    if isinstance(value, ModuleType | type):
        return ("object", id(value))  # they stay, so the id stays theirs
    if isinstance(value, FunctionType):
        return _function(value, seen, depth)
    if isinstance(value, BuiltinFunctionType):
        owner = value.__self__
        of = id(owner) if isinstance(owner, ModuleType) else _freeze(owner, seen, depth + 1)
        return ("builtin", value.__qualname__, of)
    if isinstance(value, Expression):
        return (kind.__name__, repr(value))
    raise _Unknown
