"""From terms to grammar states: one state for each term, made when a text gets there."""

from collections.abc import Iterator
from dataclasses import dataclass

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.leaves import Leaf, literal_leaf
from umbel.grammar.pushdown.rules import (
    UNREACHABLE,
    Expansion,
    Head,
    Measure,
    RuleState,
    Sequence,
    sequence_cost,
)
from umbel.grammar.regex.chardfa import CharDfa
from umbel.grammar.schema.arrays import ArrayPlan
from umbel.grammar.schema.completions import Distinct
from umbel.grammar.schema.digits import NumberStyle, check_interval, number_leaf
from umbel.grammar.schema.object_plan import ObjectPlan
from umbel.grammar.schema.objects import ColonState, object_heads
from umbel.grammar.schema.reader import SchemaReader
from umbel.grammar.schema.spacing import Spacing
from umbel.grammar.schema.spelling import text_leaf
from umbel.grammar.values.literals import spell_number, spell_text
from umbel.grammar.values.objects import without_implications
from umbel.grammar.values.shapes import Shape
from umbel.grammar.values.terms import Term

_MAX_ALTERNATIVES = (
    500  # atoms of one term that stay: each is a thread of its own while a text may be all of them
)

_LARGE_LANGUAGE = 32  # states
_MAX_LARGE_STATES = 1_500  # made beforehand for one schema: about 100 ms


@dataclass(slots=True)
class ValuePlan:
    """The atoms of a term that hold values."""

    shape: Shape
    arrays: list[ArrayPlan]
    objects: list[ObjectPlan]

    def children(self) -> Iterator[Term]:
        """The terms of the contents."""
        for array in self.arrays:
            yield from array.children()
        for plan in self.objects:
            yield from plan.children()


class Lowering:
    """The states of one schema. Plans are made by `check`; states only look at them."""

    def __init__(
        self, reader: SchemaReader, spacing: Spacing, style: NumberStyle, *, any_order: bool
    ) -> None:
        self.reader = reader
        self.algebra = reader.algebra
        self.spacing = spacing
        self.style = style
        self.any_order = any_order
        self._plans: dict[Term, ValuePlan] = {}
        self.large_leaves: list[Leaf] = []  # of large languages: made by `check`, not by a step
        self._large_languages: dict[CharDfa, int] = {}  # states
        self.colon = ColonState(self)  # one for all: its key takes long to hash

    def state(self, term: Term) -> "ValueState":
        found = term.rule
        if found is None:
            found = term.rule = ValueState(self, term)
        assert isinstance(found, ValueState)
        return found

    def check(self, root: Term) -> None:
        """Make the plans of everything that is reachable.

        Raises `UnsupportedGrammar` for what cannot be enforced, with the place in the schema.
        """
        pending, seen = [root], {root}
        while pending:
            term = pending.pop()
            self.algebra.effort.spend()
            try:
                plan = self.plan(term)
                for each in plan.objects:
                    if each.atom.fields.classes:  # automata of names take too long for a step
                        each.prepare()
            except UnsupportedGrammar as exc:
                if exc.where is not None:
                    raise
                where = self.reader.pointer_of(term, exc.keyword)
                raise UnsupportedGrammar(exc.message, where, keyword=exc.keyword) from exc
            self._make_large_leaves(plan)
            for inner in plan.children():
                if inner not in seen:
                    seen.add(inner)
                    pending.append(inner)
        for term in seen:
            for array in self.plan(term).arrays:
                if array.distinct is not None:
                    self._check_distinct(term, array.distinct)

    def _make_large_leaves(self, plan: ValuePlan) -> None:
        """Those of small languages take less than a millisecond when a text gets there."""
        for texts in plan.shape.strings.atoms:
            language, known = texts.language, self._large_languages
            if language is None or language in known or len(language.table) < _LARGE_LANGUAGE:
                continue
            if sum(known.values()) + len(language.table) <= _MAX_LARGE_STATES:
                known[language] = len(language.table)
                self.large_leaves.append(text_leaf(texts))

    def _check_distinct(self, term: Term, distinct: Distinct) -> None:
        try:
            distinct.check()
        except UnsupportedGrammar as exc:
            where = self.reader.pointer_of(term, exc.keyword)
            raise UnsupportedGrammar(exc.message, where, keyword=exc.keyword) from exc

    def plan(self, term: Term) -> ValuePlan:
        found = self._plans.get(term)
        if found is None:
            found = self._plans[term] = self._make_plan(term)
        return found

    def _make_plan(self, term: Term) -> ValuePlan:
        shape = self.algebra.shape(term)
        emptiness = self.reader.emptiness
        for interval in shape.numbers.intervals:
            check_interval(interval)
        arrays = [ArrayPlan(atom, self) for atom in shape.arrays if emptiness.has_array(atom)]
        objects = [
            ObjectPlan(part, self)
            for atom in shape.objects
            for part in without_implications(atom, self.algebra)
            if emptiness.has_object(part)
        ]
        if len(arrays) + len(objects) > _MAX_ALTERNATIVES:
            raise UnsupportedGrammar(
                f"{len(arrays) + len(objects)} alternatives for one value, more than the "
                f"{_MAX_ALTERNATIVES} supported",
                keyword="anyOf",
            )
        return ValuePlan(shape, arrays, objects)

    def scalar_leaves(self, shape: Shape) -> list[Leaf]:
        """Leaves for all values that are no containers, each with the tag 0."""
        literals = self.literals(shape)
        leaves: list[Leaf] = [literal_leaf((text, 0) for text in literals)] if literals else []
        leaves += [number_leaf(interval, self.style) for interval in shape.numbers.intervals]
        leaves += [text_leaf(texts) for texts in shape.strings.atoms]
        return leaves

    def literals(self, shape: Shape) -> list[bytes]:
        found = [b"null"] if shape.null else []
        found += [b"true" if value else b"false" for value in shape.booleans]
        found += [spell_text(text) for text in shape.strings.values]
        for value in shape.numbers.values:
            found += [text.encode() for text in self.number_spellings(value)]
        return list(dict.fromkeys(found))

    def number_spellings(self, value: object) -> list[str]:
        spellings = spell_number(value)  # type: ignore[arg-type]  # a Fraction
        if not self.style.point_zero:
            return [text for text in spellings if not text.endswith(".0")] or spellings
        return spellings


class ValueState(RuleState):
    """Any value of a term."""

    __slots__ = ("_expansion", "lowering", "term")

    def __init__(self, lowering: Lowering, term: Term) -> None:
        super().__init__(term)
        self.lowering = lowering
        self.term = term
        self._expansion: Expansion | None = None

    def expand(self) -> Expansion:
        if self._expansion is None:
            lowering = self.lowering
            plan = lowering.plan(self.term)
            heads = [Head(leaf, _nothing) for leaf in lowering.scalar_leaves(plan.shape)]
            for array in plan.arrays:
                heads += array.heads()
            for each in plan.objects:
                heads += object_heads(each)
            self._expansion = Expansion(tuple(heads))
        return self._expansion

    def cost(self, measure: Measure) -> int:
        """Scalars are never longer than containers that hold something: containers count only
        without them.
        """
        best = UNREACHABLE
        for head in self.expand().heads:
            assert isinstance(head, Head)
            if best < UNREACHABLE and head.follow is not _nothing:
                break
            then = head.follow(0)
            best = min(best, measure.leaf(head.leaf, 0) + sequence_cost(then, measure))
        return best


def _nothing(tag: int) -> Sequence:
    return ()
