"""Reads subschemas into the algebra of value sets: the only place that knows what keywords mean.

Every subschema is a numbered literal. Its shape is the intersection of its own assertions and of
the terms that its
applicators make; the shape of its complement is the union of their complements.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.schema.assertion_table import ASSERTIONS, DRAFT_3
from umbel.grammar.schema.document import Document, Resource, child
from umbel.grammar.values.algebra import Algebra, ShapeInProgress
from umbel.grammar.values.effort import Effort
from umbel.grammar.values.emptiness import Emptiness
from umbel.grammar.values.literals import Json, canonical
from umbel.grammar.values.shapes import Shape
from umbel.grammar.values.terms import Term

Scope = tuple[Resource, ...]
_MAX_REFS = 1_000  # references in a row, each leading to the next
# Steps of normalizing: a few seconds of Python. Schemas met in practice take less than 10,000.
_MAX_EFFORT = 400_000
_MAX_SEARCHED = 200  # subschemas looked at to find the place of a refused keyword


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One subschema where it stands. scope: the resources entered on the way, when dynamic
    references need them.
    """

    schema: Json
    pointer: str
    resource: Resource
    scope: Scope = ()

    def has(self, name: str) -> bool:
        """Whether the keyword is there and asserts something in this draft."""
        if name not in self.schema:
            return False
        if not self.resource.is_declared:
            return True
        keyword = ASSERTIONS[name]
        return keyword.since <= self.resource.draft <= keyword.until

    def where(self, *names: str | int) -> str:
        return child(self.pointer, *names)


@dataclass(slots=True)
class Parts:
    """A subschema as an intersection: of shapes and of terms."""

    shapes: list[Shape] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)


class SchemaReader:
    """One document being read. `read(place)` of the assertions and applicators is passed in (see
    `assertions`).
    """

    def __init__(
        self,
        document: Document,
        read: "Callable[[SchemaReader, Place], Parts]",
        limits: Limits,
        *,
        assert_formats: bool = True,
        ignored: frozenset[tuple[str, str]] = frozenset(),
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        """ignored: (pointer, keyword) pairs to be read as if they were not there."""
        self.document = document
        self.limits = limits
        self.assert_formats = assert_formats
        self.warnings: list[
            str
        ] = []  # what is not enforced although a reader of the schema may expect it
        self._read = read
        self._ignored = ignored
        self.algebra = Algebra(
            self._shape, limits, Effort(min(limits.max_work, _MAX_EFFORT), cancelled)
        )
        self.emptiness = Emptiness(self.algebra)
        self.places: list[Place] = [Place(True, "", document.main)]  # literal numbers start at 1
        self._numbers: dict[tuple[str, Scope], int] = {}
        self._parts: dict[int, Parts | None] = {}
        self._shapes: dict[int, Shape | None] = {}  # None: being computed

    def warn(self, message: str, where: str) -> None:
        text = f"{message} (at {where or 'the root'})"
        if text not in self.warnings:
            self.warnings.append(text)

    def root(self) -> Term:
        scope = (self.document.main,) if self.document.is_dynamic else ()
        return self.term(Place(self.document.root, "", self.document.main, scope))

    def below(self, place: Place, *path: str | int) -> Term:
        """The term of the subschema at a path below a place."""
        return self.term(self.place_below(place, *path))

    def place_below(self, place: Place, *path: str | int) -> Place:
        schema = place.schema
        for name in path:
            schema = schema[name]
        pointer = child(place.pointer, *path)
        resource = self.document.resource_at(schema, pointer, place.resource)
        return Place(schema, pointer, resource, self._entered(place.scope, resource))

    def _entered(self, scope: Scope, resource: Resource) -> Scope:
        """The scope inside a resource: those that have no dynamic anchors of their own never
        matter.
        """
        if not self.document.is_dynamic or resource in scope:
            return scope
        return (*scope, resource)

    def term(self, place: Place) -> Term:
        terms = self.algebra.terms
        for _ in range(_MAX_REFS):
            schema = place.schema
            if schema is True or schema == {}:
                return terms.any
            if schema is False:
                return terms.none
            if not isinstance(schema, dict):
                raise GrammarError(
                    f"a subschema is an object or a boolean, got {type(schema).__name__}",
                    place.pointer,
                )
            if "$ref" not in schema or (len(schema) > 1 and place.resource.draft >= 2019):
                break
            place = self.target(place)
        else:
            raise GrammarError("$ref leads back to itself", place.pointer, keyword="$ref")
        if schema.keys().isdisjoint(ASSERTIONS) and schema.keys().isdisjoint(DRAFT_3):
            return terms.any
        return terms.literal(self._number(place, place.pointer))

    def target(self, place: Place) -> Place:
        """Where the `$ref` of a place leads."""
        found = self.document.resolve(place.schema["$ref"], place.where("$ref"), place.resource)
        return Place(
            found.schema, found.pointer, found.resource, self._entered(place.scope, found.resource)
        )

    def made_up(self, schema: Json, name: str, place: Place) -> Term:
        """The term of a schema that is not in the document. `name`: the same for equal schemas."""
        made = Place(schema, place.pointer, place.resource, place.scope)
        return self.algebra.terms.literal(self._number(made, f"\0{name}"))

    def constant(self, value: Json, place: Place) -> Term:
        """The term of one value."""
        return self.made_up({"enum": [value]}, f"value {canonical(value)}", place)

    def constants(self, values: list[Json], place: Place) -> Term:
        """The term of some values."""
        return self.made_up({"enum": values}, f"values {canonical(values)}", place)

    def is_ignored(self, place: Place, name: str) -> bool:
        return (place.pointer, name) in self._ignored

    def without_property(self, name: str, place: Place) -> Term:
        """Everything but the objects with the property."""
        return self.made_up({"properties": {name: False}}, f"without {name}", place)

    def _number(self, place: Place, key: str) -> int:
        number = self._numbers.get((key, place.scope))
        if number is None:
            number = self._numbers[key, place.scope] = len(self.places)
            if self._ignored and isinstance(place.schema, dict):
                kept = {
                    name: value
                    for name, value in place.schema.items()
                    if (place.pointer, name) not in self._ignored
                }
                place = Place(kept, place.pointer, place.resource, place.scope)
            self.places.append(place)
        return number

    def _shape(self, number: int) -> Shape:
        known = self._shapes.get(number, False)
        if known is None:
            raise ShapeInProgress
        if known is not False:
            assert isinstance(known, Shape)
            return known
        self._shapes[number] = None
        try:
            found = self._make_shape(number)
        except UnsupportedGrammar as exc:
            del self._shapes[number]
            if exc.where is None:
                where = self._where_keyword(self.places[abs(number)], exc.keyword)
                raise UnsupportedGrammar(exc.message, where, keyword=exc.keyword) from exc
            raise
        except BaseException:
            del self._shapes[number]
            raise
        self._shapes[number] = found
        return found

    def _make_shape(self, number: int) -> Shape:
        algebra = self.algebra
        parts = self.parts(abs(number))
        if number > 0:
            shape = algebra.everything
            for part in parts.shapes:
                shape = algebra.both(shape, part)
            for term in parts.terms:
                shape = algebra.both(shape, algebra.shape(term))
            return shape
        shape = algebra.nothing
        for part in parts.shapes:
            shape = algebra.either(shape, algebra.complement(part))
        for term in parts.terms:
            shape = algebra.either(shape, algebra.shape(algebra.terms.complement(term)))
        return shape

    def parts(self, number: int) -> Parts:
        """The assertions of a literal's subschema."""
        found = self._parts.get(number)
        if found is None:
            place = self.places[number]
            if number in self._parts:
                raise ShapeInProgress
            self._parts[number] = None
            self.algebra.effort.spend(1 + len(place.schema))
            try:
                found = self._read(self, place)
            except BaseException:
                del self._parts[number]
                raise
            self._parts[number] = found
        return found

    def pointer_of(self, term: Term, keyword: str | None = None) -> str:
        """Where to look for a term in the document: a keyword of its first subschema if it has
        it.
        """
        for clause in term.clauses:
            for number in sorted(clause, key=abs):
                return self._where_keyword(self.places[abs(number)], keyword)
        return ""

    def _where_keyword(self, place: Place, keyword: str | None) -> str:
        """The pointer of the keyword in a subschema or in one that applies to the same instance."""
        pending, seen = [place], {place.pointer}
        while keyword is not None and pending and len(seen) < _MAX_SEARCHED:
            at = pending.pop(0)
            if not isinstance(at.schema, dict):
                continue
            if keyword in at.schema and (at.pointer, keyword) not in self._ignored:
                return at.where(keyword)
            for inner in self._beside(at):
                if inner.pointer not in seen:
                    seen.add(inner.pointer)
                    pending.append(inner)
        return place.pointer

    def _beside(self, place: Place) -> list[Place]:
        """The subschemas that apply to the same instance."""
        found = []
        if isinstance(place.schema.get("$ref"), str):
            found.append(self.target(place))
        for name in ("allOf", "anyOf", "oneOf"):
            if isinstance(place.schema.get(name), list):
                found += [
                    self.place_below(place, name, at) for at in range(len(place.schema[name]))
                ]
        found += [
            self.place_below(place, name)
            for name in ("not", "if", "then", "else")
            if name in place.schema
        ]
        return found
