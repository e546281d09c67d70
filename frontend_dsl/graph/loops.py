"""Loops, turn by turn: a turn is the body with its number in the names."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from umbel.frontend_dsl.graph.nodes import (
    Again,
    AnyNode,
    Arg,
    Best,
    Block,
    CallTool,
    Choose,
    Data,
    Decide,
    Decoded,
    Fork,
    Generate,
    Give,
    Join,
    Literal,
    Loop,
    Mapping,
    Number,
    Pick,
    Ref,
    Return,
    Say,
    Sequence,
    Template,
    ToolValue,
    Turn,
    Words,
    blocks_of,
    walk,
    with_blocks,
)
from umbel.runtime.errors import InvalidRequest

_replace = msgspec.structs.replace


def turn(loop: Loop) -> Block:
    """The turn `loop.start`, with the rest of the loop where it goes on."""
    if loop.start + 1 < loop.max_turns:
        return with_rest(turn_alone(loop), loop.index, (_replace(loop, start=loop.start + 1),))
    return with_rest(turn_alone(loop), loop.index, loop.last)


def turn_alone(loop: Loop) -> Block:
    """The turn `loop.start`, with `Again` where it goes on."""
    pattern = re.compile(r"\{" + re.escape(loop.index) + r"(?:([+-])(\d+))?\}")

    def in_turn(match: re.Match[str]) -> str:
        plus = int(match[2] or 0)
        return str(loop.start + (-plus if match[1] == "-" else plus))

    def in_text(part: Turn) -> str | Turn:
        return str(loop.start + part.plus) if part.index == loop.index else part

    renaming = Renaming(lambda name: pattern.sub(in_turn, name), in_text)
    return renaming.block(loop.body, inside=loop.index)


def check_loop(loop: Loop) -> None:
    """Raise `InvalidRequest` for a loop that could run in another order than it is written: that
    goes on in the middle of a path, or uses a branch of another turn.
    """
    where = f"the loop at line {loop.line}"
    if not 0 <= loop.start < loop.max_turns or not loop.index.isidentifier():
        raise InvalidRequest(f"{where} has no valid turns or index")
    if any(isinstance(node, Again) and node.index == loop.index for node in walk(loop.last)):
        raise InvalidRequest(f"{where} goes on after its last turn")
    ends = set(map(id, _ends(loop.body)))
    mark = "{" + loop.index
    nodes = list(walk(loop.body))
    forked = {child for node in nodes if isinstance(node, Fork | Best) for child in node.children}
    for node in nodes:
        if isinstance(node, Again) and id(node) not in ends:
            raise InvalidRequest(f"{where} goes on in the middle of a path")
        used = node.candidates if isinstance(node, Best) else (getattr(node, "branch", ""),)
        for branch in used:
            if mark in branch and branch not in forked:
                raise InvalidRequest(f"{where} uses {branch!r}, no branch of the same turn")


def _ends(block: Block) -> Iterator[AnyNode]:
    """The last nodes of the paths through `block`."""
    stack = [block]
    while stack:
        block = stack.pop()
        if block:
            yield block[-1]
            stack += blocks_of(block[-1])


class Renaming:
    """Nodes with other names: `name` is applied to names, branches and ids, `text` to turns."""

    def __init__(self, name: Callable[[str], str], text: Callable[[Turn], str | Turn]) -> None:
        self._name = name
        self._text = text

    def block(self, block: Block, *, inside: str) -> Block:
        """`inside`: the index that is replaced; an inner loop of that name has its own."""
        return tuple(
            node if isinstance(node, Loop) and node.index == inside else self._node(node, inside)
            for node in block
        )

    def _node(self, node: AnyNode, inside: str) -> AnyNode:
        changes: dict[str, Any] = {}
        for name in ("branch", "name", "id"):
            value = getattr(node, name, None)
            if isinstance(value, str):
                changes[name] = self._name(value)
        if isinstance(node, Fork | Best):
            changes["children"] = tuple(map(self._name, node.children))
        if isinstance(node, Best):
            changes["candidates"] = tuple(map(self._name, node.candidates))
            changes["names"] = tuple(map(self._name, node.names))
            changes["scores"] = tuple(map(self._data, node.scores))
        elif isinstance(node, Join):
            changes["branches"] = tuple(map(self._name, node.branches))
        elif isinstance(node, Say | Give):
            changes["parts"] = self.template(node.parts)
        elif isinstance(node, Choose):
            changes["choices"] = tuple(map(self.template, node.choices))
        elif isinstance(node, Decide):
            changes["subject"] = self._value(node.subject)
        elif isinstance(node, CallTool):
            changes["arguments"] = tuple((k, self._data(v)) for k, v in node.arguments)
        elif isinstance(node, Generate):
            given = [(k, self._data(v)) for k, v in node.given]
            known = {k: v.value for k, v in given if isinstance(v, Literal)}
            changes["given"] = tuple((k, v) for k, v in given if k not in known)
            changes["options"] = {**node.options, **known}
        elif isinstance(node, Return):
            changes["value"] = self._data(node.value)
        changed: AnyNode = _replace(node, **changes)
        inner = [self.block(body, inside=inside) for body in blocks_of(node)]
        return with_blocks(changed, inner)

    def template(self, template: Template) -> Template:
        """With neighbouring constants as one."""
        parts: list[Any] = []
        for part in template:
            new: Any = part
            if isinstance(part, Turn):
                new = self._text(part)
            elif not isinstance(part, str):
                new = self._value(part)
            if isinstance(new, str) and parts and isinstance(parts[-1], str):
                parts[-1] += new
            else:
                parts.append(new)
        return tuple(parts)

    def _value(self, part: Ref | Arg) -> Ref | Arg:
        if isinstance(part, Arg):
            return part
        return _replace(part, branch=self._name(part.branch), name=self._name(part.name))

    def _data(self, data: Data) -> Data:
        if isinstance(data, Turn):
            number = self._text(data)
            return number if isinstance(number, Turn) else Literal(int(number))
        if isinstance(data, Words):
            return Words(self.template(data.parts))
        if isinstance(data, Number):
            return Number(self._value(data.part))
        if isinstance(data, Pick):
            return _replace(data, part=self._value(data.part))
        if isinstance(data, Decoded):
            return Decoded(self._name(data.branch), self._name(data.name))
        if isinstance(data, ToolValue):
            return ToolValue(self._name(data.id))
        if isinstance(data, Sequence):
            return Sequence(tuple(map(self._data, data.items)), data.is_tuple)
        if isinstance(data, Mapping):
            return Mapping(tuple((key, self._data(value)) for key, value in data.items))
        return data


def with_rest(block: Block, index: str, rest: Block) -> Block:
    """`block` with `rest` where the loop `index` goes on."""
    out: list[AnyNode] = []
    for node in block:
        if isinstance(node, Again) and node.index == index:
            out += rest
        elif isinstance(node, Loop) and node.index == index:
            out.append(node)
        else:
            inner = blocks_of(node)
            out.append(
                with_blocks(node, [with_rest(body, index, rest) for body in inner])
                if inner else node
            )  # fmt: skip
    return tuple(out)
