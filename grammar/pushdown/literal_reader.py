"""Reading tokens with a set of literals: a trie of its own, unfolded where the text goes, against
the tokens'.

Literals are sorted, so a trie node is a range of them with a common prefix; a set of 5,000 costs
its sorting.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable
from itertools import count, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.leaves import NO_TAG, LiteralLeaf
from umbel.grammar.pushdown.reading import DEAD, Exits, Reading, reading_of, run_bytes, united
from umbel.grammar.pushdown.residual import Residual
from umbel.grammar.pushdown.rules import UNREACHABLE

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_MAX_KEPT = 20_000
_FEW = 600  # literals read one by one, each a look-up: quicker than a trie that is used once


class LiteralTrie:
    """The literals as a trie. Node 0 is the root; nodes are numbered as they are reached."""

    def __init__(self, literals: tuple[tuple[bytes, int], ...]) -> None:
        self.texts = [text for text, _ in literals]
        self.tags = [tag for _, tag in literals]
        self.has_prefixes = any(b.startswith(a) for a, b in pairwise(self.texts))
        self._fresh = count(1)
        self._numbers = {(0, len(literals), 0): 0}  # (first literal, end, depth) -> node
        self._ranges = {0: (0, len(literals), 0)}
        self._children: dict[int, dict[int, int]] = {}

    def tag(self, node: int) -> int:
        """The tag of the literal that ends at the node, or NO_TAG."""
        first, _, depth = self._ranges[node]
        return self.tags[first] if len(self.texts[first]) == depth else NO_TAG

    def ends_literal(self, node: int) -> bool:
        first, _, depth = self._ranges[node]
        return len(self.texts[first]) == depth

    def is_final(self, node: int) -> bool:
        """Whether no literal goes on."""
        first, end, depth = self._ranges[node]
        return end - first == 1 and len(self.texts[first]) == depth

    def members(self, node: int) -> tuple[range, int]:
        """The numbers of the literals that go through the node, and its depth."""
        first, end, depth = self._ranges[node]
        return range(first, end), depth

    def child(self, node: int, value: int) -> int | None:
        """One child, without unfolding the others."""
        known = self._children.get(node)
        if known is not None:
            return known.get(value)
        first, end, depth = self._ranges[node]
        texts = self.texts
        wanted = texts[first][:depth] + bytes([value])
        if end - first > 1:
            first = bisect_left(texts, wanted, first, end)
        if first == end or not texts[first].startswith(wanted):
            return None
        return self._node(first, self._stop(first, end, depth), depth + 1)

    def descendant(self, node: int, text: bytes) -> tuple[int, int] | None:
        """The node that a text leads to, or the literal that ends on the way, and the bytes read.

        Only where no literal is a prefix of another.
        """
        first, end, depth = self._ranges[node]
        texts = self.texts
        literal = texts[first]
        if end - first == 1:
            if literal.startswith(text, depth):
                return self._node(first, end, depth + len(text)), len(text)
            if text.startswith(literal[depth:]):
                return self._node(first, end, len(literal)), len(literal) - depth
            return None
        wanted = literal[:depth] + text
        at = bisect_left(texts, wanted, first, end)
        if at < end and texts[at].startswith(wanted):
            return self._node(at, self._end_of(wanted, at, end), len(wanted)), len(text)
        # No literal goes on after the text; the one before is the one that may end within it.
        if at > first and wanted.startswith(texts[at - 1]):
            size = len(texts[at - 1])
            return self._node(at - 1, at, size), size - depth
        return None

    def _end_of(self, prefix: bytes, first: int, end: int) -> int:
        """The end of the literals that share the prefix with the first one."""
        if self.texts[end - 1].startswith(prefix):
            return end
        return bisect_left(self.texts, prefix[:-1] + bytes([prefix[-1] + 1]), first, end)

    def children(self, node: int) -> dict[int, int]:
        found = self._children.get(node)
        if found is None:
            first, end, depth = self._ranges[node]
            at = first + (len(self.texts[first]) == depth)
            found = {}
            while at < end:
                stop = self._stop(at, end, depth)
                found[self.texts[at][depth]] = self._node(at, stop, depth + 1)
                at = stop
            self._children[node] = found
        return found

    def _stop(self, first: int, end: int, depth: int) -> int:
        """The end of the literals that share with the first one its byte at `depth`."""
        texts = self.texts
        value = texts[first][depth]
        if texts[end - 1][depth] == value:
            return end
        return bisect_left(texts, texts[first][:depth] + bytes([value + 1]), first, end)

    def _node(self, first: int, end: int, depth: int) -> int:
        key = (first, end, depth)
        found = self._numbers.get(key)
        if found is None:
            fresh = next(self._fresh)
            self._ranges[fresh] = key
            found = self._numbers.setdefault(key, fresh)
        return found


class LiteralReader:
    """See `reading.Reader`. States are nodes of the literals' trie."""

    start = 0
    greedy = False

    def __init__(self, leaf: LiteralLeaf, vocabulary: "Vocabulary") -> None:
        self._vocabulary = vocabulary
        self._trie = LiteralTrie(leaf.literals)
        self._has_own_tags = len(set(self._trie.tags)) == len(self._trie.tags)
        lone = vocabulary.lone_bytes
        self.has_gaps = any(text.translate(None, lone) for text in self._trie.texts)
        self._memo: dict[tuple[int, Residual], Reading] = {}
        self._live: dict[int, bool] = {}
        self._costs: dict[int, list[int]] = {}  # literal -> tokens from each offset to its end

    def tag(self, state: int) -> int:
        return self._trie.tag(state)

    def step(self, state: int, value: int) -> int:
        target = self._trie.child(state, value)
        return DEAD if target is None else target

    def run(self, state: int, text: bytes) -> tuple[int, int]:
        trie = self._trie
        if trie.has_prefixes:
            return run_bytes(self, state, text)
        found = trie.descendant(state, text)
        return (DEAD, 0) if found is None else found

    def next_bytes(self, state: int) -> Iterable[int]:
        return self._trie.children(state)

    def is_final(self, state: int) -> bool:
        return self._trie.is_final(state)

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

    def cheapest(self) -> int:
        """The least cost of any literal from the start, the short ones looked at first."""
        longest = max(self._vocabulary.trie.max_token_len, 1)
        best = UNREACHABLE
        for number in sorted(range(len(self._trie.texts)), key=lambda n: len(self._trie.texts[n])):
            if best <= -(-len(self._trie.texts[number]) // longest):
                break
            best = min(best, self._rest_costs(number)[0])
        return best

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
            numbers, _ = self._trie.members(state)
            is_few = len(numbers) <= _FEW and not self.has_gaps
            found = self._read_each(state, residual) if is_few else self._read_all(state, residual)
            if len(self._memo) >= _MAX_KEPT:
                self._memo.clear()
            self._memo[key] = found
        return found

    def _read_all(self, state: int, residual: Residual) -> Reading:
        ids, _, exits = self._walk(state, residual)
        tag = self._trie.tag(state)
        at_once: Exits = ((tag, residual),) if tag >= 0 else ()
        return reading_of(self._vocabulary, ids, at_once + united(exits))

    def _read_each(self, state: int, residual: Residual) -> Reading:
        """Put together from single literals, whose paths all leaves of the vocabulary share."""
        trie, paths = self._trie, residual.paths
        numbers, depth = trie.members(state)
        ids: dict[int, None] = {}
        at_once: Exits = ()
        found: list[tuple[int, Residual]] = []
        for number in numbers:
            text = trie.texts[number][depth:] if depth else trie.texts[number]
            if not text:
                at_once = ((trie.tags[number], residual),)
                continue
            ended, rest = paths.get(text) or residual.path(text)
            if ended:
                ids.update(ended)
            if rest is not None:
                found.append((trie.tags[number], rest))
        if len(found) > 1 and not self._has_own_tags:
            exits: dict[int, list[Residual]] = {}
            for tag, rest in found:
                exits.setdefault(tag, []).append(rest)
            return reading_of(self._vocabulary, list(ids), at_once + united(exits))
        return reading_of(self._vocabulary, list(ids), at_once + tuple(found))

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
