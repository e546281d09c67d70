"""Terminals that may come next to leaves: the longest match wins, decided by what the parser can
use.

Terminals whose texts can be confused share one leaf; its tags say which terminals a text is. A
fixed text that is also a text of a pattern (a keyword among names) is always part of the pattern's
leaf, wanted or not: then all places of a grammar that take a name share one leaf, and all its
masks.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from umbel.grammar.automaton import ByteDfa, shared_columns
from umbel.grammar.cfg.first_bytes import live_bytes
from umbel.grammar.cfg.terminals import Terminal
from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.interrupt import check_interrupt
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.leaves import (
    NO_TAG,
    BoundedLeaf,
    DfaLeaf,
    Leaf,
    dfa_leaf,
    literal_leaf,
)

_MAX_PENDING_BYTES = 3
_MAX_PENDING = 48
_MAX_CLASS_BYTES = 4

Terminals = frozenset[int]


# For a tag: (number, bytes) of texts with it after which a longer match began but failed; the bytes
# belong to what follows. The number is a tag too.
Fallbacks = dict[int, list[tuple[int, bytes]]]


@dataclass(slots=True)
class Lexeme:
    """One leaf of a lexer. meanings[tag]: the terminals that a text with the tag is.

    open_bytes[tag]: for every state with the tag, a bit set of the bytes with which a longer match
    goes on. first: the bytes that texts begin with, as a bit set. Tags from len(meanings) on are
    `fallbacks`.
    """

    meanings: list[Terminals]
    open_bytes: list[set[int]]
    first: int
    dfa: ByteDfa
    tags: list[int]
    literals: list[tuple[bytes, int]] | None = None
    fallbacks: Fallbacks = field(default_factory=dict)
    base: DfaLeaf | None = None  # of the pattern that most texts are read as, see `DfaLeaf`
    bounded: BoundedLeaf | None = None  # the leaf itself, of a terminal with max_tokens
    _leaves: dict[tuple[bool, tuple[int, ...]], Leaf] = field(default_factory=dict)

    def leaf(self, *, greedy: bool, kept: tuple[int, ...] = ()) -> Leaf:
        """kept: the tags of fallbacks that lead somewhere; the others must not be in the leaf. They
        are numbered anew, behind the meanings.
        """
        if self.bounded is not None:
            return self.bounded
        greedy = greedy and self.literals is None
        found = self._leaves.get((greedy, kept))
        if found is None:
            if self.literals is not None:
                found = literal_leaf(self.literals)
            else:
                number = {tag: tag for tag in range(len(self.meanings))}
                number.update((tag, len(self.meanings) + at) for at, tag in enumerate(sorted(kept)))
                tags = [number.get(tag, NO_TAG) for tag in self.tags]
                base = self.base if greedy else None
                found = DfaLeaf(self.dfa, np.array([*tags, NO_TAG], np.int32), greedy, base)
            self._leaves[greedy, kept] = found
        return found


class Lexicon:
    """The lexers of one grammar, by the set of terminals that are possible."""

    def __init__(
        self, terminals: dict[int, Terminal], limits: Limits, *, scannerless: bool
    ) -> None:
        self.terminals = terminals
        self.limits = limits
        self.scannerless = scannerless
        self.first = {number: live_bytes(terminal.dfa, 0) for number, terminal in terminals.items()}
        self._all_first = 0
        for first in self.first.values():
            self._all_first |= first
        self._lexers: dict[Terminals, tuple[Lexeme, ...]] = {}
        self._lexemes: dict[Terminals, Lexeme] = {}
        self._absorbed: dict[int, Terminals] = {}

    def lexer(self, possible: Terminals) -> tuple[Lexeme, ...]:
        """The leaves for a set of terminals. Their languages share no first byte, unless
        scannerless; those with max_tokens stand apart.
        """
        found = self._lexers.get(possible)
        if found is None:
            if self.scannerless:
                found = self._apart(possible)
            else:
                found = self._grouped(possible)
            self._lexers[possible] = found
        return found

    def _apart(self, possible: Terminals) -> tuple[Lexeme, ...]:
        fixed = frozenset(n for n in possible if self.terminals[n].literal is not None)
        patterns = [self._lexeme(frozenset((number,))) for number in sorted(possible - fixed)]
        return (*patterns, self._literals(fixed)) if fixed else tuple(patterns)

    def _grouped(self, possible: Terminals) -> tuple[Lexeme, ...]:
        groups: list[tuple[set[int], int]] = []
        bounded = {n for n in possible if self.terminals[n].max_tokens is not None}
        for number in sorted(possible - bounded):
            members, first = {number}, self.first[number]
            rest = []
            for group in groups:
                if group[1] & first:
                    members |= group[0]
                    first |= group[1]
                else:
                    rest.append(group)
            groups = [*rest, (members, first)]
        single: list[int] = []
        lexemes = []
        for members, _ in groups:
            terminal = self.terminals[next(iter(members))]
            if len(members) == 1 and terminal.literal is not None:
                single += members
            else:
                extra = [self._inside(number) for number in members]
                lexemes.append(self._lexeme(frozenset(members).union(*extra)))
        if single:
            lexemes.append(self._literals(frozenset(single)))
        return (*lexemes, *map(self._bounded, sorted(bounded)))

    def _bounded(self, number: int) -> Lexeme:
        members = frozenset((number,))
        found = self._lexemes.get(members)
        if found is None:
            terminal = self.terminals[number]
            leaf = terminal.leaf()
            assert isinstance(leaf, BoundedLeaf)
            found = self._lexemes[members] = Lexeme(
                [members], [set()], self.first[number], terminal.dfa, [], bounded=leaf
            )
        return found

    def _inside(self, number: int) -> Terminals:
        """The fixed texts that are also texts of a pattern, and never end it early."""
        found = self._absorbed.get(number)
        if found is None:
            terminal = self.terminals[number]
            inside: list[int] = []
            if not terminal.is_fixed and not terminal.is_lazy:
                inside = [
                    other
                    for other, fixed in self.terminals.items()
                    if fixed.is_fixed
                    and fixed.max_tokens is None
                    and fixed.priority == terminal.priority
                    and not fixed.is_lazy
                    and is_part(fixed.dfa, terminal.dfa)
                ]
            found = self._absorbed[number] = frozenset(inside)
        return found

    def _literals(self, members: Terminals) -> Lexeme:
        found = self._lexemes.get(members)
        if found is None:
            texts = sorted((self.terminals[number].literal or b"", number) for number in members)
            first = 0
            for text, _ in texts:
                first |= 1 << text[0]
            found = self._lexemes[members] = Lexeme(
                [frozenset((number,)) for _, number in texts],
                [{0} for _ in texts],
                first,
                self.terminals[texts[0][1]].dfa,
                [],
                [(text, tag) for tag, (text, _) in enumerate(texts)],
            )
        return found

    def _lexeme(self, members: Terminals) -> Lexeme:
        found = self._lexemes.get(members)
        if found is None:
            dfa, meaning_of = joined(
                {number: self.terminals[number] for number in sorted(members)}, self.limits
            )
            can_begin = 0 if self.scannerless else self._all_first
            found = make_lexeme(dfa, meaning_of, can_begin)
            patterns = [n for n in sorted(members) if not self.terminals[n].is_fixed]
            if len(members) > 1 and patterns:
                widest = max(patterns, key=lambda number: self.first[number].bit_count())
                found.base = dfa_leaf(self.terminals[widest].dfa, greedy=True)
            self._lexemes[members] = found
        return found


def make_lexeme(dfa: ByteDfa, meaning_of: list[Terminals], can_begin: int) -> Lexeme:
    """can_begin: the bytes with which something may go on behind a text that was not the longest
    one.
    """
    meanings = list(dict.fromkeys(meaning for meaning in meaning_of if meaning))
    tag_of = {meaning: tag for tag, meaning in enumerate(meanings)}
    tags = [tag_of.get(meaning, NO_TAG) for meaning in meaning_of]
    open_bytes: list[set[int]] = [set() for _ in meanings]
    for state, tag in enumerate(tags):
        if tag != NO_TAG:
            open_bytes[tag].add(live_bytes(dfa, state))
    fallbacks: Fallbacks = {}
    if can_begin and any(tag == NO_TAG for tag in tags[1:]):
        dfa, tags, fallbacks = with_fallbacks(dfa, tags, len(meanings), can_begin)
    return Lexeme(meanings, open_bytes, live_bytes(dfa, 0), dfa, tags, None, fallbacks)


def joined(terminals: dict[int, Terminal], limits: Limits) -> tuple[ByteDfa, list[Terminals]]:
    """One automaton for several terminals, and for each of its states the terminals that end there.

    A lazy terminal ends at its first match, and a higher priority beats a longer match, as in Lark.
    """
    if len(terminals) == 1:
        ((number, terminal),) = terminals.items()
        if not terminal.is_lazy:
            own = frozenset((number,))
            return terminal.dfa, [
                own if ends else frozenset() for ends in terminal.dfa.accepting[:-1]
            ]
    numbers = list(terminals)
    stacked = np.stack([terminals[number].dfa.byte_class for number in numbers])
    columns, byte_class = shared_columns(stacked)
    rows = {
        number: terminals[number].dfa.table[:, columns[at]].tolist()
        for at, number in enumerate(numbers)
    }
    product = _Product(terminals, rows, columns.shape[1], limits)
    table, meanings = product.run()
    accepting = np.array([bool(meaning) for meaning in meanings] + [False])
    shared, class_of = shared_columns(table)
    return ByteDfa(class_of[byte_class], shared, accepting), meanings


_State = tuple[
    tuple[tuple[int, int], ...], Terminals
]  # (terminal, its state) of the live ones; meaning


def is_part(small: ByteDfa, large: ByteDfa) -> bool:
    """Whether every text of a small finite automaton is one of the large one."""
    seen = {(0, 0)}
    pending = [(0, 0)]
    while pending:
        left, right = pending.pop()
        if small.accepting[left] and not large.accepting[right]:
            return False
        for value in np.flatnonzero(small.table[left, small.byte_class] != small.dead).tolist():
            pair = (
                int(small.table[left, small.byte_class[value]]),
                int(large.table[right, large.byte_class[value]]),
            )
            if pair[1] == large.dead:
                return False
            if pair not in seen:
                seen.add(pair)
                pending.append(pair)
    return True


class _Product:
    def __init__(
        self,
        terminals: dict[int, Terminal],
        rows: dict[int, list[list[int]]],
        num_classes: int,
        limits: Limits,
    ) -> None:
        self.terminals = terminals
        self.rows = rows
        self.num_classes = num_classes
        self.limits = limits
        self.dead = {number: terminal.dfa.dead for number, terminal in terminals.items()}
        self.ends = {
            number: terminal.dfa.accepting.tolist() for number, terminal in terminals.items()
        }

    def run(self) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.int32]], list[Terminals]]:
        start: _State = (tuple((number, 0) for number in self.terminals), frozenset())
        numbers = {start: 0}
        order = [start]
        targets: list[list[int]] = []
        for members, _ in order:
            check_interrupt()
            reached: dict[tuple[int, ...], int] = {}
            row = []
            columns = zip(*(self.rows[number][state] for number, state in members), strict=True)
            for column in columns:  # the next states of all members, by byte class
                number = reached.get(column)
                if number is None:
                    number = reached[column] = self._number(members, column, numbers, order)
                row.append(number)
            targets.append(row or [-1] * self.num_classes)
            if len(order) > self.limits.max_states:
                raise UnsupportedGrammar(
                    f"the terminals {self._names()} together need more than "
                    f"{self.limits.max_states} automaton states; make them "
                    "simpler or give them different first characters",
                    keyword="states",
                )
        table = np.array([*targets, [-1] * self.num_classes], np.int32)
        table[table == -1] = len(order)
        return table, [meaning for _, meaning in order]

    def _number(
        self,
        members: tuple[tuple[int, int], ...],
        targets: tuple[int, ...],
        numbers: dict[_State, int],
        order: list[_State],
    ) -> int:
        state = self._next([number for number, _ in members], targets)
        if state is None:
            return -1
        found = numbers.setdefault(state, len(order))
        if found == len(order):
            order.append(state)
        return found

    def _next(self, numbers: list[int], targets: tuple[int, ...]) -> _State | None:
        pairs = zip(numbers, targets, strict=True)
        alive = [pair for pair in pairs if pair[1] != self.dead[pair[0]]]
        if not alive:
            return None
        ending = [number for number, target in alive if self.ends[number][target]]
        if ending:
            lazy = [number for number in ending if self.terminals[number].is_lazy]
            if lazy:
                return (), frozenset(lazy)
            if len(self.terminals) > 1:
                best = max(self.terminals[number].priority for number in ending)
                alive = [pair for pair in alive if self.terminals[pair[0]].priority >= best]
        return tuple(alive), frozenset(ending)

    def _names(self) -> str:
        return ", ".join(terminal.name for terminal in self.terminals.values())


def with_fallbacks(
    dfa: ByteDfa, tags: list[int], first_tag: int, can_begin: int
) -> tuple[ByteDfa, list[int], Fallbacks]:
    """Where a longer match has begun, states that remember what to fall back to: `1..2`, read as 1,
    .., 2.

    Only short beginnings are remembered, and such as the next terminal can begin with. Without one,
    text after which a longer match fails is not allowed at all, which narrows the language but
    never widens it.
    """
    dead = dfa.dead
    rows = dfa.table[:, dfa.byte_class].tolist()
    pending_tags: dict[tuple[int, bytes], int] = {}
    numbers: dict[tuple[int, int, bytes], int] = {}
    new_rows: list[list[int]] = []
    new_tags: list[int] = []

    def entered(state: int, tag: int, pending: bytes) -> int:
        key = state, tag, pending
        if key not in numbers:
            if len(numbers) >= _MAX_PENDING or len(pending) > _MAX_PENDING_BYTES:
                return state
            numbers[key] = dead + 1 + len(new_rows)
            row = list(rows[state])
            new_rows.append(row)
            new_tags.append(pending_tags.setdefault((tag, pending), first_tag + len(pending_tags)))
            _remember(row, tag, pending)
        return numbers[key]

    def _remember(row: list[int], tag: int, pending: bytes) -> None:
        members: dict[int, list[int]] = {}
        for value, target in enumerate(row):
            if target < dead and tags[target] == NO_TAG:
                members.setdefault(target, []).append(value)
        for target, values in members.items():
            if len(values) <= _MAX_CLASS_BYTES:
                for value in values:
                    read = pending + bytes((value,))
                    if can_begin >> read[0] & 1:
                        row[value] = entered(target, tag, read)

    for state, tag in enumerate(tags):
        if tag != NO_TAG:
            _remember(rows[state], tag, b"")
    if not pending_tags:
        return dfa, tags, {}
    fallbacks: Fallbacks = {}
    for (tag, pending), number in pending_tags.items():
        fallbacks.setdefault(tag, []).append((number, pending))
    size = dead + len(new_rows)
    # The new states take the dead state's number and the following ones; the dead state moves to
    # the end.
    table = np.array([*rows[:dead], *new_rows, [dead] * 256], np.int64)
    table = np.where(table == dead, size, np.where(table > dead, table - 1, table)).astype(np.int32)
    shared, byte_class = shared_columns(table)
    all_tags = [*tags, *new_tags]
    accepting = np.array([tag != NO_TAG for tag in all_tags] + [False])
    return ByteDfa(byte_class, shared, accepting), all_tags, fallbacks


@lru_cache(maxsize=2048)
def starting_at(leaf: DfaLeaf, state: int, without: int = 0) -> DfaLeaf | None:
    """What a leaf still reads from a state on, the empty rest left out; None when there is nothing.

    without: bytes with which that must not begin, as a bit set.
    """
    rows = leaf.dfa.table[:, leaf.dfa.byte_class]
    first = rows[state].copy()
    first[[value for value in range(256) if without >> value & 1]] = leaf.dfa.dead
    if (first == leaf.dfa.dead).all():
        return None
    table, byte_class = shared_columns((np.vstack([first, rows]) + 1).astype(np.int32))
    accepting = np.concatenate([[False], leaf.dfa.accepting])
    tags = np.concatenate([[NO_TAG], leaf.tags]).astype(np.int32)
    return DfaLeaf(ByteDfa(byte_class, table, accepting), tags, leaf.greedy)
