"""The hooks that a rewritten program calls while it is traced: what it may do, and how.

Nothing that could have an effect is ever called: a call that is not known to be harmless leaves the
trace before it happens.
"""

import builtins
import functools
import itertools
from collections.abc import Callable, Iterator
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NoReturn

from umbel.frontend_dsl import calls, choosing
from umbel.frontend_dsl.calls import Select
from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.graph.nodes import Op
from umbel.frontend_dsl.state import reduced
from umbel.frontend_dsl.tools import Tool
from umbel.frontend_dsl.tracing.aside import Aside, NotApart, multiplying
from umbel.frontend_dsl.tracing.choosing import trace_best
from umbel.frontend_dsl.tracing.few import Few, known
from umbel.frontend_dsl.tracing.leaving import LeaveTrace
from umbel.frontend_dsl.tracing.numbers import TraceNumber
from umbel.frontend_dsl.tracing.recorder import Recording, TraceForks, TraceState
from umbel.frontend_dsl.tracing.results import TraceJson, TraceMeta
from umbel.frontend_dsl.tracing.rewrite import HOOKS, NoSource, loaded_names, rewritten
from umbel.frontend_dsl.tracing.snapshot import freeze
from umbel.frontend_dsl.tracing.symbols import Symbol, has_symbol, join_parts, plain
from umbel.frontend_dsl.tracing.toolcalls import TraceTool, call_tool
from umbel.frontend_dsl.tracing.world import (
    CONTAINERS,
    LANGUAGE,
    PLAIN,
    PURE,
    Guard,
    NotPlain,
    copied,
    is_pure_library,
)

MAX_MULTIPLYING_ITEMS = 6  # of a map whose body cannot be followed by itself: 64 paths
_HIDDEN = (TraceJson, TraceTool)  # of which not even the type is known
_STATES = (TraceState, TraceForks, TraceJson, TraceMeta, TraceTool)


class Hooks:
    """For one path. `program_type` is `Program` (which imports this package)."""

    def __init__(
        self, recording: Recording, program_type: type, guards: dict[tuple[int, str], Guard]
    ) -> None:
        self.recording = recording
        self._path = recording.path
        self._program_type = program_type
        self._guards = guards
        self._worlds: dict[int, dict[str, Any]] = {}  # per module, this path's copy
        self._functions: dict[tuple[int, bool], Callable[..., Any]] = {}
        # A number is only compared with others: its digits are not followed, though they are few.
        self._keeps_numbers = False
        self._copies: list[tuple[str, Any, Any]] = []
        self.point = self._path.point
        self.turns = self._path.turns

    def follow(self, function: FunctionType, *, with_points: bool) -> Callable[..., Any]:
        """`function` in its rewritten form, in a world of copies."""
        key = (id(function), with_points)
        if key not in self._functions:
            try:
                self._functions[key] = self._make(function, with_points)
            except NoSource as error:
                code = function.__code__
                raise LeaveTrace(
                    f"{function.__name__}() cannot be followed: {error}",
                    Site(code.co_filename, code.co_firstlineno),
                ) from None
        return self._functions[key]

    def changed(self) -> str | None:
        """The name of something outside that the path tried to change."""
        return next((name for name, value, mine in self._copies if value != mine), None)

    def _make(self, function: FunctionType, with_points: bool) -> Callable[..., Any]:
        code = rewritten(function, with_points=with_points)
        names = loaded_names(function)
        world = self._world(function, names)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        closure = tuple(
            CellType(self._take(name, functools.partial(_content, cells[name]), function, names))
            for name in code.co_freevars
        )
        made = FunctionType(code, world, function.__name__, None, closure)
        made.__defaults__ = self._take("its defaults", lambda: function.__defaults__, function, {})
        made.__kwdefaults__ = self._take(
            "its defaults", lambda: function.__kwdefaults__, function, {}
        )
        return made

    def _world(self, function: FunctionType, names: dict[str, int]) -> dict[str, Any]:
        outside = function.__globals__
        world = self._worlds.setdefault(
            id(outside),
            {
                HOOKS: self,
                "__builtins__": vars(builtins),
                "__name__": outside.get("__name__", ""),
            },
        )
        local = {*function.__code__.co_varnames, *function.__code__.co_freevars}
        for name in names:
            if name in outside and name not in world and name not in local:
                world[name] = self._take(
                    name, functools.partial(outside.__getitem__, name), function, names
                )
        return world

    def _take(
        self, name: str, read: Callable[[], Any], function: FunctionType, names: dict[str, int]
    ) -> Any:
        value = read()
        try:
            mine = copied(value, (self._program_type, Tool))
            before = copied(value, (self._program_type, Tool))
        except NotPlain as error:
            code = function.__code__
            line = names.get(name, code.co_firstlineno)
            raise LeaveTrace(
                f"{name} is {error}, which cannot be followed", Site(code.co_filename, line)
            ) from None
        if type(value) in CONTAINERS:
            self._copies.append((name, before, mine))
        self._guards.setdefault((id(function.__globals__), name), Guard(read, before))
        return mine

    # The hooks themselves.

    def leave(self, reason: str) -> NoReturn:
        raise LeaveTrace(reason, self._path.site())

    def fstring(self, *pieces: Any) -> str:
        texts = [piece if isinstance(piece, str) else self._formatted(*piece) for piece in pieces]
        if not any(isinstance(text, Symbol) for text in texts):
            return "".join(texts)
        return join_parts(self._path, texts)

    def mod(self, left: Any, right: Any) -> Any:
        if isinstance(left, Symbol) or (isinstance(left, str) and has_symbol(right)):
            return plain(left, "%") % plain(right, "%")
        return left % right

    def contains(self, item: Any, container: Any) -> bool:
        if isinstance(item, Symbol) and type(container) is str:
            found = item.test("is_in", container)
            return (
                bool(item.observe(lambda text: text in container, "in")) if found is None else found
            )
        return item in container

    def is_same(self, left: Any, right: Any) -> bool:
        """`left is right`."""
        left, right = known(left), known(right)
        if isinstance(left, _HIDDEN) or isinstance(right, _HIDDEN):
            self.leave("`is` looks into a value that is not known yet")
        return left is right

    def forever(self) -> Iterator[None]:
        """What a `while` counts its turns by."""
        return self.turns(itertools.repeat(None))

    def matched(self, value: Any, has_class: bool) -> Any:
        """The subject of a `match` with patterns that Python looks up by itself."""
        if has_class and isinstance(value, TraceNumber):
            self.leave("a class pattern looks into a number that is not known yet")
        if isinstance(value, _HIDDEN):
            self.leave("a pattern looks into a value that is not known yet")
        if type(value) in CONTAINERS and _hides(value):
            self.leave("a pattern looks into a container with values that are not known yet")
        return known(value)

    def attribute(self, value: Any, name: str) -> Any:
        if isinstance(value, ModuleType):
            return self._of_module(value, name)
        if name.startswith("__"):
            self.leave(f".{name} looks into Python itself")
        value = known(value)
        if isinstance(value, _STATES) or type(value) in (*PLAIN, *CONTAINERS, Symbol):
            return getattr(value, name)
        if isinstance(value, type) and value in PURE:
            return getattr(value, name)
        if type(value).__module__ in ("collections", "enum") or _is_enum(value):
            return getattr(value, name)
        self.leave(f".{name} of a {type(value).__name__} cannot be followed")

    def callable(self, function: Any) -> Callable[..., Any]:
        if isinstance(function, FunctionType):
            return self._python_function(function)
        if isinstance(function, MethodType):
            owner = function.__self__
            if isinstance(owner, TraceState) and function.__name__ in ("map", "reduce"):
                return functools.partial(getattr(self, f"_{function.__name__}"), owner)
            if isinstance(owner, (*_STATES, Symbol)) or type(owner).__module__ == "collections":
                return function
        elif isinstance(function, self._program_type):
            return self._nested(function)
        elif isinstance(function, Tool):
            return functools.partial(call_tool, self.recording, function)
        elif isinstance(function, MethodDescriptorType):
            return functools.partial(self._unbound, function.__name__)
        elif isinstance(function, type) and issubclass(function, BaseException):
            return function
        elif isinstance(function, BuiltinFunctionType) and _is_plain_method(function):
            return functools.partial(self._method, function)
        if any(function is pure for pure in PURE):
            return functools.partial(self._pure, function)
        if is_pure_library(function):
            return functools.partial(self._library, function)
        name = getattr(function, "__qualname__", type(function).__name__)
        self.leave(f"calls {name}, whose effects are not known; declare it with @umbel.tool")

    # What stands behind them.

    def _formatted(self, value: Any, conversion: int, spec: str) -> str:
        if isinstance(value, TraceNumber):
            is_plain = conversion == -1
            part = value.formatted(plain(spec, "a format") if is_plain else "")
            text = Symbol(self._path, (part,))
            return text if is_plain else format(text, plain(spec, "a format"))
        if conversion == ord("r"):
            value = repr(value)
        elif conversion == ord("s"):
            value = str(value)
        elif conversion == ord("a"):
            value = value.with_op("ascii") if isinstance(value, Symbol) else ascii(value)
        if has_symbol(value) and not isinstance(value, Symbol):
            self.leave("a container with values that are not known yet is made into text")
        return format(value, plain(spec, "a format"))

    def _of_module(self, module: ModuleType, name: str) -> Any:
        value = getattr(module, name)
        try:
            mine = copied(value, (self._program_type, Tool))
        except NotPlain as error:
            self.leave(f"{module.__name__}.{name} is {error}, which cannot be followed")
        key = (id(module), name)
        self._guards.setdefault(key, Guard(functools.partial(getattr, module, name), mine))
        return mine

    def _python_function(self, function: FunctionType) -> Callable[..., Any]:
        if function is calls.select:
            return self._select
        if function is choosing.best:
            return self._best
        if any(function is known for known in LANGUAGE):
            return function
        if function.__globals__.get(HOOKS) is self:
            return function  # made by the program itself, so it has the hooks already
        if is_pure_library(function):
            return functools.partial(self._library, function)
        module = function.__module__ or ""
        if hasattr(function, "__wrapped__") or module.partition(".")[0] == "umbel":
            self.leave(f"calls {function.__qualname__}, which cannot be followed")
        code = function.__code__
        if code.co_flags & 0x2A0:  # generators and coroutines
            self.leave(f"calls {function.__qualname__}, a generator or async function")
        return self.follow(function, with_points=False)

    def _map(self, state: TraceState, function: Any, items: Any) -> list[Any]:
        follow = self.callable(function)
        arguments = [(item,) for item in items]
        return self._map_on(state, follow, arguments)

    def _reduce(self, state: TraceState, function: Any, items: Any) -> Any:
        follow = self.callable(function)
        return reduced(list(items), functools.partial(self._map_on, state, follow))

    def _map_on(
        self, state: TraceState, follow: Any, arguments: list[tuple[Any, ...]]
    ) -> list[Any]:
        """The bodies one after another: they depend on nothing of each other."""
        forks = state.fork(len(arguments)) if arguments else ()
        return [
            self._item(follow, branch, given, len(arguments))
            for branch, given in zip(forks, arguments, strict=True)
        ]

    def _item(self, follow: Any, branch: TraceState, given: tuple[Any, ...], num_items: int) -> Any:
        run = functools.partial(follow, branch, *given)
        if not self.recording.goes_apart:
            return run()
        try:
            return Aside(self.recording, branch.path, run, lambda: freeze((follow, given))).value()
        except NotApart as error:
            if not str(error):
                return run()
            site = self._path.site()
            if num_items > MAX_MULTIPLYING_ITEMS:
                raise LeaveTrace(multiplying(error), site) from None
            self.recording.multiplies[site] = multiplying(error)
            return run()

    def _best(self, branches: Any, count: int = 1, *, key: Any) -> TraceForks:
        follow = self.callable(key)

        def rated(branch: TraceState) -> Any:
            before, self._keeps_numbers = self._keeps_numbers, True
            try:
                return follow(branch)
            finally:
                self._keeps_numbers = before

        return trace_best(self.recording, branches, count, key=rated)

    def _nested(self, program: Any) -> Callable[..., Any]:
        function = program.function
        if not isinstance(function, FunctionType):
            self.leave(f"program {program.name!r} is no plain function")
        return self._python_function(function)

    def _select(self, name: Any, choices: Any, **options: Any) -> Select:
        if not has_symbol(choices):
            return calls.select(name, choices, **options)
        listed = list(choices)
        texts = [c if isinstance(c, str) else "" for c in listed]
        stand_in = calls.select(name, [f"choice {i}" for i in range(len(texts))], **options)
        if not all(isinstance(choice, str) for choice in listed):
            self.leave("choices that are no strings")
        return Select(
            stand_in.name, tuple(listed), stand_in.method, stand_in.temperature, stand_in.seed,
            stand_in.site,
        )  # fmt: skip

    def _method(self, method: Any, *args: Any, **options: Any) -> Any:
        owner, name = method.__self__, method.__name__
        if isinstance(owner, str) and name == "join" and args and isinstance(args[0], Iterator):
            args = (list(args[0]),)  # a generator shows what it has only once
        if isinstance(owner, str) and has_symbol([*args, *options.values()]):
            if name == "join":
                return self._join(owner, args[0])
            if name == "format":
                self.leave("str.format() with values that are not known yet; use an f-string")
            return getattr(owner, name)(*(plain(arg, name) for arg in args), **options)
        return method(*self._callbacks(args), **self._callback_options(options))

    def _join(self, separator: str, pieces: Any) -> str:
        listed = list(pieces)
        if not all(isinstance(piece, str) for piece in listed):
            return separator.join(listed)  # raises as it should
        spread = [text for piece in listed for text in (separator, piece)][1:]
        return join_parts(self._path, spread)

    def _unbound(self, name: str, owner: Any, *args: Any, **options: Any) -> Any:
        return self.callable(getattr(owner, name))(*args, **options)

    def _pure(self, function: Any, *args: Any, **options: Any) -> Any:
        if function is ord or (function is int and len(args) + len(options) > 1):
            args = tuple(plain(arg, function.__name__) for arg in args)
        if function is isinstance and args:
            if isinstance(args[0], _HIDDEN):
                self.leave("isinstance() looks into a value that is not known yet")
            args = (known(args[0]), *args[1:])
        if args and isinstance(args[0], Symbol | TraceNumber):
            found = self._of_unknown(function, args, options)
            if found is not NotImplemented:
                return found
        is_text = function in (repr, str, format) and has_symbol(args[:1])
        if is_text and not isinstance(args[0], Symbol):
            self.leave("a container with values that are not known yet is made into text")
        return function(*self._callbacks(args), **self._callback_options(options))

    def _of_unknown(self, function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Builtins of a value that is not known; NotImplemented: they work on it as it is."""
        value = args[0]
        if isinstance(value, TraceNumber):
            if function is isinstance:
                return value.is_a(args[1])
            if function in (str, repr, format):
                spec = plain(args[1], "a format") if function is format and len(args) > 1 else ""
                return Symbol(self._path, (value.formatted(spec),))
            if function is int and value.is_a(int):
                return value
        elif len(args) == 1 and not options:
            kinds = {int: ("int", int), float: ("float", float), len: ("len", int)}
            part = value.only_part if self._keeps_numbers else value.open_part
            if part is not None and function in kinds:
                op, kind = kinds[function]
                return TraceNumber(self._path, part.with_ops((*part.ops, Op(op))), kind)
        return NotImplemented

    def _library(self, function: Any, *args: Any, **options: Any) -> Any:
        if has_symbol([*args, *options.values()]) or any(isinstance(a, _STATES) for a in args):
            self.leave(f"{function.__name__}() of a value that is not known yet")
        return function(*self._callbacks(args), **self._callback_options(options))

    def _callbacks(self, args: tuple[Any, ...]) -> list[Any]:
        return [self.callable(a) if isinstance(a, FunctionType | MethodDescriptorType
                | BuiltinFunctionType) else a for a in args]  # fmt: skip

    def _callback_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return dict(zip(options, self._callbacks(tuple(options.values())), strict=True))


def _content(cell: CellType) -> Any:
    return cell.cell_contents


def _hides(value: Any) -> bool:
    """Whether there is anything in `value` that Python's own patterns would not recognize."""
    if isinstance(value, dict):
        return any(map(_hides, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_hides, value))
    return isinstance(value, (Few, *_HIDDEN))


def _is_plain_method(function: BuiltinFunctionType) -> bool:
    owner = function.__self__
    return owner is not None and type(owner) in (*PLAIN, *CONTAINERS)


def _is_enum(value: object) -> bool:
    from enum import Enum

    return isinstance(value, Enum) or (isinstance(value, type) and issubclass(value, Enum))
