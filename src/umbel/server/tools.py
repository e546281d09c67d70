"""Tools: what a request offers, what it asks for, and the constraint that makes calls valid.

`build_tool_constraint` is the one place that knows how calls are written and enforced.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from umbel.runtime.errors import InvalidRequest
from umbel.server.errors import UnsupportedField

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool. A function has `parameters`; a custom tool takes text, or what `grammar`
    ("lark" or "regex", definition) allows. `field` is where it stands in the body.
    """

    kind: Literal["function", "custom"]
    name: str
    field: str
    description: str | None = None
    parameters: Any = None
    grammar: tuple[str, str] | None = None

    def as_template_sees_it(self) -> dict[str, Any]:
        """OpenAI's function tool, which chat templates are written for."""
        function: dict[str, Any] = {"name": self.name, "description": self.description or ""}
        if self.kind == "function":
            function["parameters"] = _schema(self)
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tools that may be called, and whether one must be."""

    tools: tuple[ToolSpec, ...]  # that may be called: empty when none may
    is_required: bool
    is_parallel: bool
    offered: tuple[ToolSpec, ...]  # that the model is told of


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How calls are written. Each is {"name": ..., "arguments": {...}} between two marks.

    `opening` is the text from which on a call is expected; with `has_text`, any text may stand
    before and after calls, otherwise the output is calls and nothing else.
    """

    opening: str
    separator: str  # between two calls without text; "": there is at most one
    closing: str
    has_text: bool
    hint: str  # how the model is told, when its template does not


TAGGED = CallSyntax(
    opening="<tool_call>", separator="", closing="</tool_call>", has_text=True,
    hint="To call one, write\n<tool_call>\n"
    '{"name": <name>, "arguments": <arguments>}\n</tool_call>',
)  # fmt: skip
JSON_ONE = CallSyntax(
    opening="", separator="", closing="", has_text=False,
    hint='Answer with a call: {"name": <name>, "arguments": <arguments>}',
)  # fmt: skip
JSON_LIST = CallSyntax(
    opening="[", separator=",", closing="]", has_text=False,
    hint='Answer with a JSON list of calls: [{"name": <name>, "arguments": <arguments>}]',
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToolConstraint:
    """`options` for `SamplingParams`, and how to read the output.

    `raw` is the custom tool whose input is the whole output; otherwise `syntax` says how calls are
    written. `places` are (JSON Pointer in the constraint's schema, field of the body).
    """

    options: dict[str, Any]
    syntax: CallSyntax | None = None
    raw: ToolSpec | None = None
    places: tuple[tuple[str, str], ...] = ()


def build_tool_constraint(plan: ToolPlan) -> ToolConstraint:
    """What keeps the calls of an output valid, and how they are found in it.

    Required calls follow one schema. A custom tool is forced by its own grammar, so it must be the
    only tool. Where the model may choose to answer in text, calls are found by their marks.
    """
    customs = [tool for tool in plan.tools if tool.kind == "custom"]
    if customs and not (plan.is_required and len(plan.tools) == 1):
        raise UnsupportedField(
            f"the custom tool {customs[0].name!r} is supported only when it is the one that must "
            "be called: name it in tool_choice",
            param=customs[0].field,
        )
    if customs:
        return ToolConstraint(_custom_options(customs[0]), raw=customs[0])
    if not plan.is_required:
        return ToolConstraint({}, syntax=TAGGED)
    if plan.is_parallel:
        schema, places = _call_schema(plan.tools, "/items")
        listed = {"type": "array", "items": schema, "minItems": 1}
        return ToolConstraint({"json_schema": listed}, syntax=JSON_LIST, places=places)
    schema, places = _call_schema(plan.tools, "")
    return ToolConstraint({"json_schema": schema}, syntax=JSON_ONE, places=places)


def make_plan(
    tools: Sequence[ToolSpec],
    *,
    mode: str,
    names: Sequence[tuple[str, str]] | None = None,
    is_parallel: bool = True,
    is_named: bool = False,
) -> ToolPlan:
    """`mode` is "none", "auto" or "required"; `names` are the (kind, name) that are allowed, None:
    all. With `is_named` exactly one call of the one tool is made.
    """
    _check_names(tools)
    if mode != "auto" and mode != "none" and not tools:
        raise InvalidRequest("tool_choice asks for a call, but there are no tools", param="tools")
    allowed = list(tools)
    if names is not None:
        allowed = [_find(tools, kind, name) for kind, name in names]
    if mode == "none":
        allowed = []
    return ToolPlan(
        tools=tuple(allowed),
        is_required=mode == "required",
        is_parallel=is_parallel and not is_named,
        offered=() if mode == "none" else tuple(tools),
    )


def describe_tools(plan: ToolPlan, syntax: CallSyntax | None) -> str:
    """System text about the tools, for templates that have no place for them."""
    lines = [_encoder.encode(tool.as_template_sees_it()).decode() for tool in plan.offered]
    text = "You can call these tools:\n<tools>\n" + "\n".join(lines) + "\n</tools>"
    return text if syntax is None else f"{text}\n{syntax.hint}"


def _check_names(tools: Sequence[ToolSpec]) -> None:
    seen: set[tuple[str, str]] = set()
    for tool in tools:
        if not _NAME.fullmatch(tool.name):
            raise InvalidRequest(
                f"{tool.name!r:.140} is no name for a tool: expected 1 to 128 letters, digits, "
                "'_', '-' or '.'",
                param=f"{tool.field}.name",
            )
        if (tool.kind, tool.name) in seen:
            raise InvalidRequest(
                f"there are two tools {tool.name!r}; give each a name of its own",
                param=f"{tool.field}.name",
            )
        seen.add((tool.kind, tool.name))


def _find(tools: Sequence[ToolSpec], kind: str, name: str) -> ToolSpec:
    for tool in tools:
        if (tool.kind, tool.name) == (kind, name):
            return tool
    known = ", ".join(tool.name for tool in tools) or "none"
    raise InvalidRequest(
        f"tool_choice names the {kind} {name!r}, but the tools are {known}", param="tool_choice"
    )


def _custom_options(tool: ToolSpec) -> dict[str, Any]:
    if tool.grammar is None:
        return {}
    syntax, definition = tool.grammar
    return {syntax: definition}


def _call_schema(
    tools: Sequence[ToolSpec], place: str
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """The schema of one call of any of the tools, at the JSON Pointer `place`."""
    schemas, places = [], []
    for index, tool in enumerate(tools):
        pointer = place if len(tools) == 1 else f"{place}/anyOf/{index}"
        pointer += "/properties/arguments"
        places.append((pointer, f"{tool.field}.parameters"))
        schemas.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    "arguments": _moved(_schema(tool), pointer),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    whole = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return whole, tuple(places)


def _schema(tool: ToolSpec) -> Any:
    return _NO_ARGUMENTS if tool.parameters is None else tool.parameters


def _moved(schema: Any, pointer: str) -> Any:
    """`schema` with its references to itself as they must be at `pointer` of a larger one."""
    if isinstance(schema, list):
        return [_moved(item, pointer) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = f"#{pointer}{value[1:]}"
        elif key in ("const", "enum", "default", "examples"):
            moved[key] = value  # data, not schemas
        else:
            moved[key] = _moved(value, pointer)
    return moved
