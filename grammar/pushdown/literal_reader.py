"""Reading tokens with a set of literals: a trie of its own, unfolded where the text goes, against
the tokens'.

Literals are sorted, so a trie node is a range of them with a common prefix; a set of 5,000 costs
its sorting.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.leaves import NO_TAG, LiteralLeaf
from umbel.grammar.pushdown.reading import DEAD, EMPTY_READING, Exits, Reading, reading_of, united
from umbel.grammar.pushdown.residual import Residual
from umbel.grammar.pushdown.rules import UNREACHABLE

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_MAX_KEPT = 20_000


class LiteralTrie:
    """The literals as a trie. Node 0 is the root; nodes are numbered as they are unfolded."""

    def __init__(self, literals: tuple[tuple[bytes, int], ...]) -> None:
        self.texts = [text for text, _ in literals]
        self.tags = [tag for _, tag in literals]
        self._ranges: list[tuple[int, int, int]] = [(0, len(literals), 0)]  # first, end, depth
        self._children: list[dict[int, int] | None] = [None]

    def tag(self, node: int) -> int:
        """The tag of the literal that ends at the node, or NO_TAG."""
        first, _, depth = self._ranges[node]
        return self.tags[first] if len(self.texts[first]) == depth else NO_TAG

    def ends_literal(self, node: int) -> bool:
        first, _, depth = self._ranges[node]
        return len(self.texts[first]) == depth

    def members(self, node: int) -> tuple[range, int]:
        """The numbers of the literals that go through the node, and its depth."""
        first, end, depth = self._ranges[node]
        return range(first, end), depth

    def children(self, node: int) -> dict[int, int]:
        found = self._children[node]
        if found is None:
            found = self._children[node] = self._unfold(node)
        return found

    def _unfold(self, node: int) -> dict[int, int]:
        first, end, depth = self._ranges[node]
        texts = self.texts
        prefix = texts[first][:depth]
        at = first + (len(texts[first]) == depth)
        found = {}
        while at < end:
            value = texts[at][depth]
            stop = end
            if value < 255 and texts[end - 1][depth] != value:
                stop = bisect_left(texts, prefix + bytes([value + 1]), at, end)
            # Appended before it is published: another thread may unfold the same node, to other numbers.
            self._ranges.append((at, stop, depth + 1))
            self._children.append(None)
            found[value] = len(self._ranges) - 1
            at = stop
        return found


class LiteralReader:
    """See `reading.Reader`. States are nodes of the literals' trie."""

    start = 0
    greedy = False

    def __init__(self, leaf: LiteralLeaf, vocabulary: "Vocabulary") -> None:
        self._vocabulary = vocabulary
        self._trie = LiteralTrie(leaf.literals)
        lone = vocabulary.lone_bytes
        self.has_gaps = any(text.translate(None, lone) for text in self._trie.texts)
        self._memo: dict[tuple[int, Residual], Reading] = {}
        self._live: dict[int, bool] = {}
        self._costs: dict[int, list[int]] = {}  # literal -> tokens from each offset to its end

    def tag(self, state: int) -> int:
        return self._trie.tag(state)

    def step(self, state: int, value: int) -> int:
        return self._trie.children(state).get(value, DEAD)

    def next_bytes(self, state: int) -> Iterable[int]:
        return self._trie.children(state)

    def is_final(self, state: int) -> bool:
        return not self._trie.children(state)

    def is_live(self, state: int) -> bool:
        if not self.has_gaps:
            return True
        found = self._live.get(state)
        if found is None:
            numbers, depth = self._trie.members(state)
            found = any(self._rest_costs(number)[depth] < UNREACHABLE for number in numbers)
            self._live[state] = found
        return found

    def tags_from(self, state: int) -> Collection[int]:
        numbers, _ = self._trie.members(state)
        return {self._trie.tags[number] for number in numbers}

    def cost(self, state: int, tag: int) -> int:
        numbers, depth = self._trie.members(state)
        tags = self._trie.tags
        costs = (self._rest_costs(n)[depth] for n in numbers if tags[n] == tag)
        return min(costs, default=UNREACHABLE)

    def bound(self, state: int, tag: int) -> int:
        numbers, depth = self._trie.members(state)
        tags, texts = self._trie.tags, self._trie.texts
        return max((len(texts[n]) - depth for n in numbers if tags[n] == tag), default=0)

    def _rest_costs(self, number: int) -> list[int]:
        found = self._costs.get(number)
        if found is None:
            text = self._trie.texts[number]
            found = self._costs[number] = self._vocabulary.fewest_tokens(text)
        return found

    def read(self, state: int, residual: Residual) -> Reading:
        key = (state, residual)
        found = self._memo.get(key)
        if found is None:
            ids, _, exits = self._walk(state, residual)
            tag = self._trie.tag(state)
            at_once: Exits = ((tag, residual),) if tag >= 0 else ()
            all_exits = at_once + united(exits)
            found = (
                reading_of(self._vocabulary, ids, all_exits) if ids or all_exits else EMPTY_READING
            )
            if len(self._memo) >= _MAX_KEPT:
                self._memo.clear()
            self._memo[key] = found
        return found

    def ends(
        self, state: int, residual: Residual
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        ids, states, _ = self._walk(state, residual)
        return np.array(ids, np.int32), np.array(states, np.int64)

    def _walk(
        self, state: int, residual: Residual
    ) -> tuple[list[int], list[int], dict[int, list[Residual]]]:
        trie = self._trie
        ids: list[int] = []
        states: list[int] = []
        exits: dict[int, list[Residual]] = {}
        stack = [(state, residual)]
        while stack:
            node, rest = stack.pop()
            children = trie.children(node)
            edges = rest.edges or rest.fill_edges()
            for value in children if len(children) < len(edges) else edges:
                target = children.get(value)
                edge = edges.get(value)
                if target is None or edge is None:
                    continue
                if type(edge) is not tuple:
                    edge = rest.edge(value)
                    assert edge is not None
                ended, below = edge
                if ended and (not self.has_gaps or self.is_live(target)):
                    ids += ended
                    states += [target] * len(ended)
                if below is not None:
                    tag = trie.tag(target)
                    if tag >= 0:
                        exits.setdefault(tag, []).append(below)
                    stack.append((target, below))
        return ids, states, exits
