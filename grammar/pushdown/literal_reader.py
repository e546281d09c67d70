"""Reading tokens with a set of literals: a trie of its own, unfolded where the text goes, against
the tokens'.

Literals are sorted, so a trie node is a range of them with a common prefix; a set of 5,000 costs
its sorting.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from itertools import count, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.leaves import NO_TAG, LiteralLeaf
from umbel.grammar.pushdown.reading import (
    DEAD,
    EMPTY_READING,
    Exits,
    Reading,
    reading_of,
    run_bytes,
    united,
)
from umbel.grammar.pushdown.residual import Residual
from umbel.grammar.pushdown.rules import UNREACHABLE

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_MAX_KEPT = 20_000
_FEW = 600  # literals read one by one, each a look-up: quicker than a trie that is used once

# A literal that a residual reads from: its number, the tokens that end inside it or with it (None:
# it is read already), and what may follow all of it.
Hit = tuple[int, "dict[int, None] | None", "Residual | None"]


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
        self._longest: dict[int, int] = {}
        self._of_tag: dict[int, list[int]] = {}

    def longest_below(self, node: int) -> int:
        """The most bytes from a node to the end of a literal."""
        found = self._longest.get(node)
        if found is None:
            first, end, depth = self._ranges[node]
            found = max((len(self.texts[n]) - depth for n in range(first, end)), default=0)
            self._longest[node] = found
        return found

    def numbers_of(self, tag: int, node: int) -> list[int]:
        """The literals with a tag that go through a node: there may be hundreds of tags."""
        if not self._of_tag:
            for number, own in enumerate(self.tags):
                self._of_tag.setdefault(own, []).append(number)
        numbers = self._of_tag.get(tag, [])
        first, end, _ = self._ranges[node]
        return numbers[bisect_left(numbers, first) : bisect_left(numbers, end)]

    def ended(self, node: int) -> int | None:
        """The number of the literal that ends at the node."""
        first, _, depth = self._ranges[node]
        return first if len(self.texts[first]) == depth else None

    def bits(self, node: int) -> int:
        """The literals that go through the node, bit n for the n-th."""
        first, end, _ = self._ranges[node]
        return (1 << end) - (1 << first)

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
    """See `reading.Reader`. States are nodes of the literals' trie.

    Also reads with some of the literals only: such a reader shares the trie, and all that it reads
    where the others make no difference, with the reader of the whole set.
    """

    start = 0
    greedy = False

    def __init__(
        self, leaf: LiteralLeaf, vocabulary: "Vocabulary", whole: "LiteralReader | None" = None
    ) -> None:
        self._vocabulary = vocabulary
        self._trie: LiteralTrie = LiteralTrie(leaf.literals) if whole is None else whole._trie
        self._chosen = (1 << len(leaf.literals)) - 1
        self._whole = whole
        if whole is None:
            lone = vocabulary.lone_bytes
            self.has_gaps = any(text.translate(None, lone) for text in self._trie.texts)
            self._has_own_tags = len(set(self._trie.tags)) == len(self._trie.tags)
            self._number_of = {tag: number for number, tag in enumerate(self._trie.tags)}
            self._hits: dict[tuple[int, Residual], list[Hit]] = {}
            self._costs: dict[int, list[int]] = {}  # literal -> tokens from each offset to its end
        else:
            self.has_gaps, self._has_own_tags = whole.has_gaps, whole._has_own_tags
            self._number_of = whole._number_of
            self._hits, self._costs = whole._hits, whole._costs
        self._leaf = leaf
        self._memo: dict[tuple[int, Residual], Reading] = {}
        self._live: dict[int, bool] = {}

    def selected(self, chosen: int) -> "LiteralReader":
        """With the literals whose bits are set."""
        found = LiteralReader(self._leaf, self._vocabulary, self)
        found._chosen = chosen
        return found

    def _members(self, node: int) -> tuple[Sequence[int], int]:
        """The numbers of the chosen literals that go through the node, and its depth."""
        numbers, depth = self._trie.members(node)
        if self._whole is None:
            return numbers, depth
        chosen = self._chosen
        return [number for number in numbers if chosen >> number & 1], depth

    def _has_any(self, node: int) -> bool:
        return self._whole is None or self._chosen & self._trie.bits(node) != 0

    def _has_all(self, node: int) -> bool:
        bits = self._trie.bits(node)
        return self._chosen & bits == bits

    def tag(self, state: int) -> int:
        number = self._trie.ended(state)
        if number is None or not self._chosen >> number & 1:
            return NO_TAG
        return self._trie.tags[number]

    def step(self, state: int, value: int) -> int:
        target = self._trie.child(state, value)
        return DEAD if target is None or not self._has_any(target) else target

    def run(self, state: int, text: bytes) -> tuple[int, int]:
        trie = self._trie
        if trie.has_prefixes:
            return run_bytes(self, state, text)
        found = trie.descendant(state, text)
        return (DEAD, 0) if found is None or not self._has_any(found[0]) else found

    def next_bytes(self, state: int) -> Iterable[int]:
        children = self._trie.children(state)
        if self._whole is None:
            return children
        return [value for value, child in children.items() if self._has_any(child)]

    def is_final(self, state: int) -> bool:
        return not self.next_bytes(state)

    def is_live(self, state: int) -> bool:
        if not self.has_gaps:
            return True
        found = self._live.get(state)
        if found is None:
            numbers, depth = self._members(state)
            found = any(self._rest_costs(number)[depth] < UNREACHABLE for number in numbers)
            self._live[state] = found
        return found

    def tags_from(self, state: int) -> Collection[int]:
        numbers, _ = self._members(state)
        return {self._trie.tags[number] for number in numbers}

    def cost(self, state: int, tag: int) -> int:
        if self._has_own_tags:
            return self._cost_of_one(state, self._number_of.get(tag, -1))
        numbers, depth = self._members(state)
        tags = self._trie.tags
        costs = (self._rest_costs(n)[depth] for n in numbers if tags[n] == tag)
        return min(costs, default=UNREACHABLE)

    def _cost_of_one(self, state: int, number: int) -> int:
        members, depth = self._trie.members(state)
        if number < 0 or number not in members or not self._chosen >> number & 1:
            return UNREACHABLE
        return self._rest_costs(number)[depth]

    def cheapest(self) -> int:
        """The least cost of any literal from the start, the short ones looked at first."""
        longest = max(self._vocabulary.trie.max_token_len, 1)
        best = UNREACHABLE
        numbers, _ = self._members(0)
        for number in sorted(numbers, key=lambda n: len(self._trie.texts[n])):
            if best <= -(-len(self._trie.texts[number]) // longest):
                break
            best = min(best, self._rest_costs(number)[0])
        return best

    def bound(self, state: int, tag: int) -> int:
        _, depth = self._trie.members(state)
        texts = self._trie.texts
        numbers = self._trie.numbers_of(tag, state)
        return max((len(texts[n]) - depth for n in numbers if self._chosen >> n & 1), default=0)

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
            found = self._read(state, residual)
            if len(self._memo) >= _MAX_KEPT:
                self._memo.clear()
            self._memo[key] = found
        return found

    def _read(self, state: int, residual: Residual) -> Reading:
        if self._whole is not None and self._has_all(state):
            return self._whole.read(state, residual)
        numbers, _ = self._trie.members(state)
        if len(numbers) > _FEW or self.has_gaps:
            return self._read_all(state, residual)
        hits = self._hits.get((state, residual))
        if hits is None:
            hits = self._find_hits(state, residual)
        if self._whole is not None:
            chosen = self._chosen
            found = [hit for hit in hits if chosen >> hit[0] & 1]
            if len(found) == len(hits):
                return self._whole.read(state, residual)
            hits = found
        return self._of_hits(hits, residual)

    def _read_all(self, state: int, residual: Residual) -> Reading:
        ids, _, exits = self._walk(state, residual)
        tag = self.tag(state)
        at_once: Exits = ((tag, residual),) if tag >= 0 else ()
        return reading_of(self._vocabulary, ids, at_once + united(exits))

    def _find_hits(self, state: int, residual: Residual) -> "list[Hit]":
        """What single literals make of a residual: paths that all leaves of the vocabulary share.
        The one that ends here comes first.
        """
        texts, paths = self._trie.texts, residual.paths
        numbers, depth = self._trie.members(state)
        hits: list[Hit] = []
        for number in numbers:
            text = texts[number][depth:] if depth else texts[number]
            if not text:
                hits.append((number, None, residual))
                continue
            ended, rest = paths.get(text) or residual.path(text)
            if ended or rest is not None:
                hits.append((number, ended, rest))
        if len(self._hits) >= _MAX_KEPT:
            self._hits.clear()
        self._hits[(state, residual)] = hits
        return hits

    def _of_hits(self, hits: "list[Hit]", residual: Residual) -> Reading:
        if not hits:
            return EMPTY_READING
        tags = self._trie.tags
        at_once: Exits = ()
        if hits[0][1] is None:
            at_once = ((tags[hits[0][0]], residual),)
            hits = hits[1:]
        ids: dict[int, None] = {}
        for _, ended, _ in hits:
            if ended:
                ids.update(ended)
        found = [(tags[number], rest) for number, _, rest in hits if rest is not None]
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
                if target is None or edge is None or not self._has_any(target):
                    continue
                if type(edge) is not tuple:
                    edge = rest.edge(value)
                    assert edge is not None
                ended, below = edge
                if ended and (not self.has_gaps or self.is_live(target)):
                    ids += ended
                    states += [target] * len(ended)
                if below is not None:
                    tag = self.tag(target)
                    if tag >= 0:
                        exits.setdefault(tag, []).append(below)
                    stack.append((target, below))
        return ids, states, exits
