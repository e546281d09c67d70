"""Loops as decisions: one turn, then a decision whether to go on with the next."""

from typing import Any

import msgspec

from umbel.frontend_dsl.graph.nodes import (
    AnyNode,
    Arm,
    Block,
    CallTool,
    Choose,
    Data,
    Decide,
    Decoded,
    Fork,
    Generate,
    Join,
    Loop,
    Mapping,
    Ref,
    Return,
    Say,
    Sequence,
    Template,
    ToolValue,
    Words,
    blocks_of,
    with_blocks,
)

_replace = msgspec.structs.replace


def turn(loop: Loop) -> Block:
    """The body of the turn `loop.start`, and after it the rest of the loop."""
    old, new = "{" + loop.index + "}", str(loop.start)
    body = _block(loop.body, old, new)
    if loop.start + 1 >= loop.max_turns:
        return body
    rest = _replace(loop, start=loop.start + 1)
    subject = _ref(loop.subject, old, new)
    check = Decide(
        subject=subject,
        arms=(Arm(loop.until, ()),),
        otherwise=(rest,),
        file=loop.file,
        line=loop.line,
    )
    return (*body, check)


def _block(block: Block, old: str, new: str) -> Block:
    return tuple(_node(node, old, new) for node in block)


def _node(node: AnyNode, old: str, new: str) -> AnyNode:
    """`node` with `old` replaced in all names; the texts stay."""
    changes: dict[str, Any] = {}
    for name in ("branch", "name", "id"):
        value = getattr(node, name, None)
        if isinstance(value, str):
            changes[name] = value.replace(old, new)
    if isinstance(node, Fork):
        changes["children"] = tuple(child.replace(old, new) for child in node.children)
    elif isinstance(node, Join):
        changes["branches"] = tuple(branch.replace(old, new) for branch in node.branches)
    elif isinstance(node, Say):
        changes["parts"] = _template(node.parts, old, new)
    elif isinstance(node, Choose):
        changes["choices"] = tuple(_template(parts, old, new) for parts in node.choices)
    elif isinstance(node, Decide | Loop) and isinstance(node.subject, Ref):
        changes["subject"] = _ref(node.subject, old, new)
    elif isinstance(node, CallTool):
        changes["arguments"] = tuple((k, _data(v, old, new)) for k, v in node.arguments)
    elif isinstance(node, Return):
        changes["value"] = _data(node.value, old, new)
    if isinstance(node, Generate | Choose) and node.name is None:
        changes.pop("name", None)
    changed: AnyNode = _replace(node, **changes)
    return with_blocks(changed, [_block(inner, old, new) for inner in blocks_of(node)])


def _template(parts: Template, old: str, new: str) -> Template:
    return tuple(_ref(part, old, new) if isinstance(part, Ref) else part for part in parts)


def _ref(ref: Ref, old: str, new: str) -> Ref:
    branch, name = ref.branch.replace(old, new), ref.name.replace(old, new)
    return msgspec.structs.replace(ref, branch=branch, name=name)


def _data(data: Data, old: str, new: str) -> Data:
    if isinstance(data, Words):
        return Words(_template(data.parts, old, new))
    if isinstance(data, Decoded):
        return Decoded(data.branch.replace(old, new), data.name.replace(old, new))
    if isinstance(data, ToolValue):
        return ToolValue(data.id.replace(old, new))
    if isinstance(data, Sequence):
        return Sequence(tuple(_data(item, old, new) for item in data.items), data.is_tuple)
    if isinstance(data, Mapping):
        return Mapping(tuple((key, _data(value, old, new)) for key, value in data.items))
    return data
