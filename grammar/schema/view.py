"""A subschema as the set of its assertions, with `$ref` and `allOf` folded in and the unsupported refused."""

from collections.abc import Callable
from dataclasses import dataclass, field

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.schema.load import Document, Json, child

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
ENFORCED = frozenset(
    {
        *("type", "enum", "const", "anyOf", "oneOf"),
        *("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
)
# Assertions that this version does not enforce. What is in neither set asserts nothing, in any draft.
REFUSED = frozenset(
    {
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"),
        *("contains", "minContains", "maxContains"),
        *("$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy"),
    }
)
_TIGHTEN: dict[str, Callable[[Json, Json], Json]] = {
    **dict.fromkeys(("minLength", "minItems", "minProperties", "minimum"), max),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties", "maximum"), min),
}


@dataclass(frozen=True, slots=True)
class View:
    """keywords: name to (value, pointer), in order of appearance. refs: pointers of the `$ref`s passed.

    is_never: nothing is valid (the schema `false`).
    """

    keywords: dict[str, tuple[Json, str]] = field(default_factory=dict)
    refs: frozenset[str] = frozenset()
    is_never: bool = False

    def value(self, name: str, default: Json = None) -> Json:
        return self.keywords[name][0] if name in self.keywords else default

    def where(self, name: str) -> str:
        return self.keywords[name][1]

    def without(self, *names: str) -> "View":
        kept = {name: entry for name, entry in self.keywords.items() if name not in names}
        return View(kept, self.refs, self.is_never)

    def types(self) -> frozenset[str]:
        """The types that `type` leaves; "number" never stands without "integer"."""
        declared = self.value("type", list(TYPES))
        names = [declared] if isinstance(declared, str) else declared
        unknown = (
            [name for name in names if name not in TYPES] if isinstance(names, list) else [names]
        )
        if unknown or not names:
            raise GrammarError(
                f"type must be one or several of {', '.join(TYPES)}; got {declared!r:.100}",
                self.where("type"),
                keyword="type",
            )
        return frozenset(names) | ({"integer"} if "number" in names else frozenset())


def view_of(schema: Json, pointer: str, document: Document, open_pointers: frozenset[str]) -> View:
    """Raises `UnsupportedGrammar` for keywords that are not enforced and for recursion.

    open_pointers: the subschemas being lowered around this one; a `$ref` to one of them is recursive.
    """
    if isinstance(schema, bool):
        return View(is_never=not schema)
    if not isinstance(schema, dict):
        raise GrammarError(
            f"a subschema is an object or a boolean, got {type(schema).__name__}", pointer
        )
    view = View()
    if "$ref" in schema:
        where = child(pointer, "$ref")
        target, target_pointer = document.resolve(schema["$ref"], where)
        if target_pointer in open_pointers | {pointer}:
            raise UnsupportedGrammar(
                f"recursive schemas are not supported yet: $ref {schema['$ref']!r} leads back to a schema "
                "around it",
                where,
                keyword="$ref",
            )
        inner = view_of(target, target_pointer, document, open_pointers | {pointer})
        view = View(inner.keywords, inner.refs | {target_pointer}, inner.is_never)
        if document.ref_stands_alone:
            return view
    own = {}
    for name, value in schema.items():
        where = child(pointer, name)
        if name in REFUSED and not _is_vacuous(name, value, schema):
            raise UnsupportedGrammar(f"keyword {name} is not supported", where, keyword=name)
        if name in ENFORCED:
            own[name] = (value, where)
    view = merge(view, View(own))
    for number, part in enumerate(_list_of(schema, "allOf", pointer)):
        where = child(pointer, "allOf", number)
        view = merge(view, view_of(part, where, document, open_pointers | {pointer}))
    return view


def _is_vacuous(name: str, value: Json, schema: dict[str, Json]) -> bool:
    if name in ("then", "else"):
        return "if" not in schema
    if name in ("minContains", "maxContains"):
        return "contains" not in schema
    return value in ({}, True) and name not in ("not", "if", "contains")


def _list_of(schema: dict[str, Json], name: str, pointer: str) -> list[Json]:
    value = schema.get(name, [])
    if not isinstance(value, list) or (name in schema and not value):
        raise GrammarError(f"{name} must be a non-empty list", child(pointer, name), keyword=name)
    return value


def merge(left: View, right: View) -> View:
    """Both sets of assertions together, exactly; refused where they interact in a way that is not enforced."""
    merged = dict(left.keywords)
    _refuse_split_groups(left, right)
    _refuse_split_groups(right, left)
    for name, (value, where) in right.keywords.items():
        if name not in merged or merged[name][0] == value:
            merged.setdefault(name, (value, where))
            continue
        merged[name] = (_combined(name, left, right), where)
    view = View(merged, left.refs | right.refs, left.is_never or right.is_never)
    return View(is_never=True) if view.value("type") == [] else view


def _combined(name: str, left: View, right: View) -> Json:
    ours, theirs = left.value(name), right.value(name)
    if name == "type":
        both = left.types() & right.types()
        return sorted(both - {"integer"} if "number" in both else both)
    if name == "required" and isinstance(ours, list) and isinstance(theirs, list):
        return [*ours, *(item for item in theirs if item not in ours)]
    if name == "properties" and isinstance(ours, dict) and isinstance(theirs, dict):
        shared = [key for key in theirs if key in ours and ours[key] != theirs[key]]
        if not shared:
            return {**ours, **theirs}
    if name in _TIGHTEN and all(isinstance(side, int | float) for side in (ours, theirs)):
        return _TIGHTEN[name](ours, theirs)
    raise UnsupportedGrammar(
        f"keyword {name} is constrained twice (beside $ref, in allOf, or beside anyOf/oneOf), "
        "which is not supported yet",
        right.where(name),
        keyword=name,
    )


def _refuse_split_groups(left: View, right: View) -> None:
    """`additionalProperties` and `items` speak of what their own sibling keywords left over."""
    extra = left.value("additionalProperties", True)
    declared = left.value("properties", {})
    others = right.value("properties", {})
    is_split = extra not in (True, {}) and isinstance(others, dict) and others.keys() - declared
    if is_split:
        raise UnsupportedGrammar(
            "additionalProperties beside properties of another part (beside $ref, in allOf, or beside "
            "anyOf/oneOf) is not supported yet",
            left.where("additionalProperties"),
            keyword="additionalProperties",
        )
    for name in ("items", "additionalItems"):
        if name in left.keywords and left.value("prefixItems") != right.value(
            "prefixItems", left.value("prefixItems")
        ):
            raise UnsupportedGrammar(
                f"{name} beside prefixItems of another part is not supported yet",
                left.where(name),
                keyword=name,
            )
