"""Reading tokens with an automaton whose items are counted: lengths of any size, without unrolling.

All counted leaves over one automaton share its readings: a token adds the same number of items
wherever it is read, so the tokens and exits are found once with the items that each starts, and
picked by the bounds. Bounds farther away than any token reaches make no difference, which is why a
string of 100,000 characters is as cheap as any.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.count_table import CountTable
from umbel.grammar.pushdown.dfa_reader import DfaReader
from umbel.grammar.pushdown.leaves import NO_TAG, CountedLeaf
from umbel.grammar.pushdown.reading import DEAD, Exits, Reading, reading_of, run_bytes, united
from umbel.grammar.pushdown.residual import Residual
from umbel.grammar.pushdown.rules import UNREACHABLE
from umbel.grammar.pushdown.sweep import StateArray, sweep

if TYPE_CHECKING:
    from umbel.grammar.pushdown.residual import ResidualSpace
    from umbel.grammar.vocabulary import Vocabulary

_WIDE_RESIDUAL = 1_000
_MAX_KEPT = 20_000
_NO_BOUND = 2**30
_LONG = 20  # bytes; the few longer tokens are looked at one by one
_MAX_REMOVED = 64  # of them that are taken from a row
# How sweeps pack (state, items): a token is shorter than 2**11 items, an automaton smaller than
# 2**20 states.
_STATE_BITS = 20
_STATE_MASK = 2**_STATE_BITS - 1


@dataclass(frozen=True, slots=True)
class _Found:
    """What one residual holds from one state: tokens and exits, with the items they start."""

    ids: npt.NDArray[np.int32]
    distinct: list[tuple[int, int]]  # (state, items) of all that occur
    inverse: npt.NDArray[np.intp]  # into `distinct`
    exits: tuple[tuple[int, int, Residual], ...]  # tag, items, rest
    most: int  # items that any token or exit starts


class CountedBase:
    """An automaton with counted steps, for all bounds. Kept per vocabulary, shared by the leaves
    over it.
    """

    def __init__(self, leaf: CountedLeaf, reader: DfaReader, vocabulary: "Vocabulary") -> None:
        dfa = leaf.base.dfa
        self.reader = reader
        self.vocabulary = vocabulary
        self.num_states = len(dfa.table)
        self._num_columns = dfa.table.shape[1]
        self._byte_class: list[int] = dfa.byte_class.tolist()
        self._counts_list: list[list[bool]] = leaf.counts.tolist()
        flat = np.where(dfa.table == dfa.dead, DEAD, dfa.table).reshape(-1)
        self._flat = flat.astype(np.int32)
        self._item_counts = leaf.counts.reshape(-1).astype(np.int16)
        self._counts_flat = leaf.counts.reshape(-1).astype(np.int32) << _STATE_BITS
        self._column_of = dfa.byte_class.astype(np.int32)
        self._leaf = leaf
        self._tables: dict[int | None, CountTable] = {}
        self._found: dict[tuple[int, Residual], _Found] = {}
        self.memo: dict[tuple[int, int, int, Residual], Reading] = {}
        self.table = self.table_for(None)
        self._spare = self._most_needed()
        self._long: dict[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]] = {}
        self._without: dict[tuple[int, tuple[int, ...]], Reading] = {}

    def table_for(self, tag: int | None) -> CountTable:
        found = self._tables.get(tag)
        if found is None:
            tags = self._leaf.base.tags
            goal = tags >= 0 if tag is None else tags == tag
            dfa = self._leaf.base.dfa
            found = CountTable(dfa, self._leaf.counts, goal, self.vocabulary)
            self._tables[tag] = found
        return found

    def starts_item(self, state: int, value: int) -> bool:
        return self._counts_list[state][self._byte_class[value]]

    def is_possible(self, state: int, need: int, room: int) -> bool:
        return self.table.first(state, need) <= room

    def read(self, state: int, need: int, room: int, residual: Residual) -> Reading:
        """`need` items at least and `room` at most are still to be started."""
        if need <= 0:
            unbounded = self._read_unbounded(state, room, residual)
            if unbounded is not None:
                return unbounded
        found = self.found(state, residual)
        table = self.table
        # Exact: see CountTable. Beyond these, all windows [need, room] of the same shape are alike.
        far = found.most + table.preperiod
        if need > far and room - need >= table.period - 1:
            room, need = min(room - need, found.most + far + table.period) + far, far
        room = min(room, need + found.most + far + table.period + found.most)
        key = (state, need, room, residual)
        reading = self.memo.get(key)
        if reading is None:
            reading = self._pick(found, need, room, residual)
            if len(self.memo) >= _MAX_KEPT:
                self.memo.clear()
            self.memo[key] = reading
        return reading

    def _read_unbounded(self, state: int, room: int, residual: Residual) -> Reading | None:
        """The automaton's own reading, where a token could only be too long. None: not so simple.

        Most steps are of this kind; their rows are shared by all bounds.
        """
        spare = self._spare
        if room < _LONG + spare:
            return None
        if room >= self.vocabulary.trie.max_token_len + spare:
            return self.reader.read(state, residual)
        if residual is not residual.space.root:
            return None
        ids, items, most_at_exit = self._long_tokens(state)
        if most_at_exit > room:
            return None
        reading = self.reader.read(state, residual)
        removed = tuple(ids[items > room].tolist())
        if not removed:
            return reading
        if len(removed) > _MAX_REMOVED or reading.row is None:
            return None
        key = (state, removed)
        found = self._without.get(key)
        if found is None:
            if len(self._without) >= _MAX_KEPT:
                self._without.clear()
            found = Reading(reading.row, reading.ids, reading.exits, removed)
            self._without[key] = found
        return found

    def _most_needed(self) -> int:
        """The items that any state may need to be completed; more than any bound if some cannot."""
        if self.reader.has_gaps:
            return _NO_BOUND * 2
        live = range(self.num_states - 1)
        return min(max((self.table.first(q, 0) for q in live), default=0), _NO_BOUND * 2)

    def _long_tokens(self, state: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], int]:
        """Of the tokens beyond `_LONG` bytes that the automaton reads: ids, the items that each
        takes until the text is complete, and the most items at an exit inside any of them.
        """
        known = self._long.get(state)
        if known is None:
            ids, texts, lengths = self.vocabulary.readings.long_tokens(_LONG)
            codes = np.full(len(ids), state, np.int32)
            tags, most_at_exit = self._leaf.base.tags, 0
            for at in range(texts.shape[1]):
                alive = np.flatnonzero((codes >= 0) & (lengths > at))
                if not len(alive):
                    break
                codes[alive] = self._advance(codes[alive], texts[alive, at])
                inside = alive[lengths[alive] > at + 1]
                exits = codes[inside][(codes[inside] >= 0)]
                exits = exits[tags[exits & _STATE_MASK] >= 0]
                most_at_exit = max(most_at_exit, int(exits.max(initial=0)) >> _STATE_BITS)
            read = codes >= 0
            ids, ends = ids[read], codes[read]
            firsts = [self.table.first(q, 0) for q in (ends & _STATE_MASK).tolist()]
            items = (ends >> _STATE_BITS) + np.array(firsts, np.int32).reshape(-1)
            known = self._long[state] = (ids, items, most_at_exit)
        return known

    def allowed(self, found: _Found, need: int, room: int) -> npt.NDArray[np.bool_]:
        """Which of the distinct (state, items) can be completed."""
        fits = [
            items <= room and self.is_possible(state, need - items, room - items)
            for state, items in found.distinct
        ]
        return np.array(fits, bool)

    def _pick(self, found: _Found, need: int, room: int, residual: Residual) -> Reading:
        fits = self.allowed(found, need, room)
        ids = found.ids if fits.all() else found.ids[fits[found.inverse]]
        exits: dict[int, list[Residual]] = {}
        at_once: Exits = ()
        for tag, items, rest in found.exits:
            if need <= items <= room:
                if rest is residual:
                    at_once = ((tag, rest),)
                else:
                    exits.setdefault(tag, []).append(rest)
        return reading_of(self.vocabulary, ids, at_once + united(exits))

    def found(self, state: int, residual: Residual) -> _Found:
        key = (state, residual)
        known = self._found.get(key)
        if known is None:
            if len(self._found) >= _MAX_KEPT:
                self._found.clear()
            known = self._found[key] = self._find(state, residual)
        return known

    def _find(self, state: int, residual: Residual) -> _Found:
        space, tags = residual.space, self._leaf.base.tags
        exits: list[tuple[int, int, Residual]] = []
        if tags[state] >= 0:
            exits.append((int(tags[state]), 0, residual))
        if residual is space.root:
            ids, dense = self._sweep_all(state, residual, exits)
        elif residual.num_below > _WIDE_RESIDUAL:
            nodes, codes = sweep(residual, state, self._advance)
            at = np.flatnonzero(tags[codes & _STATE_MASK] >= 0)
            states = codes[at] & _STATE_MASK
            self._add_exits(exits, space, nodes[at], states, codes[at] >> _STATE_BITS)
            ids, ends = space.ends_of(nodes, codes)
            dense = self._dense_codes(ends)
        else:
            ids, codes = self._walk(state, residual, exits)
            dense = self._dense_codes(codes)
        # Numbered by marking: sorting tens of thousands of codes would take ten times as long.
        is_used = np.zeros(int(dense.max(initial=0)) + 1, bool)
        is_used[dense] = True
        numbers = np.cumsum(is_used) - 1
        used = np.flatnonzero(is_used).tolist() if len(dense) else []
        pairs = [(code % self.num_states, code // self.num_states) for code in used]
        most = max([items for _, items in pairs] + [items for _, items, _ in exits], default=0)
        return _Found(ids, pairs, numbers[dense], tuple(exits), most)

    def _dense_codes(self, codes: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        dense: npt.NDArray[np.integer] = (codes >> _STATE_BITS) * self.num_states
        dense += codes & _STATE_MASK
        return dense

    def _sweep_all(
        self, state: int, root: Residual, exits: list[tuple[int, int, Residual]]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.integer]]:
        """All tokens: the ids that are read, and items * num_states + state after each."""
        space = root.space
        trie, table = space.trie, self.reader.dense_table(root)
        found, items = table.sweep_counted(state, self._item_counts)
        inner = space.inner_nodes
        states = found[inner] // table.num_columns
        tagged = np.flatnonzero(self._leaf.base.tags[states] >= 0)
        tagged = tagged[inner[tagged] > 0]  # the start is added by itself
        nodes = inner[tagged]
        self._add_exits(exits, space, nodes, states[tagged], items[nodes])
        at = found[trie.token_node]
        alive = np.flatnonzero(at != table.dead)
        ends = items[trie.token_node[alive]].astype(np.int64) * self.num_states
        ends += at[alive] // table.num_columns
        return trie.token_ids[alive], ends

    def _add_exits(
        self,
        exits: list[tuple[int, int, Residual]],
        space: "ResidualSpace",
        nodes: npt.NDArray[np.integer],
        states: npt.NDArray[np.integer],
        items: npt.NDArray[np.integer],
    ) -> None:
        num_tags = self._leaf.num_tags
        kinds = items.astype(np.int64) * num_tags + self._leaf.base.tags[states]
        for kind in set(kinds.tolist()):
            rest = space.below_all(nodes[kinds == kind])
            if rest is not None:
                exits.append((kind % num_tags, kind // num_tags, rest))

    def _advance(self, codes: StateArray, values: npt.NDArray[np.uint8]) -> StateArray:
        states = codes & _STATE_MASK
        at = states * self._num_columns + self._column_of[values]
        targets: StateArray = self._flat[at]
        is_stuck = targets < 0
        targets += codes - states
        targets += self._counts_flat[at]
        targets[is_stuck] = DEAD
        return targets

    def _walk(
        self, state: int, residual: Residual, exits: list[tuple[int, int, Residual]]
    ) -> tuple[npt.NDArray[np.int32], StateArray]:
        ids: list[int] = []
        codes: list[int] = []
        tags = self.reader.tags
        by_kind: dict[tuple[int, int], list[Residual]] = {}
        stack = [(state, 0, residual)]
        while stack:
            at, items, rest = stack.pop()
            targets = self.reader.moves(at)
            edges = rest.edges or rest.fill_edges()
            for value in targets if len(targets) < len(edges) else edges:
                target = targets.get(value)
                edge = rest.edge(value)
                if target is None or edge is None:
                    continue
                after = items + self.starts_item(at, value)
                ended, below = edge
                ids += ended
                codes += [target + (after << _STATE_BITS)] * len(ended)
                if below is not None:
                    if tags[target] >= 0:
                        by_kind.setdefault((tags[target], after), []).append(below)
                    stack.append((target, after, below))
        union = residual.space.union
        exits += [(tag, items, union(rests)) for (tag, items), rests in by_kind.items()]
        return np.array(ids, np.int32), np.array(codes, np.int32)


class CountedReader:
    """See `reading.Reader`. A state is a state of the automaton + num_states * items started so
    far.
    """

    start = 0
    greedy = False

    def __init__(self, leaf: CountedLeaf, base: CountedBase) -> None:
        self._base = base
        self._low = leaf.low
        self._high = _NO_BOUND if leaf.high is None else leaf.high
        self._is_open = leaf.high is None
        self.has_gaps = base.reader.has_gaps or not self._is_possible(0, 0)

    def _is_possible(self, state: int, items: int) -> bool:
        return self._base.is_possible(state, self._low - items, self._high - items)

    def _joined(self, state: int, items: int) -> int:
        if self._is_open and items > self._low:
            items = self._low  # more make no difference
        return state + self._base.num_states * items

    def step(self, state: int, value: int) -> int:
        items, at = divmod(state, self._base.num_states)
        target = self._base.reader.step(at, value)
        if target == DEAD:
            return DEAD
        items += self._base.starts_item(at, value)
        if items > self._high or not self._is_possible(target, items):
            return DEAD
        return self._joined(target, items)

    def run(self, state: int, text: bytes) -> tuple[int, int]:
        return run_bytes(self, state, text)

    def tag(self, state: int) -> int:
        items, at = divmod(state, self._base.num_states)
        return self._base.reader.tags[at] if self._low <= items <= self._high else NO_TAG

    def is_live(self, state: int) -> bool:
        items, at = divmod(state, self._base.num_states)
        return self._is_possible(at, items)

    def next_bytes(self, state: int) -> Iterable[int]:
        at = state % self._base.num_states
        return (v for v in self._base.reader.moves(at) if self.step(state, v) != DEAD)

    def is_final(self, state: int) -> bool:
        return next(iter(self.next_bytes(state)), None) is None

    def bound(self, state: int, tag: int) -> int:
        need = self._low - state // self._base.num_states
        return self._base.table_for(tag).bound(need)

    def tags_from(self, state: int) -> Collection[int]:
        return self._base.reader.tags_from(state % self._base.num_states)

    def cost(self, state: int, tag: int) -> int:
        items, at = divmod(state, self._base.num_states)
        if self.tag(state) == tag:
            return 0
        table = self._base.table_for(tag)
        return table.cost(at, self._low - items, self._high - items)

    def read(self, state: int, residual: Residual) -> Reading:
        items, at = divmod(state, self._base.num_states)
        return self._base.read(at, max(self._low - items, 0), self._high - items, residual)

    def ends(
        self, state: int, residual: Residual
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        items, at = divmod(state, self._base.num_states)
        found = self._base.found(at, residual)
        need, room = max(self._low - items, 0), self._high - items
        fits = self._base.allowed(found, need, room)[found.inverse]
        ends = [self._joined(s, items + i) for s, i in found.distinct]
        return found.ids[fits], np.array(ends, np.int64)[found.inverse][fits]


assert UNREACHABLE > _NO_BOUND
