"""Text that is free until a trigger occurs in it: the automaton and the states around it.

A trigger is found as soon as its last byte is there (Aho and Corasick, 1975), wherever tokens begin
and end: a token may hold the end of the free text, the trigger and the beginning of what follows.
"""

from collections import deque
from collections.abc import Sequence as Items

import numpy as np

from umbel.grammar.automaton import ByteDfa, shared_columns
from umbel.grammar.pushdown.leaves import NO_TAG, DfaLeaf, TokenLeaf
from umbel.grammar.pushdown.rules import UNREACHABLE, Expansion, Head, Measure, RuleState, Sequence

# UTF-8: for each state the ranges of bytes that may come, and where they lead; 0: between two
# characters.
_TAIL = (0x80, 0xBF)
_UTF8: tuple[tuple[tuple[int, int, int], ...], ...] = (
    (
        (0x00, 0x7F, 0),
        (0xC2, 0xDF, 1),
        (0xE0, 0xE0, 4),
        (0xE1, 0xEC, 2),
        (0xED, 0xED, 5),
        (0xEE, 0xEF, 2),
        (0xF0, 0xF0, 6),
        (0xF1, 0xF3, 3),
        (0xF4, 0xF4, 7),
    ),
    ((*_TAIL, 0),),
    ((*_TAIL, 1),),
    ((*_TAIL, 2),),
    ((0xA0, 0xBF, 1),),
    ((0x80, 0x9F, 1),),
    ((0x90, 0xBF, 2),),
    ((0x80, 0x8F, 2),),
)
_END = 0  # the tag of text without a trigger; tag i + 1: trigger i has just occurred


class FreeText(RuleState):
    """Any text, empty too, in which no trigger occurs, then the end or a trigger and what belongs
    to it.

    after: for each trigger the states that follow it. token_after: the same for special tokens.
    may_end: whether the text may end without a trigger. forbidden: triggers that may not occur at
    all.
    """

    __slots__ = ("_expansion", "_leaf", "after", "may_end", "token_after")

    def __init__(
        self,
        triggers: Items[bytes],
        after: Items[Sequence],
        *,
        token_after: Items[tuple[TokenLeaf, Sequence]] = (),
        may_end: bool = True,
        forbidden: Items[bytes] = (),
    ) -> None:
        super().__init__((object(),))
        self.after = tuple(after)
        self.token_after = tuple(token_after)
        self.may_end = may_end
        ends = may_end or bool(token_after)
        self._leaf = text_leaf(triggers, forbidden, may_end=ends)
        self._expansion = self._expanded()

    def set_after(
        self, after: Items[Sequence], token_after: Items[tuple[TokenLeaf, Sequence]]
    ) -> None:
        """Define what follows later: the way free text comes back after a tag."""
        self.after = tuple(after)
        self.token_after = tuple(token_after)
        self._expansion = self._expanded()

    def _expanded(self) -> Expansion:
        behind = _BehindText(self)
        text = Head(self._leaf, lambda tag: (behind,) if tag == _END else self.after[tag - 1])
        return Expansion((text,))

    def expand(self) -> Expansion:
        return self._expansion

    def cost(self, measure: Measure) -> int:
        return 0 if self.may_end else super().cost(measure)


class _BehindText(RuleState):
    """Between free text and what is no text: the end, or a special token."""

    __slots__ = ("text",)

    def __init__(self, text: FreeText) -> None:
        super().__init__(text)
        self.text = text

    def expand(self) -> Expansion:
        heads = tuple(Head(token, _always(states)) for token, states in self.text.token_after)
        return Expansion(heads, ((),) if self.text.may_end else ())

    def cost(self, measure: Measure) -> int:
        if self.text.may_end:
            return 0
        return super().cost(measure) if self.text.token_after else UNREACHABLE


class _Always:
    __slots__ = ("states",)

    def __init__(self, states: Sequence) -> None:
        self.states = states

    def __call__(self, tag: int) -> Sequence:
        return self.states


def _always(states: Sequence) -> _Always:
    return _Always(states)


def text_leaf(triggers: Items[bytes], forbidden: Items[bytes] = (), *, may_end: bool) -> DfaLeaf:
    """UTF-8 text up to the first trigger, which is a part of it and decides the tag.

    Greedy: without a trigger only the end or a special token ends it. A trigger must not be empty.
    """
    nodes, failures, found = _automaton([*triggers, *forbidden])
    numbers = {(0, 0): 0}
    order = [(0, 0)]
    rows: list[list[int]] = []
    tags: list[int] = []
    for node, place in order:
        row = [-1] * 256
        rows.append(row)
        trigger = found[node]
        tags.append(_tag(trigger, place, may_end=may_end))
        if trigger is not None:
            continue
        for low, high, target_place in _UTF8[place]:
            for value in range(low, high + 1):
                target = _step(nodes, failures, node, value)
                reached = found[target]
                if reached is not None and reached >= len(triggers):
                    continue
                state = target, target_place
                number = numbers.setdefault(state, len(order))
                if number == len(order):
                    order.append(state)
                row[value] = number
    table = np.array([*rows, [-1] * 256], np.int32)
    table[table < 0] = len(rows)
    shared, byte_class = shared_columns(table)
    all_tags = np.array([*tags, NO_TAG], np.int32)
    return DfaLeaf(ByteDfa(byte_class, shared, all_tags != NO_TAG), all_tags, greedy=True)


def _tag(trigger: int | None, place: int, *, may_end: bool) -> int:
    if trigger is not None:
        return trigger + 1
    return _END if may_end and place == 0 else NO_TAG


def _automaton(
    words: list[bytes],
) -> tuple[list[dict[int, int]], list[int], list[int | None]]:
    """Trie, failure links, and per node the first word that ends there."""
    nodes: list[dict[int, int]] = [{}]
    found: list[int | None] = [None]
    for number, word in enumerate(words):
        assert word, "a trigger must not be empty"
        node = 0
        for value in word:
            if value not in nodes[node]:
                nodes[node][value] = len(nodes)
                nodes.append({})
                found.append(None)
            node = nodes[node][value]
        if found[node] is None:
            found[node] = number
    failures = [0] * len(nodes)
    pending = deque(nodes[0].values())
    while pending:
        node = pending.popleft()
        for value, target in nodes[node].items():
            failures[target] = _step(nodes, failures, failures[node], value)
            if found[target] is None:
                found[target] = found[failures[target]]
            pending.append(target)
    return nodes, failures, found


def _step(nodes: list[dict[int, int]], failures: list[int], node: int, value: int) -> int:
    while value not in nodes[node] and node:
        node = failures[node]
    return nodes[node].get(value, 0)
