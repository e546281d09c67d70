"""Tools: what a request offers, what it asks for, and the constraint that makes calls valid.

`build_tool_constraint` is the one place that knows how calls are written and enforced.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from umbel.runtime.errors import InvalidRequest
from umbel.server.constraints import Wanted
from umbel.server.errors import UnsupportedField
from umbel.server.tool_syntax import CUSTOM_END, CallSyntax, begin_of_custom

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
        else:
            how = f"To call it, write {begin_of_custom(self.name)}<input>{CUSTOM_END}"
            function["description"] = f"{function['description']}\n{how}".lstrip()
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tools that may be called, and whether one must be."""

    tools: tuple[ToolSpec, ...]  # that may be called: empty when none may
    is_required: bool
    is_parallel: bool
    offered: tuple[ToolSpec, ...]  # that the model is told of


@dataclass(frozen=True, slots=True)
class ToolConstraint:
    """`options` for `SamplingParams`, and how to read the output.

    `raw` is the custom tool whose input is the whole output; otherwise `syntax` says how calls are
    written.
    """

    options: dict[str, Any]
    syntax: CallSyntax | None = None
    raw: ToolSpec | None = None


def build_tool_constraint(
    plan: ToolPlan, syntax: CallSyntax, wanted: Wanted | None = None
) -> ToolConstraint:
    """What keeps the calls of an output valid, and how they are found in it.

    Where the model may choose, the output is free text (or follows `wanted`) until a call begins;
    where it must call, the output is calls. A custom tool that is the only one that must be called
    needs no marks: the output is its input.
    """
    customs = [tool for tool in plan.tools if tool.kind == "custom"]
    if customs and plan.is_required and len(plan.tools) == 1:
        return ToolConstraint(custom_options(customs[0]), raw=customs[0])
    tools = [(tool.name, _schema(tool)) for tool in plan.tools if tool.kind == "function"]
    is_answer_free = plan.is_required or wanted is None
    form = syntax.tag(
        tools,
        customs=[(tool.name, _input_format(tool)) for tool in customs],
        is_required=plan.is_required or not is_answer_free,
        is_parallel=plan.is_parallel,
    )
    if not is_answer_free:
        assert wanted is not None
        form = {"type": "or", "elements": [_format_of(wanted), form]}
    options: dict[str, Any] = {"structural_tag": {"type": "structural_tag", "format": form}}
    if syntax.has_special:
        options["skip_special_tokens"] = False
    return ToolConstraint(options, syntax=syntax)


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
    return text if syntax is None else f"{text}\n{syntax.hint()}"


def _check_names(tools: Sequence[ToolSpec]) -> None:
    seen: set[str] = set()
    for tool in tools:
        if not _NAME.fullmatch(tool.name):
            raise InvalidRequest(
                f"{tool.name!r:.140} is no name for a tool: expected 1 to 128 letters, digits, "
                "'_', '-' or '.'",
                param=f"{tool.field}.name",
            )
        if tool.name in seen:
            raise InvalidRequest(
                f"there are two tools {tool.name!r}; give each a name of its own",
                param=f"{tool.field}.name",
            )
        seen.add(tool.name)


def _find(tools: Sequence[ToolSpec], kind: str, name: str) -> ToolSpec:
    for tool in tools:
        if (tool.kind, tool.name) == (kind, name):
            return tool
    known = ", ".join(tool.name for tool in tools) or "none"
    raise InvalidRequest(
        f"tool_choice names the {kind} {name!r}, but the tools are {known}", param="tool_choice"
    )


def custom_options(tool: ToolSpec) -> dict[str, Any]:
    """The constraint of a custom tool's input, as options of `SamplingParams`."""
    if tool.grammar is None:
        return {}
    syntax, definition = tool.grammar
    return {syntax: definition}


def _input_format(tool: ToolSpec) -> dict[str, Any]:
    """What a custom tool takes, as a part of a structural tag."""
    if tool.grammar is None:
        return {"type": "any_text"}
    syntax, definition = tool.grammar
    if syntax == "regex":
        return {"type": "regex", "pattern": definition}
    return {"type": "grammar", "grammar": definition}


def _format_of(wanted: Wanted) -> dict[str, Any]:
    """A constraint as a part of a structural tag."""
    match wanted.kind:
        case "json_schema":
            return {"type": "json_schema", "json_schema": _decoded(wanted)}
        case "regex":
            return {"type": "regex", "pattern": wanted.source}
        case "lark" | "gbnf":
            return {"type": "grammar", "grammar": wanted.source}
        case "choices":
            texts = [{"type": "const_string", "value": text} for text in wanted.source]
            return {"type": "or", "elements": texts}
    raise UnsupportedField(
        f"{wanted.field} together with tools is not supported: describe the calls in it, too",
        param=wanted.field,
    )


def _decoded(wanted: Wanted) -> Any:
    """A schema that may be JSON text."""
    if not isinstance(wanted.source, str):
        return wanted.source
    try:
        return msgspec.json.decode(wanted.source)
    except msgspec.DecodeError as exc:
        raise InvalidRequest(
            f"{wanted.field} is not valid JSON: {exc}", param=wanted.field
        ) from exc


def _schema(tool: ToolSpec) -> Any:
    """The schema of the arguments, which are always an object."""
    schema = _NO_ARGUMENTS if tool.parameters is None else tool.parameters
    if schema is True:
        return {"type": "object"}
    if not isinstance(schema, dict):
        return schema  # false: refused when it is compiled
    if schema.get("type", "object") != "object":
        raise InvalidRequest(
            f"the arguments of {tool.name!r} have the type {schema['type']!r}: expected 'object'",
            param=f"{tool.field}.parameters",
        )
    return {**schema, "type": "object"}
