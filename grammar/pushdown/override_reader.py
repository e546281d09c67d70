"""Reading tokens with a large language of which a few texts are banned or mean something else.

While the text so far is a prefix of a literal, the base automaton is where that prefix leads it, so
a state is a node of the literals' trie; afterwards it is a state of the base. Masks are the base's,
with the few tokens corrected that run along literals.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.dfa_reader import DfaReader
from umbel.grammar.pushdown.leaves import NO_TAG, OverrideLeaf
from umbel.grammar.pushdown.literal_reader import LiteralTrie
from umbel.grammar.pushdown.reading import DEAD, Exits, Reader, Reading, run_bytes, united
from umbel.grammar.pushdown.residual import Residual
from umbel.grammar.pushdown.rules import UNREACHABLE

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_MAX_KEPT = 20_000

# A literal that ends within tokens: its number, the tokens that end with it, and what may follow it
# inside longer ones.
Hit = tuple[int, tuple[int, ...], Residual | None]


class OverrideReader:
    """See `reading.Reader`. Trie node n is state 2n, state q of the base is 2q + 1."""

    start = 0
    greedy = False

    def __init__(
        self,
        leaf: OverrideLeaf,
        base: Reader,
        vocabulary: "Vocabulary",
        whole: "OverrideReader | None" = None,
    ) -> None:
        self._leaf = leaf
        self._vocabulary = vocabulary
        self._base = base
        self._chosen = (1 << len(leaf.literals)) - 1
        self._whole = whole
        self._alive: dict[int, bool] = {}
        self._costs: dict[tuple[int, int], int] = {}
        self._memo: dict[tuple[int, Residual], Reading] = {}
        if whole is None:
            self._trie = LiteralTrie(leaf.literals)
            # Per trie node: the state of base after the same text, DEAD if it allows none such.
            self._base_state: dict[int, int] = {0: base.start}
            self._hits: dict[tuple[int, Residual], list[Hit]] = {}
            lone = vocabulary.lone_bytes
            self.has_gaps = base.has_gaps or any(t.translate(None, lone) for t in self._trie.texts)
            self._name_tag = self._tag_of_names()
        else:
            self._trie, self._base_state, self._hits = whole._trie, whole._base_state, whole._hits
            self.has_gaps, self._name_tag = whole.has_gaps, whole._name_tag

    def selected(self, chosen: int) -> "OverrideReader":
        """With the literals whose bits are set; the others are not accepted."""
        found = OverrideReader(self._leaf, self._base, self._vocabulary, self)
        found._chosen = chosen
        return found

    def _tag_of(self, number: int) -> int:
        return self._trie.tags[number] if self._chosen >> number & 1 else NO_TAG

    def _tag_of_names(self) -> int:
        """The base's tag where a literal ends, if the literals are plain names; else NO_TAG.

        The inside of each literal stays in the base's one state there, which allows more bytes than
        there are literals: so only the very ends of literals differ from the base.
        """
        base, texts = self._base, self._trie.texts
        if self.has_gaps or self._trie.has_prefixes or not isinstance(base, DfaReader):
            return NO_TAG
        # Names are read behind their opening quotes, or with them.
        inside, first = base.start, b""
        if not base.loop_bytes(inside):
            first = texts[0][:1]
            inside = base.step(inside, first[0])
        last = texts[0][-1:]
        end = DEAD if inside == DEAD else base.step(inside, last[0])
        if end in (DEAD, inside) or not base.is_final(end):
            return NO_TAG
        loop = base.loop_bytes(inside)
        is_plain = len(base.moves(inside)) > len(texts) and all(
            len(text) > len(first)
            and text.startswith(first)
            and text.endswith(last)
            and not text[len(first) : -1].translate(None, loop)
            for text in texts
        )
        return base.tag(end) if is_plain else NO_TAG

    def _children(self, node: int) -> dict[int, int]:
        """The children of a node; their base states are known afterwards."""
        children = self._trie.children(node)
        at = self._base_state[node]
        for value, child in children.items():
            if child not in self._base_state:
                self._base_state[child] = DEAD if at == DEAD else self._base.step(at, value)
        return children

    def step(self, state: int, value: int) -> int:
        if state & 1:
            target = self._base.step(state >> 1, value)
            return DEAD if target == DEAD else 2 * target + 1
        node = state >> 1
        child = self._children(node).get(value)
        if child is not None:
            return 2 * child if self._can_end(child) else DEAD
        at = self._base_state[node]
        target = DEAD if at == DEAD else self._base.step(at, value)
        return DEAD if target == DEAD else 2 * target + 1

    def run(self, state: int, text: bytes) -> tuple[int, int]:
        if state & 1:
            state, size = self._base.run(state >> 1, text)
            return (DEAD if state == DEAD else 2 * state + 1), size
        if self._name_tag < 0:
            return run_bytes(self, state, text)
        # Where the text leaves the literals, it was read by the base all along.
        node = state >> 1
        found = self._trie.descendant(node, text)
        if found is None:
            at, size = self._base.run(self._base_state[node], text)
            return (DEAD if at == DEAD else 2 * at + 1), size
        target, size = found
        if target not in self._base_state:
            self._base_state[target] = self._base.run(self._base_state[node], text[:size])[0]
        return (2 * target if self._can_end(target) else DEAD), size

    def tag(self, state: int) -> int:
        return self._base.tag(state >> 1) if state & 1 else self._node_tag(state >> 1)

    def _node_tag(self, node: int) -> int:
        number = self._trie.ended(node)
        if number is not None:
            return self._tag_of(number)
        at = self._base_state[node]
        return NO_TAG if at == DEAD else self._base.tag(at)

    def _can_end(self, node: int) -> bool:
        """Whether some text goes through the node: a banned literal need not leave any."""
        if self._name_tag >= 0:
            number = self._trie.ended(node)
            return number is None or self._tag_of(number) >= 0
        found = self._alive.get(node)
        return self._search_end(node) if found is None else found

    def _search_end(self, node: int) -> bool:
        """Not by recursion: names may be long."""
        parents = {node: node}
        pending = [node]
        while pending:
            at = pending.pop()
            if self._alive.get(at) or self._has_end_at(at):
                self._alive[at] = True
                while at != node:
                    at = parents[at]
                    self._alive[at] = True
                return True
            if at not in self._alive:
                children = self._children(at).values()
                parents.update(dict.fromkeys(children, at))
                pending += children
        self._alive.update(dict.fromkeys(parents, False))
        return False

    def _has_end_at(self, node: int) -> bool:
        """Whether a text ends here, or leaves the literals here."""
        if self._node_tag(node) >= 0:
            return True
        children, at = self._children(node), self._base_state[node]
        return at != DEAD and any(value not in children for value in self._base.next_bytes(at))

    def is_final(self, state: int) -> bool:
        return next(iter(self.next_bytes(state)), None) is None

    def bound(self, state: int, tag: int) -> int:
        if state & 1:
            return self._base.bound(state >> 1, tag)
        bound, at = 0, self._base_state[state >> 1]
        if at != DEAD and tag in self._base.tags_from(at):
            bound = self._base.bound(at, tag)
        return bound + self._trie.longest_below(state >> 1)

    def next_bytes(self, state: int) -> Iterable[int]:
        if state & 1:
            return self._base.next_bytes(state >> 1)
        node = state >> 1
        children = self._children(node)
        at = self._base_state[node]
        inside = {value for value, child in children.items() if self._can_end(child)}
        if at == DEAD:
            return inside
        return inside.union(v for v in self._base.next_bytes(at) if v not in children)

    def tags_from(self, state: int) -> Collection[int]:
        if state & 1:
            return self._base.tags_from(state >> 1)
        numbers, _ = self._trie.members(state >> 1)
        tags = {tag for number in numbers if (tag := self._tag_of(number)) >= 0}
        at = self._base_state[state >> 1]
        return tags if at == DEAD else tags.union(self._base.tags_from(at))

    def is_live(self, state: int) -> bool:
        if state & 1:
            return self._base.is_live(state >> 1)
        if not self.has_gaps:
            return True
        return any(self.cost(state, tag) < UNREACHABLE for tag in self.tags_from(state))

    def cost(self, state: int, tag: int) -> int:
        if state & 1:
            return self._base.cost(state >> 1, tag)
        key = (state, tag)
        found = self._costs.get(key)
        if found is None:
            found = self._costs[key] = self._node_cost(state >> 1, tag)
        return found

    def _node_cost(self, node: int, tag: int) -> int:
        if self._node_tag(node) == tag:
            return 0
        _, depth = self._trie.members(node)
        texts = self._trie.texts
        literal = (
            self._vocabulary.fewest_tokens(texts[n][depth:])[0]
            for n in self._trie.numbers_of(tag, node)
            if self._chosen >> n & 1
        )
        best = min(literal, default=UNREACHABLE)
        lone = self._vocabulary.lone_bytes
        children = self._children(node)
        at = self._base_state[node]
        if at != DEAD and tag in self._base.tags_from(at):
            for value in self._base.next_bytes(at):
                if value not in children and value in lone:
                    best = min(best, 1 + self._base.cost(self._base.step(at, value), tag))
        if best >= UNREACHABLE:  # rare: further along the literals, then off them
            for value, child in children.items():
                if value in lone and self._can_end(child):
                    best = min(best, 1 + self.cost(2 * child, tag))
        return best

    def read(self, state: int, residual: Residual) -> Reading:
        if state & 1:
            return self._base.read(state >> 1, residual)
        key = (state, residual)
        found = self._memo.get(key)
        if found is None:
            found = self._read(state >> 1, residual)
            if len(self._memo) >= _MAX_KEPT:
                self._memo.clear()
            self._memo[key] = found
        return found

    def _read(self, node: int, residual: Residual) -> Reading:
        if self._name_tag < 0:
            return self._correct(node, residual)
        hits = self._hits.get((node, residual))
        if hits is None:
            hits = self._find_hits(node, residual)
        if not hits:
            return self._base.read(self._base_state[node], residual)
        whole = self._whole
        if whole is not None and all(self._chosen >> number & 1 for number, _, _ in hits):
            return whole.read(2 * node, residual)
        return self._with_names(node, residual, hits)

    def _find_hits(self, node: int, residual: Residual) -> "list[Hit]":
        """The literals whose last byte some tokens hold: what these are, and what may follow."""
        hits: list[Hit] = []
        numbers, depth = self._trie.members(node)
        ends, texts = residual.ends, self._trie.texts
        for number in numbers:
            text = texts[number][depth:]
            edge = ends[text] if text in ends else residual.end_of(text)
            if edge is not None:
                hits.append((number, *edge))
        if len(self._hits) >= _MAX_KEPT:
            self._hits.clear()
        self._hits[(node, residual)] = hits
        return hits

    def _with_names(self, node: int, residual: Residual, hits: "list[Hit]") -> Reading:
        """As `_correct`, where only the ends of literals differ."""
        base = self._base.read(self._base_state[node], residual)
        removed: list[int] = []
        gone: list[Residual] = []
        exits: dict[int, list[Residual]] = {}
        for number, ended, rest in hits:
            tag = self._tag_of(number)
            if tag < 0:
                removed += ended
            if rest is not None:
                gone.append(rest)
                if tag >= 0:
                    exits.setdefault(tag, []).append(rest)
        if not removed and not gone:
            return base
        lost = {self._name_tag: gone} if gone else {}
        return _merged(base, [], removed, lost, exits, residual)

    def _correct(self, node: int, residual: Residual) -> Reading:
        """The base's reading, with what it says along the literals replaced."""
        at = self._base_state[node]
        base = self._base.read(at, residual) if at != DEAD else Reading(None, (), ())
        added: list[int] = []
        removed: list[int] = []
        gone: dict[int, list[Residual]] = {}  # exits of base that are not ours
        exits: dict[int, list[Residual]] = {}
        for place, rest, ended in self._along(node, residual):
            at = self._base_state[place]
            is_alive = self._can_end(place) and self.is_live(2 * place)
            was_alive = at != DEAD and self._base.is_live(at)
            if ended and is_alive != was_alive:
                (added if is_alive else removed).extend(ended)
            tag = self._node_tag(place)
            old = -1 if at == DEAD else self._base.tag(at)
            if rest is not None and tag != old:
                if old >= 0:
                    gone.setdefault(old, []).append(rest)
                if tag >= 0:
                    exits.setdefault(tag, []).append(rest)
        return _merged(base, added, removed, gone, exits, residual)

    def _along(
        self, node: int, residual: Residual
    ) -> list[tuple[int, Residual | None, tuple[int, ...]]]:
        """The places where text and literals still agree: node, rest, the tokens that end there."""
        found: list[tuple[int, Residual | None, tuple[int, ...]]] = [(node, residual, ())]
        for place, rest, _ in found:
            if rest is None:
                continue
            for value, child in self._children(place).items():
                edge = rest.edge(value)
                if edge is not None:
                    found.append((child, edge[1], edge[0]))
        return found

    def ends(
        self, state: int, residual: Residual
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        at = state >> 1 if state & 1 else self._base_state[state >> 1]
        ids, states = np.zeros(0, np.int32), np.zeros(0, np.int64)
        if at != DEAD:
            ids, states = self._base.ends(at, residual)
            states = 2 * states + 1
        if state & 1:
            return ids, states
        along = self._along(state >> 1, residual)
        corrected = [token_id for _, _, ended in along for token_id in ended]
        kept = ~np.isin(ids, corrected)
        more = [
            (token_id, 2 * place)
            for place, _, ended in along
            for token_id in ended
            if self._can_end(place) and self.is_live(2 * place)
        ]
        extra = np.array(more, np.int64).reshape(-1, 2)
        return (
            np.concatenate([ids[kept], extra[:, 0].astype(np.int32)]),
            np.concatenate([states[kept], extra[:, 1]]),
        )


def _merged(
    base: Reading,
    added: list[int],
    removed: list[int],
    gone: dict[int, list[Residual]],
    exits: dict[int, list[Residual]],
    residual: Residual,
) -> Reading:
    ids = base.ids
    if base.row is None:
        ids = tuple(i for i in ids if i not in removed)
        removed = []
    space = residual.space
    at_once: Exits = ()
    for tag, rests in exits.items():
        if rests[0] is residual:  # the places along literals start with the present one
            at_once = ((tag, rests.pop(0)),)
    exits = {tag: rests for tag, rests in exits.items() if rests}
    for tag, rest in base.exits:
        lost = gone.get(tag)
        if rest is residual:
            if not lost or lost[0] is not residual:
                at_once = ((tag, rest),)
            continue
        lost = [other for other in lost or () if other is not residual]
        if lost:
            kept_nodes = np.ones(len(rest.nodes), bool)
            kept_nodes[np.searchsorted(rest.nodes, space.union(lost).nodes)] = False
            nodes = rest.nodes[kept_nodes]
            if len(nodes):
                exits.setdefault(tag, []).append(space.of_nodes(nodes))
        else:
            exits.setdefault(tag, []).append(rest)
    kept = at_once + united(exits)
    return Reading(base.row, ids + tuple(added), kept, (*base.removed, *removed))
