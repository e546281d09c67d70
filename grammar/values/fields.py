"""Maps from property names to terms, and from positions to terms: what the contents of a container
must satisfy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.regex import languages
from umbel.grammar.regex.chardfa import CharDfa
from umbel.grammar.values.terms import Term, Terms

_MAX_CLASSES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """The term of every possible property name: its own, that of its class of names, or the
    default.

    named: in the order of declaration. classes: disjoint languages of names (not looked at for
    declared names).
    """

    named: dict[str, Term]
    default: Term
    classes: tuple[tuple[CharDfa, Term], ...] = ()

    def get(self, name: str) -> Term:
        term = self.named.get(name)
        return self.undeclared(name) if term is None else term

    def undeclared(self, name: str) -> Term:
        """The term that a name has if it is not declared."""
        for language, term in self.classes:
            if language.accepts(name):
                return term
        return self.default

    def slots(self) -> "Iterator[tuple[str | CharDfa | None, Term]]":
        """Every kind of name once: each declared name, each class, None for the default."""
        yield from self.named.items()
        yield from self.classes
        yield None, self.default


@dataclass(frozen=True, slots=True)
class FieldAlgebra:
    """Operations on `Fields` that need the terms of the document."""

    terms: Terms
    limits: Limits

    def both(self, left: Fields, right: Fields) -> Fields:
        for one, other in ((left, right), (right, left)):
            if one.default is self.terms.any and not one.named and not one.classes:
                return other
        return self._pointwise(left, right, self.terms.both)

    def either(self, left: Fields, right: Fields) -> Fields:
        return self._pointwise(left, right, self.terms.either)

    def divided(self, fields: Fields, other: Fields) -> Fields:
        """The same terms, on kinds of names that are inside single kinds of `other` too."""
        return self._pointwise(fields, other, lambda term, _: term)

    def complement(self, fields: Fields) -> Fields:
        negate = self.terms.complement
        return Fields(
            {name: negate(term) for name, term in fields.named.items()},
            negate(fields.default),
            tuple((language, negate(term)) for language, term in fields.classes),
        )

    def is_any(self, fields: Fields) -> bool:
        anything = self.terms.any
        return (
            fields.default is anything
            and all(term is anything for term in fields.named.values())
            and all(term is anything for _, term in fields.classes)
        )

    def is_none(self, fields: Fields) -> bool:
        nothing = self.terms.none
        return (
            fields.default is nothing
            and all(term is nothing for term in fields.named.values())
            and all(term is nothing for _, term in fields.classes)
        )

    def only_name(self, fields: Fields) -> str | None:
        """The one name that does not map to nothing, if there is just one."""
        nothing = self.terms.none
        if fields.default is not nothing or any(term is not nothing for _, term in fields.classes):
            return None
        names = [name for name, term in fields.named.items() if term is not nothing]
        return names[0] if len(names) == 1 else None

    def _pointwise(
        self, left: Fields, right: Fields, combine: Callable[[Term, Term], Term]
    ) -> Fields:
        default = combine(left.default, right.default)
        if left.classes or right.classes:
            names = dict.fromkeys((*left.named, *right.named))
            named = {name: combine(left.get(name), right.get(name)) for name in names}
            return Fields(named, default, self._classes(left, right, combine))
        others = right.named
        named = {
            name: combine(term, others.get(name, right.default))
            for name, term in left.named.items()
        }
        for name, term in others.items():
            if name not in named:
                named[name] = combine(left.default, term)
        return Fields(named, default)

    def _classes(
        self, left: Fields, right: Fields, combine: Callable[[Term, Term], Term]
    ) -> tuple[tuple[CharDfa, Term], ...]:
        if not right.classes:
            return tuple((lang, combine(term, right.default)) for lang, term in left.classes)
        if not left.classes:
            return tuple((lang, combine(left.default, term)) for lang, term in right.classes)
        found: list[tuple[CharDfa, Term]] = []
        for language, term in left.classes:
            rest = language
            for other, other_term in right.classes:
                shared = languages.both(rest, other, self.limits)
                if not shared.is_empty:
                    found.append((shared, combine(term, other_term)))
                    rest = languages.without(rest, other, self.limits)
            if not rest.is_empty:
                found.append((rest, combine(term, right.default)))
        for other, other_term in right.classes:
            for language, _ in left.classes:
                other = languages.without(other, language, self.limits)
            if not other.is_empty:
                found.append((other, combine(left.default, other_term)))
        if len(found) > _MAX_CLASSES:
            raise UnsupportedGrammar(
                f"overlapping patterns divide the names into more than {_MAX_CLASSES} classes",
                keyword="patternProperties",
            )
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """The term of every position of an array: `prefix`, then `rest`."""

    prefix: tuple[Term, ...]
    rest: Term

    def at(self, index: int) -> Term:
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def combined(self, other: "Items", combine: Callable[[Term, Term], Term]) -> "Items":
        length = max(len(self.prefix), len(other.prefix))
        prefix = tuple(combine(self.at(i), other.at(i)) for i in range(length))
        return Items(prefix, combine(self.rest, other.rest))

    def mapped(self, change: Callable[[Term], Term]) -> "Items":
        return Items(tuple(map(change, self.prefix)), change(self.rest))
