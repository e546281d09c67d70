"""The syntax tree of a regular language, with smart constructors that keep it free of empty parts.

The constructors simplify as they build, so that no tree but `NEVER` itself denotes the empty
language (anchors apart: those are resolved in `positions`). `size` counts character positions after
unrolling.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from umbel.grammar.regex import charset
from umbel.grammar.regex.charset import CharSet


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    chars: CharSet
    size: int = field(default=1, init=False)


@dataclass(frozen=True, slots=True)
class Cat:
    """One part after the other; `Cat(())` is the empty text."""

    parts: tuple["Node", ...]
    size: int


@dataclass(frozen=True, slots=True)
class Alt:
    """One of the options; `Alt(())` is the empty language."""

    options: tuple["Node", ...]
    size: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Between `low` and `high` times; `high=None`: without bound."""

    node: "Node"
    low: int
    high: int | None
    size: int


class AnchorKind(Enum):
    START = "^"
    END = "$"


@dataclass(frozen=True, slots=True)
class Anchor:
    """Matches the empty text at the start or end of the enclosing `Scope` only."""

    kind: AnchorKind
    size: int = field(default=1, init=False)


@dataclass(frozen=True, slots=True)
class Scope:
    """The extent to which the anchors below refer: a whole pattern, also when it is a part of a
    text.
    """

    node: "Node"
    size: int


@dataclass(frozen=True, slots=True)
class Joined:
    """`item (separator item)*` with one copy of the item: what arrays of any length are made of."""

    item: "Node"
    separator: "Node"
    size: int


@dataclass(frozen=True, slots=True)
class Series:
    """Items in order, separators between those present; an item is (node, required).

    Written as a tree this would need a copy of all later items for every optional one.
    """

    items: tuple[tuple["Node", bool], ...]
    separator: "Node"
    size: int


@dataclass(frozen=True, slots=True)
class Graph:
    """A finite automaton whose edges (source, label, target) carry trees; state 0 is the start.

    No label may match the empty text, and every state reaches an accepting one.
    """

    edges: tuple[tuple[int, "Node", int], ...]
    accepting: frozenset[int]
    size: int


Node = Chars | Cat | Alt | Repeat | Anchor | Scope | Joined | Series | Graph

EPSILON = Cat((), 0)
NEVER = Alt((), 0)
ANY_CHAR = Chars(charset.ALL)


def is_never(node: Node) -> bool:
    return isinstance(node, Alt) and not node.options


def chars(members: CharSet) -> Node:
    return Chars(members) if members else NEVER


def literal(text: str) -> Node:
    return cat([Chars(charset.of(char)) for char in text])


def cat(parts: Iterable[Node]) -> Node:
    flat: list[Node] = []
    for part in parts:
        if is_never(part):
            return NEVER
        flat += part.parts if isinstance(part, Cat) else [part]
    if len(flat) == 1:
        return flat[0]
    return Cat(tuple(flat), sum(part.size for part in flat))


def alt(options: Iterable[Node]) -> Node:
    """The union; single characters are gathered into one set."""
    singles: list[CharSet] = []
    others: list[Node] = []
    for option in options:
        for member in option.options if isinstance(option, Alt) else (option,):
            if isinstance(member, Chars):
                singles.append(member.chars)
            else:
                others.append(member)
    merged: list[Node] = [Chars(charset.union(*singles))] if singles else []
    merged += others
    if len(merged) == 1:
        return merged[0]
    return Alt(tuple(merged), sum(option.size for option in merged))


def repeat(node: Node, low: int, high: int | None) -> Node:
    if is_never(node):
        return EPSILON if low == 0 else NEVER
    if high == 0 or node == EPSILON:
        return EPSILON
    if low == high == 1:
        return node
    if isinstance(node, Repeat) and node.low == 0 and node.high == 1:
        return repeat(node.node, 0, high)  # (x?){m,n} = x{0,n}: n copies instead of n squared edges
    if isinstance(node, Repeat) and node.low <= 1 and node.high is None and high is None:
        return repeat(node.node, node.low * low, None)
    copies = max(low, 1) if high is None else high
    return Repeat(node, low, high, node.size * copies)


def optional(node: Node) -> Node:
    return repeat(node, 0, 1)


def separated(item: Node, separator: Node, low: int, high: int | None) -> Node:
    """Between `low` and `high` items with separators between them."""
    if high == 0:
        return EPSILON
    if is_never(item):
        return EPSILON if low == 0 else NEVER
    if high is None and low <= 1:
        some: Node = Joined(item, separator, item.size + separator.size)
    else:
        more = repeat(cat([separator, item]), max(low - 1, 0), None if high is None else high - 1)
        some = cat([item, more])
    return some if low > 0 else optional(some)


def series(items: Sequence[tuple[Node, bool]], separator: Node) -> Node:
    kept = []
    for node, required in items:
        if not is_never(node):
            kept.append((node, required))
        elif required:
            return NEVER
    size = sum(node.size for node, _ in kept) + separator.size * max(len(kept) - 1, 0)
    return Series(tuple(kept), separator, size) if kept else EPSILON


def scope(node: Node) -> Node:
    return node if is_never(node) else Scope(node, node.size)


def graph(edges: Sequence[tuple[int, Node, int]], accepting: frozenset[int]) -> Node:
    """A `Graph` without its dead ends; NEVER when no accepting state can be reached."""
    backward: dict[int, list[int]] = {}
    for source, label, target in edges:
        if not is_never(label):
            backward.setdefault(target, []).append(source)
    alive, pending = set(accepting), list(accepting)
    while pending:
        for source in backward.get(pending.pop(), ()):
            if source not in alive:
                alive.add(source)
                pending.append(source)
    if 0 not in alive:
        return NEVER
    kept = tuple(e for e in edges if e[0] in alive and e[2] in alive and not is_never(e[1]))
    return Graph(kept, accepting, sum(label.size for _, label, _ in kept))
