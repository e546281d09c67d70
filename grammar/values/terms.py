"""Boolean combinations of schemas, by name: what item and property schemas are until somebody
looks into them.

A term is a union of clauses, a clause an intersection of literals, a literal the number of a
schema or (negative)
its complement. There are finitely many terms over a document, so recursive intersections end;
equal terms are one
object, so everything found out about one is kept on it.
"""

from collections.abc import Iterable
from typing import Any

from umbel.grammar.errors import UnsupportedGrammar

Clause = frozenset[int]

_MAX_CLAUSES = 256


class Term:
    """Made by `Terms` only. `memo`: what the owner of the terms keeps about it."""

    __slots__ = ("clauses", "emptiness", "number", "rule", "shape")

    def __init__(self, clauses: frozenset[Clause], number: int) -> None:
        self.clauses = clauses
        self.number = number
        self.shape: Any = None  # set by algebra.Algebra.shape: a Shape once computed
        self.emptiness: bool | None = None  # set by emptiness.Emptiness once proved
        self.rule: Any = None  # set by the lowering: its grammar state

    def __repr__(self) -> str:
        return f"Term({sorted(map(sorted, self.clauses))})"


class Terms:
    """The terms of one document. `any` and `none` are the full and the empty set."""

    def __init__(self) -> None:
        self._kept: dict[frozenset[Clause], Term] = {}
        self._products: dict[tuple[int, int], Term] = {}
        self.none = self._intern(frozenset())
        self.any = self._intern(frozenset({frozenset()}))

    def __len__(self) -> int:
        return len(self._kept)

    def literal(self, number: int) -> Term:
        return self._intern(frozenset({frozenset({number})}))

    def clause(self, numbers: Iterable[int]) -> Term:
        """The intersection of literals."""
        found = frozenset(numbers)
        return self.none if _is_contradiction(found) else self._intern(frozenset({found}))

    def both(self, left: Term, right: Term) -> Term:
        if left is right or right is self.any or left is self.none:
            return left
        if left is self.any or right is self.none:
            return right
        key = (
            (left.number, right.number)
            if left.number < right.number
            else (right.number, left.number)
        )
        found = self._products.get(key)
        if found is None:
            clauses = {a | b for a in left.clauses for b in right.clauses}
            found = self._products[key] = self._reduced(clauses)
        return found

    def either(self, *terms: Term) -> Term:
        kept = {clause for term in terms for clause in term.clauses}
        return self._reduced(kept)

    def complement(self, term: Term) -> Term:
        result = self.any
        for clause in sorted(term.clauses, key=len):
            result = self.both(result, self._reduced({frozenset({-literal}) for literal in clause}))
        return result

    def _reduced(self, clauses: set[Clause]) -> Term:
        possible = {clause for clause in clauses if not _is_contradiction(clause)}
        if len(possible) > 1:
            # Absorption: what lies inside another clause's set adds nothing.
            possible = {c for c in possible if not any(other < c for other in possible)}
        if len(possible) > _MAX_CLAUSES:
            raise UnsupportedGrammar(
                f"combining the schema's alternatives gives more than {_MAX_CLAUSES} cases; "
                "nest fewer anyOf, oneOf, not and if",
                keyword="anyOf",
            )
        return self._intern(frozenset(possible))

    def _intern(self, clauses: frozenset[Clause]) -> Term:
        found = self._kept.get(clauses)
        if found is None:
            found = self._kept[clauses] = Term(clauses, len(self._kept))
        return found


def _is_contradiction(clause: Clause) -> bool:
    return len(clause) > 1 and any(-literal in clause for literal in clause)
