"""Whether an object that has been begun can still be completed, given the properties so far."""

from collections.abc import Callable, Iterator

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.regex import languages
from umbel.grammar.regex.chardfa import CharDfa
from umbel.grammar.values.algebra import Algebra
from umbel.grammar.values.fields import Fields
from umbel.grammar.values.shapes import ObjectAtom
from umbel.grammar.values.terms import Term

MANY = 1_000_000  # names are practically unlimited
_MAX_SOME = 24
_MAX_SPLIT = 256


def without_implications(atom: ObjectAtom, algebra: Algebra) -> list[ObjectAtom]:
    """The same set as atoms without `implies`: for each either the name is absent or what it
    requires is there.

    Implications stay when nothing but required names is asked for besides: they are then easy to
    follow.
    """
    if not atom.implies or not (
        atom.some or atom.high is not None or atom.low > len(atom.required)
    ):
        return [atom]
    atoms: list[ObjectAtom] = [
        ObjectAtom(atom.fields, atom.required, atom.low, atom.high, atom.some)
    ]
    terms = algebra.terms
    for name, needed in atom.implies:
        absent = ObjectAtom(Fields({name: terms.none}, terms.any))
        present = ObjectAtom(algebra.any_fields, (name, *needed))
        products = [algebra.both_object_atoms(a, b) for a in atoms for b in (absent, present)]
        atoms = [product for product in products if product is not None]
        if len(atoms) > _MAX_SPLIT:
            raise UnsupportedGrammar(
                f"{len(atom.implies)} dependencies together with bounds on the number of "
                "properties give too many cases",
                keyword="dependentRequired",
            )
    return atoms


def closure(
    names: tuple[str, ...], implies: tuple[tuple[str, tuple[str, ...]], ...]
) -> tuple[str, ...]:
    """The names and all that they require."""
    found = dict.fromkeys(names)
    size = -1
    while size < len(found) and implies:
        size = len(found)
        for name, needed in implies:
            if name in found:
                found.update(dict.fromkeys(needed))
    return tuple(found)


class ObjectWays:
    """The ways through one atom without implications that matter. `has_member(term)`: whether a
    term has a value.
    """

    def __init__(
        self, atom: ObjectAtom, algebra: Algebra, has_member: Callable[[Term], bool]
    ) -> None:
        if len(atom.some) > _MAX_SOME:
            raise UnsupportedGrammar(
                f"an object must satisfy {len(atom.some)} conditions of the form 'some property is "
                f"...' at once, more than the {_MAX_SOME} supported",
                keyword="not",
            )
        self.atom = atom
        self._algebra = algebra
        self._has_member = has_member
        self._rest: CharDfa | None = None

    def completes(
        self,
        missing: tuple[str, ...],
        pending: tuple[Fields, ...],
        count: int,
        is_gone: Callable[[str], bool],
        seen: frozenset[str] = frozenset(),
    ) -> bool:
        """Whether further properties complete the object.

        missing: required names still to come. pending: the obligations (of `atom.some`) not yet
        met. count: of
        properties so far. is_gone: whether a declared name can no longer come. seen: undeclared
        names used.
        """
        atom, fields = self.atom, self.atom.fields
        room = MANY if atom.high is None else atom.high - count
        if len(missing) > room:
            return False
        if any(is_gone(name) or not self._has_member(fields.get(name)) for name in missing):
            return False
        if not pending and count + len(missing) >= atom.low:
            return True
        return self._assign(missing, pending, count, is_gone, seen, {})

    def _assign(
        self,
        missing: tuple[str, ...],
        pending: tuple[Fields, ...],
        count: int,
        is_gone: Callable[[str], bool],
        seen: frozenset[str],
        met: dict[str, Term],
    ) -> bool:
        """Give each obligation a property: one that must come anyway, or one more. `met`: the
        choices so far.
        """
        atom = self.atom
        self._algebra.effort.spend()
        extra = len(met.keys() - set(missing))
        room = MANY if atom.high is None else atom.high - count - len(missing)
        if extra > room:
            return False
        if not pending:
            wanted = atom.low - count - len(missing) - extra
            taken = set(missing) | met.keys()
            return wanted <= 0 or self.capacity(is_gone, seen, taken, wanted) >= wanted
        first, rest = pending[0], pending[1:]
        both = self._algebra.terms.both
        for name, term in self._candidates(is_gone, seen, first):
            chosen = both(met.get(name, term), both(term, first.get(name)))
            if self._has_member(chosen) and self._assign(
                missing, rest, count, is_gone, seen, {**met, name: chosen}
            ):
                return True
        return False

    def _candidates(
        self, is_gone: Callable[[str], bool], seen: frozenset[str], wanted: Fields
    ) -> Iterator[tuple[str, Term]]:
        """A name of every kind that can still come; new names for classes and the default."""
        fields = self.atom.fields
        names = dict.fromkeys((*fields.named, *self.atom.required, *wanted.named))
        for name in names:
            declared = name in fields.named or name in self.atom.required
            if name not in seen and not (declared and is_gone(name)):
                yield name, fields.get(name)
        limits = self._algebra.limits
        taken = frozenset(names) | seen
        for language, _ in (*self._open_kinds(fields),):
            for other, _ in self._open_kinds(wanted):
                shared = languages.both(language, other, limits)
                if taken:
                    shared = languages.without(shared, languages.from_texts(taken, limits), limits)
                # Two obligations may need two names of one kind.
                for name in languages.some_texts(shared, _MAX_SOME):
                    yield name, fields.get(name)

    def _open_kinds(self, fields: Fields) -> list[tuple[CharDfa, Term]]:
        kinds = [(lang, term) for lang, term in fields.classes if self._has_member(term)]
        if self._has_member(fields.default):
            kinds.append((self._default_language(fields), fields.default))
        return kinds

    def _default_language(self, fields: Fields) -> CharDfa:
        rest = languages.ANY_TEXT
        for language, _ in fields.classes:
            rest = languages.without(rest, language, self._algebra.limits)
        return rest

    def capacity(
        self, is_gone: Callable[[str], bool], seen: frozenset[str], taken: set[str], enough: int
    ) -> int:
        """How many further names are possible; counting stops at `enough`."""
        fields = self.atom.fields
        total = 0
        for name, term in fields.named.items():
            if name not in taken and not is_gone(name) and self._has_member(term):
                total += 1
                if total >= enough:
                    return total
        limits = self._algebra.limits
        declared = frozenset(fields.named) | seen | frozenset(taken) | frozenset(self.atom.required)
        for language, _ in self._open_kinds(fields):
            free = languages.without(language, languages.from_texts(declared, limits), limits)
            total += languages.count_texts(free, 0, None, enough)
            if total >= enough:
                return total
        return total
