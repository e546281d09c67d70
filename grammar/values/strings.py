"""Sets of strings (decoded texts): explicit values, and languages with bounds on length and
excluded values.

Lengths are kept beside the automaton, never multiplied into it: `maxLength` may be 100,000.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from umbel.grammar.limits import Limits
from umbel.grammar.regex import languages
from umbel.grammar.regex.chardfa import CharDfa

_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of a language (None: all) with `low` to `high` characters, but none of `excluded`."""

    language: CharDfa | None = None
    low: int = 0
    high: int | None = None
    excluded: frozenset[str] = frozenset()

    def contains(self, text: str) -> bool:
        if len(text) < self.low or (self.high is not None and len(text) > self.high):
            return False
        if text in self.excluded:
            return False
        return self.language is None or self.language.accepts(text)

    def count(self, cap: int) -> int:
        """The number of members; at least `cap` is reported as `cap`."""
        if self.high is not None and self.low > self.high:
            return 0
        num_excluded = len(self.excluded)
        if self.language is None:
            if self.high is None or self.high > 8:
                return cap
            language = languages.ANY_TEXT
        else:
            language = self.language
        return min(
            languages.count_texts(language, self.low, self.high, cap + num_excluded) - num_excluded,
            cap,
        )

    @property
    def is_empty(self) -> bool:
        return self.count(1) == 0

    def intersect(self, other: "Texts", limits: Limits) -> "Texts":
        language = self.language or other.language
        if self.language is not None and other.language is not None:
            language = languages.both(self.language, other.language, limits)
        high = min((h for h in (self.high, other.high) if h is not None), default=None)
        return texts_of(language, max(self.low, other.low), high, self.excluded | other.excluded)

    def complement(self, limits: Limits) -> "StringSet":
        parts = []
        if self.language is not None:
            parts.append(Texts(languages.complement(self.language)))
        if self.low > 0:
            parts.append(Texts(high=self.low - 1))
        if self.high is not None:
            parts.append(Texts(low=self.high + 1))
        return string_set(self.excluded, parts)


def texts_of(
    language: CharDfa | None, low: int, high: int | None, excluded: Iterable[str]
) -> Texts:
    """With only those excluded values that would otherwise be members (`count` relies on it)."""
    plain = Texts(language, low, high)
    return Texts(language, low, high, frozenset(text for text in excluded if plain.contains(text)))


@dataclass(frozen=True, slots=True)
class StringSet:
    """The union of explicit values and atoms."""

    values: frozenset[str] = frozenset()
    atoms: tuple[Texts, ...] = ()

    def contains(self, text: str) -> bool:
        return text in self.values or any(atom.contains(text) for atom in self.atoms)

    @property
    def is_empty(self) -> bool:
        return not self.values and not self.atoms

    def union(self, other: "StringSet") -> "StringSet":
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        if self is ALL_STRINGS or other is ALL_STRINGS:
            return ALL_STRINGS
        return string_set(self.values | other.values, dict.fromkeys((*self.atoms, *other.atoms)))

    def intersect(self, other: "StringSet", limits: Limits = _LIMITS) -> "StringSet":
        if self is ALL_STRINGS or other is ALL_STRINGS:
            return other if self is ALL_STRINGS else self
        values = {text for text in self.values if other.contains(text)}
        values |= {text for text in other.values if self.contains(text)}
        products = [a.intersect(b, limits) for a in self.atoms for b in other.atoms]
        return string_set(frozenset(values), products)

    def complement(self, limits: Limits = _LIMITS) -> "StringSet":
        result = ALL_STRINGS
        if self.values:
            result = StringSet(atoms=(Texts(excluded=self.values),))
        for atom in self.atoms:
            result = result.intersect(atom.complement(limits), limits)
        return result

    def finite_count(self, cap: int) -> int | None:
        """How many strings there are, if at most `cap`; None for more (atoms may be counted
        twice).
        """
        total = len(self.values) + sum(atom.count(cap + 1) for atom in self.atoms)
        return total if total <= cap else None

    def language(self, limits: Limits) -> CharDfa:
        """One automaton for all of it. Raises `UnsupportedGrammar` when lengths make it too
        large.
        """
        result = languages.from_texts(self.values, limits)
        for atom in self.atoms:
            part = atom.language or languages.ANY_TEXT
            if atom.low > 0 or atom.high is not None:
                part = languages.both(
                    part, languages.of_length(atom.low, atom.high, limits), limits
                )
            if atom.excluded:
                part = languages.without(part, languages.from_texts(atom.excluded, limits), limits)
            result = part if result.is_empty else languages.either(result, part, limits)
        return result


def string_set(values: frozenset[str], atoms: Iterable[Texts]) -> StringSet:
    """Without empty atoms, and with no value that an atom holds already."""
    kept = [atom for atom in atoms if not atom.is_empty]
    if any(atom == _ANY for atom in kept):
        return ALL_STRINGS
    if kept:
        values = frozenset(text for text in values if not any(atom.contains(text) for atom in kept))
    return StringSet(values, tuple(kept))


_ANY = Texts()
NO_STRINGS = StringSet()
ALL_STRINGS = StringSet(atoms=(_ANY,))
