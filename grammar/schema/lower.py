"""JSON Schema to the syntax tree of its instances' JSON text: exact on every keyword, or refused.

Every text of the result is valid under the schema. Not every valid instance is a text of it:
properties come in schema order, undeclared ones only where the schema speaks of them, whitespace is
bounded.
"""

import json
from dataclasses import dataclass, field
from itertools import combinations

from umbel.grammar.errors import UnsatisfiableGrammar, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.regex import syntax
from umbel.grammar.regex.chardfa import determinize
from umbel.grammar.regex.syntax import NEVER, Node
from umbel.grammar.schema.containers import lower_array, lower_object
from umbel.grammar.schema.decimals import lower_number
from umbel.grammar.schema.disjoint import are_disjoint
from umbel.grammar.schema.equality import canonical, types_of
from umbel.grammar.schema.load import Document, Json, child
from umbel.grammar.schema.strings import lower_string
from umbel.grammar.schema.values import (
    BOOLEAN,
    NULL,
    any_value,
    value_literal,
)
from umbel.grammar.schema.view import View, merge, view_of


def lower_schema(schema: Json, limits: Limits) -> Node:
    """Raises `UnsupportedGrammar` (keyword and JSON Pointer), `UnsatisfiableGrammar` or
    `GrammarError`.
    """
    tree = Lowering(Document(schema), limits).lower(schema, "", frozenset())
    if syntax.is_never(tree):
        raise UnsatisfiableGrammar(
            "no instance satisfies the JSON Schema: its keywords contradict each other"
        )
    return tree


@dataclass(slots=True)
class Lowering:
    """One schema being lowered. `kept`: finished subschemas by pointer; trees are immutable, so
    shared.
    """

    document: Document
    limits: Limits
    kept: dict[str, Node] = field(default_factory=dict)

    def lower(self, schema: Json, pointer: str, around: frozenset[str]) -> Node:
        """`around`: pointers of the subschemas that contain this one, through `$ref` too."""
        if pointer in self.kept:
            return self.kept[pointer]
        if len(around) > self.limits.max_nesting:
            raise UnsupportedGrammar(
                f"subschemas nested deeper than {self.limits.max_nesting}", pointer
            )
        view = view_of(schema, pointer, self.document, around)
        tree = self.lower_view(view, pointer, around | view.refs | {pointer})
        if tree.size > self.limits.max_nodes:
            raise UnsupportedGrammar(
                f"the subschema unrolls to {tree.size} character positions, more than the "
                f"{self.limits.max_nodes} allowed; use smaller counts or fewer copies",
                pointer,
            )
        self.kept[pointer] = tree
        return tree

    def lower_view(self, view: View, pointer: str, around: frozenset[str]) -> Node:
        if view.is_never:
            return NEVER
        for name in ("anyOf", "oneOf"):
            if name in view.keywords:
                return self._alternatives(name, view, pointer, around)
        if "const" in view.keywords or "enum" in view.keywords:
            return self._values(view, pointer, around)
        if not view.keywords:
            return any_value(self.limits.max_value_depth)
        types = view.types()
        options = []
        if "null" in types:
            options.append(NULL)
        if "boolean" in types:
            options.append(BOOLEAN)
        if "integer" in types:
            options.append(lower_number(view, self.limits, integer="number" not in types))
        if "string" in types:
            options.append(lower_string(view, self.limits))
        if "array" in types:
            options.append(lower_array(view, self, around))
        if "object" in types:
            options.append(lower_object(view, self, around))
        return syntax.alt(options)

    def _alternatives(self, name: str, view: View, pointer: str, around: frozenset[str]) -> Node:
        branches, where = view.keywords[name]
        rest = view.without(name)
        options = []
        for number, branch in enumerate(branches):
            inner = view_of(branch, child(where, number), self.document, around)
            options.append(merge(rest, inner))
        if name == "oneOf":
            self._check_exclusive(options, where, around)
        return syntax.alt(
            self.lower_view(option, pointer, around | option.refs) for option in options
        )

    def _check_exclusive(self, options: list[View], where: str, around: frozenset[str]) -> None:
        possible = [
            (number, option) for number, option in enumerate(options) if not option.is_never
        ]
        for (i, left), (j, right) in combinations(possible, 2):
            if not are_disjoint(left, right, self.document, around):
                raise UnsupportedGrammar(
                    f"oneOf branches {i} and {j} are not provably disjoint (by type, const, "
                    "enum, or a required property whose consts differ); use anyOf if both may hold",
                    where,
                    keyword="oneOf",
                )

    def _values(self, view: View, pointer: str, around: frozenset[str]) -> Node:
        """The listed values that satisfy the keywords beside the list."""
        values = [view.value("const")] if "const" in view.keywords else view.value("enum")
        name = "const" if "const" in view.keywords else "enum"
        rest = view.without(name)
        if "enum" in rest.keywords:  # const beside enum
            rest = rest.without("enum")
            allowed = {canonical(value) for value in view.value("enum")}
            values = [value for value in values if canonical(value) in allowed]
        types = view.types() if "type" in view.keywords else None
        if types is not None:
            values = [value for value in values if types & types_of(value)]
        rest = rest.without("type")
        if rest.keywords and values:
            # The rest as a language of its own decides which of the values it admits.
            language = determinize(self.lower_view(rest, pointer, around), self.limits)
            values = [v for v in values if language.accepts(json.dumps(v, ensure_ascii=False))]
        return syntax.alt(value_literal(value, view.where(name)) for value in values)
