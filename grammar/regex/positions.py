"""Syntax tree to position automaton (Glushkov): one state per character position, no empty moves.

Sets of positions are Python integers used as bit sets: a union is one machine operation per 30
positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.interrupt import check_interrupt
from umbel.grammar.limits import Limits
from umbel.grammar.regex import charset
from umbel.grammar.regex.charset import CharSet
from umbel.grammar.regex.syntax import (
    Alt,
    Anchor,
    AnchorKind,
    Cat,
    Chars,
    Graph,
    Joined,
    Node,
    Repeat,
    Scope,
    Series,
)


@dataclass(slots=True)
class Fragment:
    """What a part of the tree looks like from outside: matches empty, positions it starts and ends
    with.
    """

    nullable: bool
    first: int
    last: int


@dataclass(slots=True)
class PositionAutomaton:
    """A word matches if its characters lie in the sets of a path from `first` along `follow` to
    `last`.
    """

    chars: list[CharSet]
    follow: list[int]
    root: Fragment


def bits(positions: int) -> Iterator[int]:
    """The members of a bit set, ascending."""
    while positions:
        low = positions & -positions
        yield low.bit_length() - 1
        positions ^= low


def build_positions(node: Node, limits: Limits) -> PositionAutomaton:
    """Raises `UnsupportedGrammar` for a tree of more than `limits.max_nodes` positions."""
    if node.size > limits.max_nodes:
        raise UnsupportedGrammar(
            f"the grammar unrolls to {node.size} character positions, more than the "
            f"{limits.max_nodes} allowed; use smaller repetition counts",
            keyword="repetition",
        )
    builder = _Builder(limits)
    root = builder.build(node)
    return PositionAutomaton(builder.chars, builder.follow, root)


class _Builder:
    def __init__(self, limits: Limits) -> None:
        self.chars: list[CharSet] = []
        self.follow: list[int] = []
        self.anchors: dict[
            int, AnchorKind
        ] = {}  # positions that stand for an anchor, of open scopes
        self.work_left = limits.max_work

    def build(self, node: Node) -> Fragment:
        match node:
            case Chars():
                return self._position(node.chars)
            case Cat():
                return self._sequence(self.build(part) for part in node.parts)
            case Alt():
                return _either([self.build(option) for option in node.options])
            case Repeat():
                return self._repeat(node)
            case Anchor():
                fragment = self._position(charset.EMPTY)
                self.anchors[len(self.chars) - 1] = node.kind
                return fragment
            case Scope():
                return self._scope(node)
            case Joined():
                item, separator = self.build(node.item), self.build(node.separator)
                self._connect(item, separator)
                self._connect(separator, item)
                if separator.nullable:
                    self._link(item.last, item.first)
                return item
            case Series():
                return self._series(node)
            case Graph():
                return self._graph(node)

    def _position(self, chars: CharSet) -> Fragment:
        bit = 1 << len(self.chars)
        self.chars.append(chars)
        self.follow.append(0)
        return Fragment(False, bit, bit)

    def _link(self, last: int, first: int) -> None:
        if not first:
            return
        check_interrupt()
        for position in bits(last):
            self.follow[position] |= first
            self.work_left -= 1
        if self.work_left < 0:
            raise UnsupportedGrammar(
                "the grammar has too many ways from one part to the next; nest fewer repetitions",
                keyword="repetition",
            )

    def _connect(self, left: Fragment, right: Fragment) -> None:
        self._link(left.last, right.first)

    def _sequence(self, parts: Iterator[Fragment]) -> Fragment:
        whole = Fragment(True, 0, 0)
        for part in parts:
            self._connect(whole, part)
            if whole.nullable:
                whole.first |= part.first
            whole.last = part.last | (whole.last if part.nullable else 0)
            whole.nullable = whole.nullable and part.nullable
        return whole

    def _repeat(self, node: Repeat) -> Fragment:
        if node.high is not None:
            return self._counted(node.node, node.low, node.high)
        whole = self._counted(node.node, max(node.low - 1, 0), max(node.low - 1, 0))
        loop = self.build(node.node)
        self._connect(loop, loop)
        loop.nullable = loop.nullable or node.low == 0
        return self._sequence(iter((whole, loop)))

    def _counted(self, node: Node, low: int, high: int) -> Fragment:
        """`high` copies in a row, of which those after `low` may be left out from the end."""
        whole = Fragment(True, 0, 0)
        ends = 0  # positions where the repetition may stop
        for count in range(1, high + 1):
            whole = self._sequence(iter((whole, self.build(node))))
            if count >= low:
                ends |= whole.last
        return Fragment(low == 0 or whole.nullable, whole.first, ends)

    def _series(self, node: Series) -> Fragment:
        """Each item may follow any earlier one as long as no required item lies between them."""
        nullable, first, last = True, 0, 0
        for item, required in node.items:
            with_separator = self.build(node.separator) if last else Fragment(True, 0, 0)
            part = self.build(item)
            self._link(last, with_separator.first if last else 0)
            self._connect(with_separator, part)
            if last and with_separator.nullable:
                self._link(last, part.first)
            if nullable:
                first |= part.first
            last = part.last if required else last | part.last
            nullable = nullable and not required
        return Fragment(nullable, first, last)

    def _graph(self, node: Graph) -> Fragment:
        labels = [(source, self.build(label), target) for source, label, target in node.edges]
        leaving: dict[int, int] = {}
        for source, part, _ in labels:
            leaving[source] = leaving.get(source, 0) | part.first
        last = 0
        for _, part, target in labels:
            self._link(part.last, leaving.get(target, 0))
            if target in node.accepting:
                last |= part.last
        return Fragment(0 in node.accepting, leaving.get(0, 0), last)

    def _scope(self, node: Scope) -> Fragment:
        """Resolve the anchors below: they are passed without a character, at the ends of the scope
        only.
        """
        start = len(self.chars)
        outer, self.anchors = self.anchors, {}
        whole = self.build(node.node)
        kinds, self.anchors = self.anchors, outer
        if not kinds:
            return whole
        starts = sum(1 << p for p, kind in kinds.items() if kind is AnchorKind.START)
        ends = sum(1 << p for p, kind in kinds.items() if kind is AnchorKind.END)
        either = starts | ends
        span = range(start, len(self.chars))
        at_start = self._closure(whole.first, starts)
        nullable = whole.nullable or bool(self._closure(whole.first, either) & either & whole.last)
        last = 0
        for position in span:
            bit = 1 << position
            before_end = self._closure(self.follow[position], ends) & ends
            if not bit & either and (bit & whole.last or before_end & whole.last):
                last |= bit
        for position in span:
            self.follow[position] &= ~either
        alive = self._alive(span, last)
        for position in span:
            self.follow[position] &= alive
        return Fragment(nullable, at_start & ~either & alive, last)

    def _closure(self, positions: int, passable: int) -> int:
        """The positions reached from these by passing anchors of the given set."""
        reached, pending = positions, positions & passable
        while pending:
            new = 0
            for position in bits(pending):
                new |= self.follow[position]
            pending = new & passable & ~reached
            reached |= new
        return reached

    def _alive(self, span: range, last: int) -> int:
        """The positions of the span that still reach an end; anchors may have cut off some."""
        backward: dict[int, list[int]] = {}
        for position in span:
            for successor in bits(self.follow[position]):
                backward.setdefault(successor, []).append(position)
                self.work_left -= 1
        alive, pending = last, list(bits(last))
        while pending:
            for source in backward.get(pending.pop(), ()):
                if not alive >> source & 1:
                    alive |= 1 << source
                    pending.append(source)
        return alive


def _either(options: list[Fragment]) -> Fragment:
    whole = Fragment(False, 0, 0)
    for option in options:
        whole.nullable |= option.nullable
        whole.first |= option.first
        whole.last |= option.last
    return whole
