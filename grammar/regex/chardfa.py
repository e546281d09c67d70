"""Deterministic automata over characters: from a tree, combined with each other, and back to a
tree.

The alphabet is a partition of all characters into classes that no set of the pattern tells apart,
so rows have a handful of columns instead of 1,114,112. Every live state reaches an accepting one.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.interrupt import check_interrupt
from umbel.grammar.limits import Limits
from umbel.grammar.regex import charset, syntax
from umbel.grammar.regex.charset import CharSet
from umbel.grammar.regex.positions import bits, build_positions
from umbel.grammar.regex.syntax import Node

DEAD = -1
_HASH_PRIME = 2**64 - 59


@dataclass(frozen=True, slots=True)
class Partition:
    """Character classes: code points from `starts[i]` up to the next start have class `ids[i]`, -1
    for none.
    """

    starts: tuple[int, ...]
    ids: tuple[int, ...]
    num_classes: int

    def class_of(self, code_point: int) -> int:
        return self.ids[bisect_right(self.starts, code_point) - 1]

    def members(self) -> list[CharSet]:
        """The characters of each class."""
        ranges: list[list[tuple[int, int]]] = [[] for _ in range(self.num_classes)]
        ends = (*self.starts[1:], charset.MAX_CODE_POINT + 1)
        for start, end, class_id in zip(self.starts, ends, self.ids, strict=True):
            if class_id >= 0:
                ranges[class_id].append((start, end - 1))
        return [charset.from_ranges(spans) for spans in ranges]


@dataclass(frozen=True, slots=True, eq=False)
class CharDfa:
    """table: [S, C] int32, the next state or DEAD; accepting: [S] bool; the start is state 0."""

    partition: Partition
    table: npt.NDArray[np.int32]
    accepting: npt.NDArray[np.bool_]

    @property
    def is_empty(self) -> bool:
        return not bool(self.accepting.any())

    def accepts(self, text: str) -> bool:
        state = 0
        for char in text:
            class_id = self.partition.class_of(ord(char))
            state = int(self.table[state, class_id]) if class_id >= 0 else DEAD
            if state == DEAD:
                return False
        return bool(self.accepting[state])


def partition_of(sets: Sequence[CharSet]) -> tuple[Partition, list[tuple[int, ...]]]:
    """The coarsest partition that respects the sets, and the classes of each set."""
    toggles: dict[int, int] = {0: 0}
    for number, chars in enumerate(sets):
        for low, high in chars:
            toggles[low] = toggles.get(low, 0) ^ (1 << number)
            toggles[high + 1] = toggles.get(high + 1, 0) ^ (1 << number)
    toggles.pop(charset.MAX_CODE_POINT + 1, None)
    class_ids: dict[int, int] = {}
    starts, ids, inside = [], [], 0
    for start in sorted(toggles):
        inside ^= toggles[start]
        starts.append(start)
        ids.append(class_ids.setdefault(inside, len(class_ids)) if inside else DEAD)
    classes_of: list[list[int]] = [[] for _ in sets]
    for membership, class_id in class_ids.items():
        for number in bits(membership):
            classes_of[number].append(class_id)
    partition = Partition(tuple(starts), tuple(ids), len(class_ids))
    return partition, [tuple(classes) for classes in classes_of]


def determinize(node: Node, limits: Limits) -> CharDfa:
    """Subset construction over the positions of a tree.

    Raises `UnsupportedGrammar` over `limits.max_states` states or `limits.max_work` steps: patterns
    such as `(a|b)*a(a|b){30}` need exponentially many states, which shows only while building them.
    """
    automaton = build_positions(node, limits)
    distinct: dict[CharSet, int] = {}
    set_of = [distinct.setdefault(chars, len(distinct)) for chars in automaton.chars]
    partition, classes_of = partition_of(list(distinct))
    classes = [classes_of[number] for number in set_of]
    follow, last = automaton.follow, automaton.root.last

    # A state is (a number for its hash, positions that may come next, whether the text may end
    # here). Python hashes integers modulo 2**61 - 1, so powers of two would share only 61 hashes.
    first = automaton.root.first
    start = (first % _HASH_PRIME, first, automaton.root.nullable)
    numbers: dict[tuple[int, int, bool], int] = {start: 0}
    states = [start]
    rows: list[dict[int, int]] = []
    step = 1 + len(classes) // 2000  # bit sets of many positions cost in proportion
    work_left = limits.max_work
    for _, positions, _ in states:
        check_interrupt()
        following: dict[int, int] = {}
        accepted: set[int] = set()
        for position in bits(positions):
            successors = follow[position]
            is_last = last >> position & 1
            for class_id in classes[position]:
                following[class_id] = following.get(class_id, 0) | successors
                if is_last:
                    accepted.add(class_id)
            work_left -= (len(classes[position]) + 1) * step
        row = {}
        for class_id, successors in following.items():
            target = (successors % _HASH_PRIME, successors, class_id in accepted)
            number = numbers.get(target)
            if number is None:
                number = numbers[target] = len(states)
                states.append(target)
            row[class_id] = number
        rows.append(row)
        if len(states) > limits.max_states or work_left < 0:
            raise too_many_states(limits)
    return _from_rows(partition, rows, [accepting for _, _, accepting in states])


def too_many_states(limits: Limits) -> UnsupportedGrammar:
    return UnsupportedGrammar(
        f"the grammar needs more than {limits.max_states} automaton states or too much work to "
        "build them; use smaller repetition counts, or fewer overlapping repeated alternatives",
        keyword="states",
    )


def _from_rows(
    partition: Partition, rows: list[dict[int, int]], accepting: Iterable[bool]
) -> CharDfa:
    table = np.full((len(rows), max(partition.num_classes, 1)), DEAD, np.int32)
    for state, row in enumerate(rows):
        if row:
            table[state, list(row)] = list(row.values())
    return CharDfa(partition, table, np.array(list(accepting), bool))


def intersection(left: CharDfa, right: CharDfa, limits: Limits) -> CharDfa:
    return _product(left, right, lambda a, b: a and b, limits)


def difference(left: CharDfa, right: CharDfa, limits: Limits) -> CharDfa:
    """The texts of `left` that are not in `right`."""
    return _product(left, right, lambda a, b: a and not b, limits, right_may_die=True)


def union(left: CharDfa, right: CharDfa, limits: Limits) -> CharDfa:
    """The texts of either."""
    return _product(left, right, lambda a, b: a or b, limits, left_may_die=True, right_may_die=True)


def complement(dfa: CharDfa, alphabet: Partition) -> CharDfa:
    """The texts that the automaton does not accept, over the characters of a partition that is not
    finer than "a character or none".
    """
    partition, pairs = _joint(alphabet, dfa.partition, needs_left=True)
    dead = len(dfa.table)
    table = np.full((dead + 1, len(pairs)), dead, np.int32)
    for class_id, (_, own) in enumerate(pairs):
        if own >= 0:
            column = dfa.table[:, own]
            table[:dead, class_id] = np.where(column == DEAD, dead, column)
    accepting = np.append(~dfa.accepting, True)
    if not (table[:dead] == dead).any():  # every text leads somewhere: no state is needed for that
        table, accepting = table[:dead], accepting[:dead]
    return _trimmed(CharDfa(partition, table, accepting))


def _product(
    left: CharDfa,
    right: CharDfa,
    accept: Callable[[bool, bool], bool],
    limits: Limits,
    *,
    left_may_die: bool = False,
    right_may_die: bool = False,
) -> CharDfa:
    partition, pairs = _joint(left.partition, right.partition, needs_left=not left_may_die)
    left_rows, right_rows = left.table.tolist(), right.table.tolist()
    left_accepts, right_accepts = left.accepting.tolist(), right.accepting.tolist()
    numbers = {(0, 0): 0}
    states = [(0, 0)]
    rows: list[dict[int, int]] = []
    for a, b in states:
        check_interrupt()
        row = {}
        for class_id, (class_a, class_b) in enumerate(pairs):
            next_a = left_rows[a][class_a] if class_a >= 0 and a != DEAD else DEAD
            next_b = right_rows[b][class_b] if class_b >= 0 and b != DEAD else DEAD
            if next_a == DEAD and (next_b == DEAD or not left_may_die):
                continue
            if next_b == DEAD and not right_may_die:
                continue
            number = numbers.setdefault((next_a, next_b), len(states))
            if number == len(states):
                states.append((next_a, next_b))
            row[class_id] = number
        rows.append(row)
        if len(states) > limits.max_states:
            raise too_many_states(limits)
    ends = [
        accept(a != DEAD and left_accepts[a], b != DEAD and right_accepts[b]) for a, b in states
    ]
    return _trimmed(_from_rows(partition, rows, ends))


def _joint(
    left: Partition, right: Partition, *, needs_left: bool
) -> tuple[Partition, list[tuple[int, int]]]:
    """The common partition, and the classes that each of its classes lies in, DEAD for none.
    needs_left: only of characters that the left one has.
    """
    pairs: dict[tuple[int, int], int] = {}
    starts = sorted({*left.starts, *right.starts})
    ids = []
    for start in starts:
        pair = left.class_of(start), right.class_of(start)
        is_out = pair[0] < 0 and (needs_left or pair[1] < 0)
        ids.append(DEAD if is_out else pairs.setdefault(pair, len(pairs)))
    return Partition(tuple(starts), tuple(ids), len(pairs)), list(pairs)


def _trimmed(dfa: CharDfa) -> CharDfa:
    """Without the states from which no accepting one is reachable."""
    sources, classes = np.nonzero(dfa.table != DEAD)
    backward: dict[int, list[int]] = {}
    for source, target in zip(sources.tolist(), dfa.table[sources, classes].tolist(), strict=True):
        backward.setdefault(target, []).append(source)
    pending = np.flatnonzero(dfa.accepting).tolist()
    alive = set(pending)
    while pending:
        for source in backward.get(pending.pop(), ()):
            if source not in alive:
                alive.add(source)
                pending.append(source)
    keep = np.array(sorted(alive | {0}), np.int64)
    renumber = np.full(len(dfa.table) + 1, DEAD, np.int32)  # the last entry is DEAD's own
    renumber[np.array(sorted(alive), np.int64)] = np.searchsorted(keep, sorted(alive))
    return CharDfa(dfa.partition, renumber[dfa.table[keep]], dfa.accepting[keep])


def to_tree(dfa: CharDfa) -> Node:
    """The automaton as a tree node, to be a part of a larger tree."""
    members = dfa.partition.members()
    edges = []
    for source, row in enumerate(dfa.table.tolist()):
        labels: dict[int, list[CharSet]] = {}
        for class_id, target in enumerate(row):
            if target != DEAD:
                labels.setdefault(target, []).append(members[class_id])
        for target, sets in labels.items():
            edges.append((source, syntax.chars(charset.union(*sets)), target))
    return syntax.graph(edges, frozenset(np.flatnonzero(dfa.accepting).tolist()))
