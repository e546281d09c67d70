"""Atoms of objects made ready for reading: their names, what each may be followed by, and whether
an object can still be completed.

Declared properties come in the order of declaration, or in any order if so chosen; undeclared ones
may come anywhere between them. No name comes twice, and none that would leave the object
impossible to complete.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.leaves import NO_TAG, Leaf
from umbel.grammar.pushdown.rules import (
    Expansion,
    RuleState,
    Sequence,
)
from umbel.grammar.regex import languages
from umbel.grammar.regex.chardfa import CharDfa
from umbel.grammar.schema.names import NameLeaves
from umbel.grammar.values.fields import Fields
from umbel.grammar.values.literals import spell_text
from umbel.grammar.values.objects import ObjectWays, closure
from umbel.grammar.values.shapes import ObjectAtom
from umbel.grammar.values.terms import Term

_MAX_UNDECLARED = 64  # names that must come and are declared nowhere: found one after the other
_MAX_MET = 10  # obligations that one value may meet: every subset is a way of its own

if TYPE_CHECKING:
    from umbel.grammar.schema.lowering import Lowering


class Progress(NamedTuple):
    """How far an object is. at: the next declared position, or in any order the positions that
    have come, as bits.

    extras: undeclared names used, as spelled. size: how many properties, as far as it matters.
    pending: obligations of `ObjectAtom.some` not met. needed: names that dependencies ask for;
    present: names that have come, of those that dependencies speak of.
    """

    at: int
    extras: frozenset[bytes] = frozenset()
    size: int = 0
    pending: tuple[int, ...] = ()
    needed: frozenset[str] = frozenset()
    present: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """A kind of name. some: for each obligation, what a value must lie in to meet it."""

    term: Term
    some: tuple[Term, ...]


class ObjectPlan:
    """One atom, ready to be read. Declared are also names that are only required or depended on."""

    def __init__(self, atom: ObjectAtom, lowering: "Lowering") -> None:
        self.atom = atom
        self.lowering = lowering
        self._has = lowering.reader.emptiness.has_member
        self._counts = atom.high is not None or atom.low > len(atom.required)
        undeclared = atom.low - len({*atom.fields.named, *atom.required})
        if undeclared > _MAX_UNDECLARED:
            raise UnsupportedGrammar(
                f"minProperties asks for {undeclared} names that are not declared, more than the "
                f"{_MAX_UNDECLARED} supported",
                keyword="minProperties",
            )
        self.is_simple = not (atom.some or self._counts or atom.implies)
        self.any_order = lowering.any_order
        self._is_prepared = False

    def prepare(self) -> None:
        """What only texts need; most objects of a large schema are never met."""
        if self._is_prepared:
            return
        atom, lowering = self.atom, self.lowering
        fields = self._refined()
        dependent = [name for left, right in atom.implies for name in (left, *right)]
        declared = list(dict.fromkeys((*fields.named, *atom.required, *dependent)))
        terms = [fields.get(name) for name in declared]
        possible = [index for index, term in enumerate(terms) if self._has(term)]
        self.names = [declared[index] for index in possible]
        self.position = {name: index for index, name in enumerate(self.names)}
        self.slots = [self._slot(terms[index], declared[index]) for index in possible]
        required = set(atom.required)
        self.required = [name in required for name in self.names]
        self._next_required = self._required_from()
        self._dependent = frozenset(dependent)
        self.kinds = list(self._open_kinds(fields))
        self.spelled = [spell_text(name) for name in self.names]
        self._impossible = [spell_text(name) for name in declared if name not in self.position]
        self.leaves = NameLeaves(self.spelled, self._impossible)
        flags = zip(self.leaves.bits, self.required, strict=True)
        self._required_bits = sum(bit for bit, flag in flags if flag)
        self.ways = ObjectWays(atom, lowering.algebra, self._has)
        self._extra_leaves: dict[frozenset[bytes], list[Leaf]] = {}
        # Whether undeclared names may be any, and one like another.
        self.is_open = len(self.kinds) == 1 and self.kinds[0][0] is None
        self._is_prepared = True

    def _refined(self) -> Fields:
        """The fields, divided so finely that each obligation asks one thing of every kind of
        name.
        """
        fields = self.atom.fields
        for some in self.atom.some:
            fields = self.lowering.algebra.fields.divided(fields, some)
        return fields

    def _slot(self, term: Term, name: str) -> Slot:
        return Slot(term, tuple(some.get(name) for some in self.atom.some))

    def _open_slot(self, term: Term, example: str) -> Slot:
        """For all undeclared names of a kind, of which the example is one (it may also be
        declared).
        """
        return Slot(term, tuple(some.undeclared(example) for some in self.atom.some))

    def _open_kinds(self, fields: Fields) -> Iterator[tuple[CharDfa | None, Slot]]:
        """Undeclared names: (language, slot); None for all names."""
        limits = self.lowering.reader.limits
        rest: CharDfa | None = None
        for language, term in fields.classes:
            if self._has(term):
                example = languages.some_texts(language, 1)[0] if self.atom.some else ""
                yield language, self._open_slot(term, example)
            rest = languages.without(rest or languages.ANY_TEXT, language, limits)
        if self._has(fields.default) and not (rest is not None and rest.is_empty):
            example = "" if rest is None or not self.atom.some else languages.some_texts(rest, 1)[0]
            yield rest, self._open_slot(fields.default, example)

    def _required_from(self) -> list[int]:
        """For each position the first required one from it on; the number of names if there is
        none.
        """
        found = [len(self.names)] * (len(self.names) + 1)
        for index in range(len(self.names) - 1, -1, -1):
            found[index] = index if self.required[index] else found[index + 1]
        return found

    def children(self) -> Iterator[Term]:
        """Every term that a property can have."""
        fields = self.atom.fields
        if not self.atom.some:
            yield from filter(self._has, fields.named.values())
            yield from (term for _, term in fields.classes if self._has(term))
            if self._has(fields.default):
                yield fields.default
            return
        self.prepare()
        everything = tuple(range(len(self.atom.some)))
        for slot in (*self.slots, *(slot for _, slot in self.kinds)):
            yield from (term for term, _ in self.options(slot, everything))

    def first(self) -> Progress:
        """Nothing has come yet."""
        return Progress(0, pending=tuple(range(len(self.atom.some))))

    def options(self, slot: Slot, pending: tuple[int, ...]) -> list[tuple[Term, tuple[int, ...]]]:
        """What the value of a property can be, and the obligations that stay pending after it."""
        both, anything = self.lowering.algebra.terms.both, self.lowering.algebra.terms.any
        if not pending:
            return [(slot.term, ())]
        free = [index for index in pending if slot.some[index] is not anything]
        possible = [index for index in free if self._has(both(slot.term, slot.some[index]))]
        if len(possible) > _MAX_MET:
            raise UnsupportedGrammar(
                f"one property can meet {len(possible)} conditions of the form 'some property is "
                f"...', more than the {_MAX_MET} supported",
                keyword="not",
            )
        found = []
        for size in range(len(possible) + 1):
            for met in combinations(possible, size):
                term = slot.term
                for index in met:
                    term = both(term, slot.some[index])
                if size == 0 or self._has(term):
                    found.append((term, tuple(i for i in free if i not in met)))
        return found

    def is_gone(self, progress: Progress, name: str) -> bool:
        index = self.position.get(name)
        return index is None or self._is_past(progress.at, index)

    def _is_past(self, at: int, index: int) -> bool:
        return at & self.leaves.bits[index] != 0 if self.any_order else index < at

    def missing(self, progress: Progress) -> tuple[str, ...]:
        """Required names that have not come; in order of declaration, then those that dependencies
        ask for.
        """
        at = progress.at
        names = [
            name
            for index, name in enumerate(self.names)
            if self.required[index] and not self._is_past(at, index)
        ]
        names += sorted(progress.needed - set(names))
        return tuple(names)

    def may_end(self, progress: Progress) -> bool:
        at = progress.at
        if progress.pending or progress.needed or progress.size < self.low:
            return False
        if self.any_order:
            return not self._required_bits & ~at
        return self._next_required[at] == len(self.names)

    @property
    def low(self) -> int:
        """How many properties there must be, as far as the required names do not see to it."""
        return self.atom.low if self._counts else 0

    def open_names(self, progress: Progress) -> int:
        """The bits of the declared names that may come next."""
        from_bits = self.leaves.from_bits
        if self.any_order:
            return from_bits[0] & ~progress.at
        last = min(self._last(progress) + 1, len(self.names))
        return from_bits[progress.at] & ~from_bits[last]

    def candidates(self, progress: Progress) -> Iterator[int]:
        """Their positions."""
        at = progress.at
        if self.any_order:
            yield from (index for index, bit in enumerate(self.leaves.bits) if not bit & at)
        else:
            yield from range(at, min(self._last(progress) + 1, len(self.names)))

    def _last(self, progress: Progress) -> int:
        """The position that none that comes next may be behind."""
        positions = (self.position[name] for name in progress.needed)
        return min((self._next_required[progress.at], *positions))

    def after_declared(self, progress: Progress, index: int, pending: tuple[int, ...]) -> Progress:
        at = progress.at
        after = at | self.leaves.bits[index] if self.any_order else index + 1
        needed, present = progress.needed, progress.present
        if self._dependent:
            name = self.names[index]
            if name in self._dependent:
                present |= {name}
            asked = set(closure((name,), self.atom.implies)) - present
            # Required names must come anyway.
            needed = frozenset(
                n
                for n in (needed | asked) - {name}
                if (position := self.position.get(n)) is None
                or not self.required[position]
                or self._is_past(after, position)
            )
        return Progress(after, progress.extras, self._counted(progress), pending, needed, present)

    def after_extra(
        self, progress: Progress, text: bytes | None, pending: tuple[int, ...]
    ) -> Progress:
        # An unknown name counts as one that no other can be told from: see `witnesses`.
        name = b"%d" % len(progress.extras) if text is None else text
        extras = progress.extras | {name}
        return Progress(
            progress.at, extras, self._counted(progress), pending, progress.needed, progress.present
        )

    def _counted(self, progress: Progress) -> int:
        """A count beyond the last bound is not kept."""
        if not self._counts:
            return 0
        bound = self.atom.low if self.atom.high is None else self.atom.high
        return min(progress.size + 1, bound)

    def completes(self, progress: Progress) -> bool:
        if self.is_simple:
            return True
        if any(self.is_gone(progress, name) for name in progress.needed):
            return False
        return self.ways.completes(
            self.missing(progress),
            tuple(self.atom.some[index] for index in progress.pending),
            # Uncounted, the lower bound is met by the required names.
            progress.size if self._counts else self.atom.low,
            lambda name: self.is_gone(progress, name),
            frozenset(_decoded(text) for text in progress.extras if _is_name(text)),
        )

    def is_full(self, progress: Progress) -> bool:
        return self.atom.high is not None and progress.size >= self.atom.high

    def extra_leaves(self, extras: frozenset[bytes]) -> list[Leaf]:
        """For each kind of undeclared names: those that are not used yet."""
        found = self._extra_leaves.get(extras)
        if found is None:
            known = frozenset(filter(_is_name, extras))
            found = [
                self.leaves.undeclared(language or languages.ANY_TEXT, known)
                for language, _ in self.kinds
            ]
            self._extra_leaves[extras] = found
        return found

    def banned(self, extras: frozenset[bytes]) -> list[tuple[bytes, int]]:
        """What no undeclared name may be: declared, or used before."""
        declared = (*self.spelled, *self._impossible)
        return [(text, NO_TAG) for text in (*declared, *filter(_is_name, extras))]

    def names_leaf(self, chosen: int, extras: frozenset[bytes]) -> Leaf:
        """All names that may come, where undeclared ones may be any: these with tag 0, the chosen
        declared ones with 1 + their positions.
        """
        return self.leaves.any_name(chosen, frozenset(filter(_is_name, extras)))

    def witnesses(self, kind: int, extras: frozenset[bytes]) -> list[str]:
        """Short names of a kind that are not used yet, one more than there are unknown ones among
        the used: one of them is certainly free.
        """
        known = [text for text in extras if _is_name(text)]
        taken = frozenset(_decoded(text) for text, _ in self.banned(frozenset(known)))
        limits = self.lowering.reader.limits
        language = self.kinds[kind][0] or languages.ANY_TEXT
        free = languages.without(language, languages.from_texts(taken, limits), limits)
        return languages.some_texts(free if taken else language, 1 + len(extras) - len(known))

    def has_free_name(self, kind: int, extras: frozenset[bytes]) -> bool:
        """Whether a kind has a name left. Only small languages of names can run out."""
        if self.kinds[kind][0] is None:
            return True
        names = frozenset(_decoded(text) for text, _ in self.banned(extras))
        language = self.kinds[kind][0] or languages.ANY_TEXT
        unknown = sum(not _is_name(text) for text in extras)
        return self.has_free_names(kind, unknown + sum(map(language.accepts, names)))

    def has_free_names(self, kind: int, count: int) -> bool:
        """Whether a kind has more than so many names."""
        language = self.kinds[kind][0]
        return language is None or languages.count_texts(language, 0, None, count + 1) > count

    @staticmethod
    def choice(sequences: list[Sequence]) -> Sequence:
        """One of the sequences."""
        return sequences[0] if len(sequences) == 1 else (ChoiceState(tuple(sequences)),)


class ChoiceState(RuleState):
    """Several ways to go on after the same name."""

    __slots__ = ("_sequences",)

    def __init__(self, sequences: tuple[Sequence, ...]) -> None:
        super().__init__(sequences)
        self._sequences = sequences

    def expand(self) -> Expansion:
        return Expansion(calls=self._sequences)


def _is_name(text: bytes) -> bool:
    return text[:1] == b'"'


def _decoded(text: bytes) -> str:
    value = json.loads(text)
    assert isinstance(value, str)
    return value
