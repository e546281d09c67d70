"""Tools while a program is traced: a call becomes a node, its result a symbol."""

from collections.abc import Hashable
from typing import Any, Literal, NoReturn, get_args, get_origin

from umbel.frontend_dsl.graph import nodes
from umbel.frontend_dsl.tools import Tool
from umbel.frontend_dsl.tracing.few import Few
from umbel.frontend_dsl.tracing.leaving import LeaveTrace
from umbel.frontend_dsl.tracing.recorder import Recording
from umbel.frontend_dsl.tracing.results import TraceJson, as_data
from umbel.frontend_dsl.tracing.symbols import Symbol


class TraceTool:
    """What a tool returned, if that is no text: it can be written as text, given to a tool, or
    returned.
    """

    def __init__(self, recording: Recording, call_id: str) -> None:
        self._recording = recording
        self.call_id = call_id

    def trace_key(self) -> Hashable:
        return self.call_id

    def as_data(self) -> nodes.Data:
        return nodes.ToolValue(self.call_id)

    def __str__(self) -> str:
        return Symbol(self._recording.path, (nodes.Ref(nodes.TOOLS, self.call_id),))

    def __format__(self, spec: str) -> str:
        if spec:
            self._leave(f"the format {spec!r} looks")
        return str(self)

    def __bool__(self) -> bool:
        self._leave("a condition looks")

    def __eq__(self, other: object) -> bool:
        self._leave("== looks")

    def __hash__(self) -> int:
        self._leave("a set or dict looks")

    def _leave(self, what: str) -> NoReturn:
        raise LeaveTrace(f"{what} into the result of a tool", self._recording.path.site())


def call_tool(recording: Recording, tool: Tool, *args: Any, **options: Any) -> Any:
    """Record a call. Constant arguments are checked now, the others when the graph runs."""
    path = recording.path
    call_id = _call_id(recording, tool)
    try:
        bound = tool.signature.bind(*args, **options)
    except TypeError as error:
        raise LeaveTrace(f"tool {tool.name!r}: {error}", path.site()) from None
    if tool.takes_any_number:
        raise LeaveTrace(f"tool {tool.name!r} takes any number of arguments", path.site())
    recording.tools[tool.name] = tool
    path.add(
        nodes.CallTool(
            id=call_id,
            tool=tool.name,
            arguments=tuple((k, _data(v, recording)) for k, v in bound.arguments.items()),
            is_pure=tool.is_pure,
            **recording.where(),
        )
    )
    if not tool.is_pure:
        recording.wait_for(nodes.TOOLS, call_id)
    return _result(recording, tool, call_id)


def _result(recording: Recording, tool: Tool, call_id: str) -> Any:
    hint = tool.result_type
    owner = (nodes.TOOLS, call_id)
    if hint is bool:
        recording.path.set(("outcomes", owner), ("False", "True"))
        values = {"False": False, "True": True}
        return Few(recording.path, nodes.Ref(*owner), values, nodes.ToolValue(call_id))
    texts = get_args(hint) if get_origin(hint) is Literal else ()
    is_text = hint is str or (texts and all(isinstance(text, str) for text in texts))
    if not is_text:
        return TraceTool(recording, call_id)
    recording.path.set(("outcomes", owner), tuple(sorted(texts)) or None)
    return Symbol(recording.path, (nodes.Ref(*owner),))


def _data(value: object, recording: Recording) -> nodes.Data:
    if isinstance(value, TraceTool):
        return value.as_data()
    if isinstance(value, TraceJson):
        return nodes.Decoded(*value.owner)
    return as_data(value, recording.path)


def _call_id(recording: Recording, tool: Tool) -> str:
    """A name for the call that it has on all paths: by its line and the turns of the loops around
    it, not by how many calls a path has made before.
    """
    path = recording.path
    turns = "".join(f"#{count}" for count in path.loop_turns())
    place = f"{tool.name}:{path.site().line}{turns}"
    key = ("tool calls", place)
    known = path.get(key)
    number = known + 1 if isinstance(known, int) else 1
    path.set(key, number)
    return place if number == 1 else f"{place}.{number}"
