"""Turns that are written one after another become a loop.

Tracing follows a program's loop turn by turn: each turn ends with a decision, and what follows
where it goes on is the next turn. Two turns that differ by one in some numbers are a loop of two
turns; the turn before joins a loop if it is what the loop would do one turn earlier. Both are
checked by writing the loop out again, so a loop is exactly what was there.
"""

import re
from itertools import count
from typing import Any

import msgspec

from umbel.frontend_dsl.graph.loops import check_loop, turn, turn_alone, with_rest
from umbel.frontend_dsl.graph.nodes import (
    Again,
    AnyNode,
    Arm,
    Block,
    Decide,
    Decoded,
    Graph,
    Literal,
    Loop,
    Mapping,
    Number,
    Pick,
    Ref,
    Sequence,
    ToolValue,
    Turn,
    Words,
    blocks_of,
    walk,
    with_blocks,
)
from umbel.runtime.errors import InvalidRequest

MIN_TURNS = 3  # fewer are as easily read one after another
_MAX_NODES = 20_000  # of a graph that is looked at
_MAX_DEPTH = 150
_DIGITS = re.compile(r"([0-9]+)")
_replace = msgspec.structs.replace


def roll_loops(graph: Graph) -> tuple[Graph, str]:
    """Write turns that are alike as loops."""
    before = sum(1 for _ in walk(graph.body))
    if before > _MAX_NODES or _depth(graph.body) > _MAX_DEPTH:
        return graph, f"not looked at: more than {_MAX_NODES} nodes, or too deep"
    body = _Roller(graph).rolled(graph.body)
    graph = _replace(graph, body=body)
    loops = [node for node in walk(body) if isinstance(node, Loop)]
    if not loops:
        return graph, "no turns of a loop were found"
    turns = ", ".join(str(loop.max_turns - loop.start) for loop in loops)
    after = sum(1 for _ in walk(body))
    return graph, f"{len(loops)} loops (turns: {turns}) stand for {before} nodes in {after}"


class _Unlike(Exception):
    """Two pieces are no turns of one loop."""


class _Roller:
    def __init__(self, graph: Graph) -> None:
        taken = set(re.findall(r"\{(\w+)", repr(graph.body)))
        self._indices = (name for name in (f"turn{i}" for i in count(1)) if name not in taken)
        self._index = next(self._indices)
        self._made: set[str] = set()
        self._done: dict[int, tuple[Block, Block]] = {}  # blocks that paths share are met again

    def rolled(self, block: Block) -> Block:
        """`block` with its loops; those of few turns stay written out."""
        return self._without_short_loops(self._rolled(block))

    def _rolled(self, block: Block) -> Block:
        known = self._done.get(id(block))
        if known is not None:
            return known[1]
        out: list[AnyNode] = []
        for node in block:
            inner = blocks_of(node)
            out.append(with_blocks(node, [self._rolled(body) for body in inner]) if inner else node)
            if isinstance(node, Decide):
                self._roll_end(out)
        made = tuple(out)
        self._done[id(block)] = (block, made)
        return made

    def _roll_end(self, out: list[AnyNode]) -> None:
        """`out` ends with a decision: make it the end of a turn, if it is one."""
        for arm in blocks_of(out[-1]):
            found = _joined(out, arm) or self._begun(out, arm)
            if found is not None:
                loop, length = found
                del out[len(out) - length :]
                out.append(loop)
                return

    def _begun(self, out: list[AnyNode], arm: Block) -> tuple[Loop, int] | None:
        """A loop of two turns, the end of `out` and the end of `arm`: the longest there is."""
        if not arm or not isinstance(arm[-1], Decide):
            return None
        for length in range(min(len(arm), len(out)), 0, -1):
            loop = _loop_of(tuple(out[len(out) - length :]), arm[len(arm) - length :], self._index)
            if loop is not None:
                self._made.add(self._index)
                self._index = next(self._indices)
                return loop, length
        return None

    def _without_short_loops(self, block: Block) -> Block:
        out: list[AnyNode] = []
        for node in block:
            is_mine = isinstance(node, Loop) and node.index in self._made
            if isinstance(node, Loop) and is_mine and node.max_turns - node.start < MIN_TURNS:
                out += self._without_short_loops(turn(node))
            else:
                inner = [self._without_short_loops(body) for body in blocks_of(node)]
                out.append(with_blocks(node, inner))
        return tuple(out)


def _joined(out: list[AnyNode], arm: Block) -> tuple[Loop, int] | None:
    """The loop that `arm` ends with, one turn longer, and how many nodes that turn has."""
    loop = arm[-1] if arm else None
    if not isinstance(loop, Loop) or loop.start == 0:
        return None
    longer = _replace(loop, start=loop.start - 1)
    first = turn(longer)
    if len(first) > len(out) or tuple(out[len(out) - len(first) :]) != first:
        return None
    return longer, len(first)


def _loop_of(first: Block, second: Block, index: str) -> Loop | None:
    """The loop whose turns are `first`, with `second` where it goes on, and `second`."""
    pattern = _Pattern(index, second)
    try:
        body = pattern.nodes(first, second)
        if pattern.start is None or pattern.last is None:
            return None
        loop = Loop(
            index=index, body=body, start=pattern.start, max_turns=pattern.start + 2,
            last=pattern.last, file=first[0].file, line=first[0].line,
        )  # fmt: skip
        check_loop(loop)
    except (_Unlike, InvalidRequest):
        return None
    is_first = with_rest(turn_alone(loop), index, second) == first
    return loop if is_first and turn(_replace(loop, start=loop.start + 1)) == second else None


class _Pattern:
    """What two turns have in common: numbers that grow by one stand for the turn.

    `start` is the turn of the first, set by the first such number; `last` what stands in the
    second turn where the first has the second.
    """

    def __init__(self, index: str, second: Block) -> None:
        self.start: int | None = None
        self.last: Block | None = None
        self._index = index
        self._second = second

    def nodes(self, first: Block, second: Block) -> Block:
        if len(first) != len(second):
            raise _Unlike
        return tuple(map(self._node, first, second))

    def _block(self, first: Block, second: Block) -> Block:
        length = len(first) - len(self._second)
        if length < 0 or first[length:] != self._second:
            return self.nodes(first, second)
        if self.last is not None and second[length:] != self.last:
            raise _Unlike
        self.last = second[length:]
        end = first[-1]
        again = Again(index=self._index, file=end.file, line=end.line)
        return (*self.nodes(first[:length], second[:length]), again)

    def _node(self, first: AnyNode, second: AnyNode) -> AnyNode:
        if first == second:
            return first
        if type(first) is not type(second):
            raise _Unlike
        changes: dict[str, Any] = {}
        of_turn: list[tuple[str, Turn]] = []
        for name in first.__struct_fields__:
            mine, other = getattr(first, name), getattr(second, name)
            if name in ("body", "otherwise", "last") and mine is not None and other is not None:
                changes[name] = self._block(mine, other)
            elif name == "arms":
                changes[name] = self._arms(mine, other)
            elif name == "options":
                changes["options"], of_turn = self._options(mine, other)
            else:
                changes[name] = self._value(mine, other, is_text=name in ("parts", "choices"))
        if of_turn:
            changes["given"] = (*changes["given"], *of_turn)
        return _replace(first, **changes)

    def _options(
        self, first: dict[str, Any], second: dict[str, Any]
    ) -> tuple[dict[str, Any], list[tuple[str, Turn]]]:
        """Those that are the same, and those that are the number of the turn."""
        if first.keys() != second.keys():
            raise _Unlike
        same = {name: value for name, value in first.items() if second[name] == value}
        others = [(name, first[name], second[name]) for name in first if name not in same]
        return same, [(name, self._number(a, b)) for name, a, b in others]

    def _number(self, first: object, second: object) -> Turn:
        if type(first) is not int or type(second) is not int or first < 0:
            raise _Unlike
        plus = self._piece(str(first), str(second))
        assert isinstance(plus, int)  # the two differ
        return Turn(self._index, plus)

    def _arms(self, first: tuple[Arm, ...], second: tuple[Arm, ...]) -> tuple[Arm, ...]:
        if [arm.outcomes for arm in first] != [arm.outcomes for arm in second]:
            raise _Unlike
        bodies = [self._block(a.body, b.body) for a, b in zip(first, second, strict=True)]
        return tuple(Arm(arm.outcomes, body) for arm, body in zip(first, bodies, strict=True))

    def _value(self, first: Any, second: Any, *, is_text: bool) -> Any:
        """`is_text`: strings are parts of a template, not names."""
        if first == second:
            return first
        if type(first) is not type(second):
            raise _Unlike
        if isinstance(first, str):
            return self._name(first, second)
        if isinstance(first, tuple):
            if len(first) != len(second):
                raise _Unlike
            pairs = zip(first, second, strict=True)
            if is_text and any(isinstance(part, str) for part in first):
                return tuple(part for a, b in pairs for part in self._part(a, b))
            return tuple(self._value(a, b, is_text=is_text) for a, b in pairs)
        if isinstance(first, Literal):
            return self._number(first.value, second.value)
        if isinstance(
            first, Ref | Words | Number | Pick | Decoded | Sequence | Mapping | ToolValue
        ):
            changes = {}
            for name in first.__struct_fields__:
                mine, other = getattr(first, name), getattr(second, name)
                changes[name] = self._value(mine, other, is_text=name == "parts")
            return _replace(first, **changes)
        raise _Unlike

    def _part(self, first: Any, second: Any) -> list[Any]:
        if not isinstance(first, str) or not isinstance(second, str):
            return [self._value(first, second, is_text=True)]
        pieces = self._pieces(first, second)
        return [Turn(self._index, p) if isinstance(p, int) else p for p in pieces if p != ""]

    def _name(self, first: str, second: str) -> str:
        pieces = self._pieces(first, second)
        return "".join(self._mark(p) if isinstance(p, int) else p for p in pieces)

    def _mark(self, plus: int) -> str:
        return "{" + self._index + (f"{plus:+d}" if plus else "") + "}"

    def _pieces(self, first: str, second: str) -> list[str | int]:
        """The constant pieces of both, and between them how far the turn's number is away."""
        mine, others = _DIGITS.split(first), _DIGITS.split(second)
        if len(mine) != len(others):
            raise _Unlike
        return [self._piece(a, b) for a, b in zip(mine, others, strict=True)]

    def _piece(self, first: str, second: str) -> str | int:
        if first == second:
            return first
        if not first.isdecimal() or not second.isdecimal():
            raise _Unlike
        number = int(first)
        if int(second) != number + 1 or (str(number), str(number + 1)) != (first, second):
            raise _Unlike
        if self.start is None:
            self.start = number
        return number - self.start


def _depth(block: Block) -> int:
    depth, blocks = 0, [block]
    while blocks and depth <= _MAX_DEPTH:
        depth += 1
        unique = {id(inner): inner for b in blocks for node in b for inner in blocks_of(node)}
        blocks = list(unique.values())
    return depth
