"""unevaluatedProperties and unevaluatedItems: what no applicator beside them has looked at must
satisfy a schema.

What was looked at depends on which branches hold. Each combination of branches is a case of its
own; a case that
counts fewer branches than hold only asks for more, so the union over the cases is exact.
"""

from dataclasses import dataclass
from itertools import product

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.schema.contents import field_terms, item_terms
from umbel.grammar.schema.reader import Place, SchemaReader
from umbel.grammar.schema.references import dynamic_target
from umbel.grammar.values.fields import Fields, Items
from umbel.grammar.values.shapes import Shape
from umbel.grammar.values.terms import Term

_MAX_CASES = 128


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """If `condition` holds, the names in `fields` and positions in `items` that map to more than
    nothing are evaluated.
    """

    condition: Term
    fields: Fields
    items: Items


def unevaluated_shape(reader: SchemaReader, place: Place) -> Shape | None:
    """The shape that both keywords of a place ask for; None when they ask for nothing."""
    algebra, terms = reader.algebra, reader.algebra.terms
    others = terms.any
    properties = items = others
    if "unevaluatedProperties" in place.schema and place.has("unevaluatedProperties"):
        properties = reader.below(place, "unevaluatedProperties")
    if "unevaluatedItems" in place.schema and place.has("unevaluatedItems"):
        items = reader.below(place, "unevaluatedItems")
    if properties is terms.any and items is terms.any:
        return None
    found = algebra.nothing
    everything = algebra.everything
    for case in _Cases(reader).of(place, with_own_rest=False):
        fields = algebra.fields.either(case.fields, Fields({}, properties))
        positions = case.items.combined(Items((), items), terms.either)
        atom = algebra.object(fields)
        array = algebra.array(positions)
        asked = Shape(
            True,
            everything.booleans,
            everything.numbers,
            everything.strings,
            () if array is None else (array,),
            () if atom is None else (atom,),
        )
        found = algebra.either(found, algebra.both(asked, algebra.shape(case.condition)))
    return found


class _Cases:
    """Collects the cases of a schema and of those that apply to the same instance."""

    def __init__(self, reader: SchemaReader) -> None:
        self._reader = reader
        self._terms = reader.algebra.terms
        none = self._terms.none
        self._nothing = _Case(self._terms.any, Fields({}, none), Items((), none))

    def of(self, place: Place, *, with_own_rest: bool = True) -> list[_Case]:
        """with_own_rest: whether unevaluated* of the place itself count: they evaluate all that is
        left.
        """
        schema, reader = place.schema, self._reader
        if not isinstance(schema, dict):
            return [self._nothing]
        if "$ref" in schema and place.resource.draft < 2019:
            return self.of(reader.target(place))
        groups = [[self._own(place, with_own_rest)]]
        if "$ref" in schema:
            groups.append(self.of(reader.target(place)))
        groups += [
            self.of(dynamic_target(reader, place, name))
            for name in ("$dynamicRef", "$recursiveRef")
            if name in schema and place.has(name)
        ]
        num_all = len(schema.get("allOf", ()))
        groups += [self.of(self._below(place, "allOf", at)) for at in range(num_all)]
        groups += [
            self._if_holds(place, name, at)
            for name in ("anyOf", "oneOf")
            for at in range(len(schema.get(name, ())))
        ]
        if "if" in schema and place.has("if"):
            groups.append(self._conditional(place))
        if "dependentSchemas" in schema and place.has("dependentSchemas"):
            groups += [self._if_present(place, name) for name in schema["dependentSchemas"]]
        return self._combined(groups, place)

    def _own(self, place: Place, with_own_rest: bool) -> _Case:
        """Names that properties and its siblings speak of, positions that items and its siblings
        speak of.
        """
        terms, schema, reader = self._terms, place.schema, self._reader
        declared = field_terms(reader, place)
        has_rest = "additionalProperties" in schema or (
            with_own_rest and "unevaluatedProperties" in schema
        )
        fields = Fields(
            dict.fromkeys(declared.named, terms.any),
            terms.any if has_rest else terms.none,
            tuple((language, terms.any) for language, _ in declared.classes),
        )
        positions = item_terms(reader, place)
        rest_name = "additionalItems" if isinstance(schema.get("items"), list) else "items"
        is_all = (rest_name in schema and place.has(rest_name)) or (
            with_own_rest and "unevaluatedItems" in schema
        )
        items = Items((terms.any,) * len(positions.prefix), terms.any if is_all else terms.none)
        if "contains" in schema and place.resource.draft >= 2020:
            found = reader.below(place, "contains")
            items = items.combined(Items((), found), terms.either)
        return _Case(terms.any, fields, items)

    def _below(self, place: Place, *path: str | int) -> Place:
        return self._reader.place_below(place, *path)

    def _if_holds(self, place: Place, *path: str | int) -> list[_Case]:
        cases = self.of(self._below(place, *path))
        if all(self._is_blind(case) for case in cases):
            return [self._nothing]
        return [self._nothing, *self._given(self._reader.below(place, *path), cases)]

    def _if_present(self, place: Place, name: str) -> list[_Case]:
        absent = self._reader.without_property(name, place)
        present = self._terms.complement(absent)
        holds = self._if_holds(place, "dependentSchemas", name)
        return [self._nothing, *self._given(present, holds[1:])]

    def _conditional(self, place: Place) -> list[_Case]:
        condition = self._reader.below(place, "if")
        holds = [self.of(self._below(place, "if"))]
        fails = [[self._nothing]]
        if "then" in place.schema:
            holds.append(self.of(self._below(place, "then")))
        if "else" in place.schema:
            fails.append(self.of(self._below(place, "else")))
        return [
            *self._given(condition, self._combined(holds, place)),
            *self._given(self._terms.complement(condition), self._combined(fails, place)),
        ]

    def _given(self, condition: Term, cases: list[_Case]) -> list[_Case]:
        both = self._terms.both
        return [_Case(both(condition, case.condition), case.fields, case.items) for case in cases]

    def _is_blind(self, case: _Case) -> bool:
        none = self._terms.none
        return (
            self._reader.algebra.fields.is_none(case.fields)
            and case.items.rest is none
            and all(term is none for term in case.items.prefix)
        )

    def _combined(self, groups: list[list[_Case]], place: Place) -> list[_Case]:
        """Every choice of one case from each group, their evaluated parts together."""
        size = 1
        for group in groups:
            size *= len(group)
        if size > _MAX_CASES:
            raise UnsupportedGrammar(
                f"unevaluatedProperties or unevaluatedItems over {size} combinations of branches, "
                f"more than the {_MAX_CASES} supported",
                place.pointer,
                keyword="unevaluatedProperties",
            )
        fields_of, either = self._reader.algebra.fields, self._terms.either
        found = []
        for chosen in product(*groups):
            condition, fields, items = (
                self._nothing.condition,
                self._nothing.fields,
                self._nothing.items,
            )
            for case in chosen:
                condition = self._terms.both(condition, case.condition)
                fields = fields_of.either(fields, case.fields)
                items = items.combined(case.items, either)
            if condition is not self._terms.none:
                found.append(_Case(condition, fields, items))
        return found
