"""A graph as text, as Mermaid, and as SVG. All three draw the same boxes."""

import html
from collections.abc import Iterator
from dataclasses import dataclass

from umbel.frontend_dsl.graph.nodes import (
    Again,
    AnyNode,
    Arg,
    Arm,
    Await,
    Best,
    Block,
    CallTool,
    Choose,
    CloseRole,
    Data,
    Decide,
    Decoded,
    Fork,
    Generate,
    Give,
    Graph,
    Join,
    Leave,
    Literal,
    Loop,
    Mapping,
    Number,
    OpenRole,
    Part,
    Pick,
    Return,
    Say,
    Sequence,
    Template,
    ToolValue,
    Turn,
    Words,
)

_WIDTH = 60  # characters of a text that are shown
_ROW_PX, _INDENT_PX, _CHAR_PX, _PAD_PX = 26, 22, 7.3, 12
_FILLS = {
    "gen": "#dbeafe", "select": "#dbeafe", "decide": "#fef3c7", "best": "#fef3c7",
    "loop": "#fef3c7",
    "call": "#dcfce7", "leave": "#fee2e2", "return": "#ede9fe",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the drawing. `label`: the way of a decision that leads here."""

    depth: int
    kind: str
    text: str
    line: int
    label: str | None = None


def as_text(graph: Graph) -> str:
    """Indented lines, each with its line of source at the end."""
    lines = [f"{graph.name}({', '.join(graph.parameters)})"]
    for path, text in graph.made_for:
        lines.append(f"  only for {_part(Arg(path))} = {_short(repr(text))}")
    for row in rows(graph):
        # A way has a line of its own, and what stands in it is one further in.
        if row.label is not None:
            lines.append(f"{'    ' * row.depth}{row.label}:")
        where = f"  :{row.line}" if row.line else ""
        lines.append(f"{'    ' * row.depth}  {row.text}{where}")
    return "\n".join(lines)


def as_mermaid(graph: Graph) -> str:
    """A flowchart in Mermaid's language."""
    chart = _Flowchart()
    start = chart.box(f'(["{_quoted(graph.name)}"])', [])
    chart.block(graph.body, [(start, None)])
    return "\n".join(["flowchart TD", *chart.lines])


class _Flowchart:
    """`ends` of a block: boxes that go on after it, each with the label of its arrow."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._num_boxes = 0
        self._loops: dict[str, int] = {}  # the box of each loop around

    def box(self, shape: str, came_from: list[tuple[int, str | None]]) -> int:
        number = self._num_boxes
        self._num_boxes += 1
        self.lines.append(f"  n{number}{shape}")
        for other, label in came_from:
            self._arrow(other, number, label)
        return number

    def block(
        self, block: Block, ends: list[tuple[int, str | None]]
    ) -> list[tuple[int, str | None]]:
        for node in block:
            if isinstance(node, Again):
                for other, label in ends:
                    self._arrow(other, self._loops.get(node.index, 0), label, line="-.->")
                return []
            is_choice = isinstance(node, Decide | Loop)
            left, right = ('{"', '"}') if is_choice else ('["', '"]')
            number = self.box(f"{left}{_quoted(describe(node))}{right}", ends)
            ends = self._after(node, number)
        return ends

    def _after(self, node: AnyNode, number: int) -> list[tuple[int, str | None]]:
        if isinstance(node, Decide):
            ways = [(_label(arm), arm.body) for arm in node.arms]
            if node.otherwise is not None:
                ways.append(("otherwise", node.otherwise))
            return [end for label, body in ways for end in self.block(body, [(number, label)])]
        if isinstance(node, Loop):
            self._loops[node.index] = number
            ends = self.block(node.body, [(number, None)])
            return [*ends, *self.block(node.last, [(number, "after the last turn")])]
        return [] if isinstance(node, Return | Leave) else [(number, None)]

    def _arrow(self, start: int, end: int, label: str | None, line: str = "-->") -> None:
        text = f'|"{_quoted(label)}"|' if label is not None else ""
        self.lines.append(f"  n{start} {line}{text} n{end}")


def as_svg(graph: Graph) -> str:
    """One box per node from top to bottom, inner blocks indented; a file of its own."""
    drawn = [Row(0, "program", f"{graph.name}({', '.join(graph.parameters)})", 0), *rows(graph)]
    boxes = [_box(index, row) for index, row in enumerate(drawn)]
    width = max(_left(row) + _box_width(row) for row in drawn) + 2 * _PAD_PX + 60
    height = len(drawn) * _ROW_PX + 2 * _PAD_PX
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" font-family="monospace" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *boxes, "</svg>"])


def rows(graph: Graph) -> list[Row]:
    """The nodes in program order, with how deep they stand."""
    return list(_rows(graph.body, 0, None))


def _rows(block: Block, depth: int, label: str | None) -> Iterator[Row]:
    if not block and label is not None:
        yield Row(depth, "nothing", "(goes on)", 0, label)
    for node in block:
        yield Row(depth, _kind(node), describe(node), node.line, label)
        label = None
        if isinstance(node, Decide):
            for arm in node.arms:
                yield from _rows(arm.body, depth + 1, _label(arm))
            if node.otherwise is not None:
                yield from _rows(node.otherwise, depth + 1, "otherwise")
        elif isinstance(node, Loop):
            yield from _rows(node.body, depth + 1, None)
            if node.last:
                yield from _rows(node.last, depth + 1, "after the last turn")


def _label(arm: Arm) -> str:
    """The outcomes, in quotes where they would be misread."""
    return " | ".join(t if t and t == t.strip() else repr(t) for t in arm.outcomes)


def describe(node: AnyNode) -> str:
    """One line that says what `node` does."""
    if isinstance(node, Say):
        return f"{node.branch} += {_template(node.parts)}"
    if isinstance(node, Generate):
        shown = "".join(f", {name}={_short(repr(value))}" for name, value in node.options.items())
        shown += "".join(f", {name}={_data(value)}" for name, value in node.given)
        return f"{node.branch} += gen({node.name!r}{shown})"
    if isinstance(node, Choose):
        choices = _short(", ".join(_template(choice) for choice in node.choices))
        return f"{node.branch} += select({node.name!r}, [{choices}])"
    if isinstance(node, Fork):
        return f"{node.branch} forks into {len(node.children)}"
    if isinstance(node, Best):
        scores = _short(", ".join(_data(score) for score in node.scores))
        return f"fork the {len(node.children)} best of {len(node.candidates)} branches by {scores}"
    if isinstance(node, Give):
        return f"{node.branch}[{node.name!r}] = {_template(node.parts)}"
    if isinstance(node, Join):
        return f"wait for {len(node.branches)} branches"
    if isinstance(node, Await):
        return f"wait for {node.branch}[{node.name!r}]"
    if isinstance(node, OpenRole | CloseRole):
        return f"{node.branch}: {'open' if isinstance(node, OpenRole) else 'close'} {node.role}"
    if isinstance(node, Decide):
        return f"{_part(node.subject)} is"
    if isinstance(node, Loop):
        return f"for {node.index} = {node.start}, {node.start + 1}, ... {node.max_turns - 1}"
    if isinstance(node, Again):
        return f"next {node.index}"
    if isinstance(node, CallTool):
        given = ", ".join(f"{name}={_data(value)}" for name, value in node.arguments)
        return f"{node.id} = {node.tool}({_short(given)})"
    return f"return {_data(node.value)}" if isinstance(node, Return) else f"Python: {node.reason}"


def _kind(node: AnyNode) -> str:
    return str(node.__struct_config__.tag)


def _template(parts: Template) -> str:
    return _short(" + ".join(_part(part) for part in parts)) or "''"


def _part(part: Part) -> str:
    if isinstance(part, str):
        return repr(part)
    if isinstance(part, Turn):
        return part.index if part.plus == 0 else f"{part.index}{part.plus:+d}"
    ops = "".join(f".{op.name}({', '.join(map(repr, op.args))})" for op in part.ops)
    if isinstance(part, Arg):
        return str(part.path[0]) + "".join(f"[{key!r}]" for key in part.path[1:]) + ops
    of = "" if part.probability_of is None else f".probability({part.probability_of!r})"
    return f"{part.branch}[{part.name!r}]{of}{ops}"


def _data(data: Data) -> str:
    if isinstance(data, Literal):
        return repr(data.value)
    if isinstance(data, Words):
        return _template(data.parts)
    if isinstance(data, Number | Pick):
        return _part(data.part)
    if isinstance(data, Turn):
        return _part(data)
    if isinstance(data, Decoded):
        return f"{data.branch}.json({data.name!r})"
    if isinstance(data, ToolValue):
        return data.id
    if isinstance(data, Sequence):
        return _short("[" + ", ".join(_data(item) for item in data.items) + "]")
    assert isinstance(data, Mapping)
    return _short("{" + ", ".join(f"{key!r}: {_data(item)}" for key, item in data.items) + "}")


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _quoted(text: str) -> str:
    return html.escape(text, quote=True).replace("\\", "&#92;").replace("\n", " ")


def _left(row: Row) -> float:
    return row.depth * _INDENT_PX + (len(row.label) * _CHAR_PX + 8 if row.label else 0)


def _box_width(row: Row) -> float:
    return len(row.text) * _CHAR_PX + 12


def _box(index: int, row: Row) -> str:
    top = _PAD_PX + index * _ROW_PX
    left = _PAD_PX + _left(row)
    width = _box_width(row)
    parts = []
    if row.label:
        at = _PAD_PX + row.depth * _INDENT_PX
        parts.append(
            f'<text x="{at}" y="{top + 15}" fill="#92400e">{html.escape(row.label)}</text>'
        )
    parts.append(
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="20" rx="4" '
        f'fill="{_FILLS.get(row.kind, "#f3f4f6")}" stroke="#9ca3af"/>'
        f'<text x="{left + 6:.1f}" y="{top + 14}">{html.escape(row.text)}</text>'
    )
    if row.line:
        at_line = left + width + 6
        parts.append(f'<text x="{at_line:.1f}" y="{top + 14}" fill="#6b7280">:{row.line}</text>')
    return "".join(parts)
