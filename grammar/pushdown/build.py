"""Constructors for fixed grammars: leaves, sequences, alternatives, repetition, references by name.

Equal parts are equal states, so a grammar built twice has equal stacks. Recursion goes through
`Reference`.
"""

from collections.abc import Iterable

from umbel.grammar.automaton import ByteDfa, minimize
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.leaves import Leaf, TokenLeaf, dfa_leaf, literal_leaf
from umbel.grammar.pushdown.rules import (
    UNREACHABLE,
    Expansion,
    Head,
    Measure,
    RuleState,
    Sequence,
    sequence_cost,
)
from umbel.grammar.regex.chardfa import determinize
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.regex.syntax import Node
from umbel.grammar.regex.utf8 import to_bytes


class LeafState(RuleState):
    """One leaf, whatever its tag, and the end."""

    __slots__ = ("_expansion",)

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self._expansion = Expansion((Head(leaf, _nothing),))

    def expand(self) -> Expansion:
        return self._expansion


class SequenceState(RuleState):
    """Parts one after the other."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence) -> None:
        super().__init__(parts)
        self.parts = parts

    def expand(self) -> Expansion:
        return Expansion(calls=(self.parts,))

    def cost(self, measure: Measure) -> int:
        return sequence_cost(self.parts, measure)


class AlternativeState(RuleState):
    """Any one of the options, which are sequences; `()` is the empty text."""

    __slots__ = ("options",)

    def __init__(self, options: tuple[Sequence, ...]) -> None:
        super().__init__(options)
        self.options = options

    def expand(self) -> Expansion:
        return Expansion(calls=self.options)

    def cost(self, measure: Measure) -> int:
        costs = [sequence_cost(option, measure) for option in self.options]
        return min(costs, default=UNREACHABLE)


class RepeatState(RuleState):
    """Between `low` and `high` times (None: without bound), with a separator between. The item is
    not empty.
    """

    __slots__ = ("_is_first", "high", "item", "low", "separator")

    def __init__(
        self,
        item: RuleState,
        low: int,
        high: int | None,
        separator: RuleState | None,
        *,
        is_first: bool,
    ) -> None:
        super().__init__((item, low, high, separator, is_first))
        self.item, self.low, self.high, self.separator = item, low, high, separator
        self._is_first = is_first

    def expand(self) -> Expansion:
        calls: list[Sequence] = [()] if self.low == 0 else []
        if self.high != 0:
            high = None if self.high is None else self.high - 1
            rest = RepeatState(
                self.item, max(self.low - 1, 0), high, self.separator, is_first=False
            )
            between = () if self.separator is None or self._is_first else (self.separator,)
            calls.append((*between, self.item, rest) if high != 0 else (*between, self.item))
        return Expansion(calls=tuple(calls))

    def cost(self, measure: Measure) -> int:
        if self.low == 0:
            return 0
        each = measure.state(self.item)
        between = 0 if self.separator is None else measure.state(self.separator)
        return self.low * (each + between) - (between if self._is_first else 0)


class Reference(RuleState):
    """A rule by name, defined once its body exists: the way rules call themselves."""

    __slots__ = ("body", "name")

    def __init__(self, name: str) -> None:
        super().__init__(object())
        self.name = name
        self.body: RuleState | None = None

    def define(self, body: RuleState) -> None:
        assert self.body is None, f"rule {self.name} is defined twice"
        self.body = body

    def expand(self) -> Expansion:
        assert self.body is not None, f"rule {self.name} has no definition"
        return Expansion(calls=((self.body,),))

    def cost(self, measure: Measure) -> int:
        assert self.body is not None, f"rule {self.name} has no definition"
        return measure.state(self.body)


EMPTY = SequenceState(())


def leaf(part: Leaf) -> RuleState:
    return LeafState(part)


def literal(text: bytes | str) -> RuleState:
    data = text.encode() if isinstance(text, str) else text
    return LeafState(literal_leaf(data)) if data else EMPTY


def regex(pattern: str, *, limits: Limits, greedy: bool = False) -> RuleState:
    """Raises what `parse_regex` and `determinize` raise; AssertionError for the empty language."""
    return LeafState(dfa_leaf(tree_dfa(parse_regex(pattern, limits=limits), limits), greedy=greedy))


def tree_dfa(tree: Node, limits: Limits) -> ByteDfa:
    """The minimal byte automaton of a syntax tree, which must not denote the empty language."""
    characters = determinize(tree, limits)
    assert not characters.is_empty, "an empty language has no automaton to read"
    return minimize(to_bytes(characters, limits))


def special_token(token_ids: Iterable[int]) -> RuleState:
    return LeafState(TokenLeaf(frozenset(token_ids)))


def seq(*parts: RuleState) -> RuleState:
    kept: list[RuleState] = []
    for part in parts:
        kept += part.parts if isinstance(part, SequenceState) else (part,)
    return kept[0] if len(kept) == 1 else SequenceState(tuple(kept))


def alt(*options: RuleState) -> RuleState:
    """An option that no text completes must not be given."""
    if len(options) == 1:
        return options[0]
    return AlternativeState(
        tuple(o.parts if isinstance(o, SequenceState) else (o,) for o in dict.fromkeys(options))
    )


def optional(part: RuleState) -> RuleState:
    return alt(part, EMPTY)


def repeat(
    item: RuleState, low: int = 0, high: int | None = None, *, separator: RuleState | None = None
) -> RuleState:
    """`item` must not match the empty text."""
    if high == 0:
        return EMPTY
    return RepeatState(item, low, high, separator, is_first=True)


def _nothing(tag: int) -> Sequence:
    return ()
