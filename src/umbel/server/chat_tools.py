"""The tools of a chat's body as a `ToolPlan`."""

from umbel.runtime.errors import InvalidRequest
from umbel.server.errors import UnsupportedField
from umbel.server.protocol.chat import (
    ChatBody,
    CustomDefinition,
    Tool,
    ToolChoiceObject,
    ToolName,
    ToolReference,
)
from umbel.server.tools import ToolPlan, ToolSpec, make_plan


def plan_of(body: ChatBody) -> ToolPlan | None:
    """None when the body has no tools."""
    choice = body.tool_choice
    if not body.tools and choice in (None, "none", "auto"):
        return None
    tools = [_spec(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())]
    is_parallel = body.parallel_tool_calls is not False
    if isinstance(choice, ToolChoiceObject):
        return _named(tools, choice, is_parallel=is_parallel)
    return make_plan(tools, mode=choice or "auto", is_parallel=is_parallel)


def _spec(tool: Tool, place: str) -> ToolSpec:
    if tool.type == "function" and tool.function is not None:
        function = tool.function
        return ToolSpec(
            kind="function",
            name=function.name,
            field=f"{place}.function",
            description=function.description,
            parameters=function.parameters,
        )
    if tool.type == "custom" and tool.custom is not None:
        custom = tool.custom
        return ToolSpec(
            kind="custom",
            name=custom.name,
            field=f"{place}.custom",
            description=custom.description,
            grammar=_grammar(custom, f"{place}.custom"),
        )
    if tool.type in ("function", "custom"):
        raise InvalidRequest(
            f"{place}.{tool.type} is missing: it describes the tool", param=f"{place}.{tool.type}"
        )
    raise UnsupportedField(
        f"{place}.type={tool.type!r} is not supported; accepted are 'function' and 'custom'",
        param=f"{place}.type",
    )


def _grammar(custom: CustomDefinition, place: str) -> tuple[str, str] | None:
    if custom.format is None or custom.format.type == "text":
        return None
    if custom.format.grammar is None:
        raise InvalidRequest(
            f"{place}.format.grammar is missing: it holds 'syntax' and 'definition'",
            param=f"{place}.format.grammar",
        )
    return custom.format.grammar.syntax, custom.format.grammar.definition


def _named(tools: list[ToolSpec], choice: ToolChoiceObject, *, is_parallel: bool) -> ToolPlan:
    if choice.type == "allowed_tools" and choice.allowed_tools is not None:
        allowed = choice.allowed_tools
        names = [_reference(one) for one in allowed.tools]
        return make_plan(tools, mode=allowed.mode, names=names, is_parallel=is_parallel)
    if choice.type == "allowed_tools":
        raise InvalidRequest(
            "tool_choice.allowed_tools is missing", param="tool_choice.allowed_tools"
        )
    reference = ToolReference(type=choice.type, function=choice.function, custom=choice.custom)
    return make_plan(tools, mode="required", names=[_reference(reference)], is_named=True)


def _reference(reference: ToolReference) -> tuple[str, str]:
    named: ToolName | None = reference.custom if reference.type == "custom" else reference.function
    if named is None:
        raise InvalidRequest(
            f"tool_choice must name a tool: {{'type': {reference.type!r}, {reference.type!r}: "
            "{'name': ...}}",
            param="tool_choice",
        )
    return reference.type, named.name
