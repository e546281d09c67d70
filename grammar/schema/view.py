"""A subschema as the set of its assertions, with `$ref` and `allOf` folded in and the unsupported
refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.schema.equality import canonical
from umbel.grammar.schema.keywords import (
    ENFORCED,
    REFUSED,
    TYPES,
    asserts_nothing,
    check_value,
)
from umbel.grammar.schema.load import Document, Json, child

_TIGHTEN: dict[str, Callable[[Json, Json], Json]] = {
    **dict.fromkeys(("minLength", "minItems", "minProperties", "minimum"), max),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties", "maximum"), min),
}


@dataclass(frozen=True, slots=True)
class View:
    """keywords: name to (value, pointer), in order of appearance. refs: pointers of the `$ref`s
    passed.

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
        declared = self.value("type", TYPES)
        names = frozenset([declared] if isinstance(declared, str) else declared)
        return names | {"integer"} if "number" in names else names


def view_of(schema: Json, pointer: str, document: Document, open_pointers: frozenset[str]) -> View:
    """Raises `UnsupportedGrammar` for keywords that are not enforced and for recursion.

    open_pointers: the subschemas being lowered around this one; a `$ref` to one of them is
    recursive.
    """
    if isinstance(schema, bool):
        return View(is_never=not schema)
    if not isinstance(schema, dict):
        raise GrammarError(
            f"a subschema is an object or a boolean, got {type(schema).__name__}", pointer
        )
    _check_keywords(schema, pointer)
    inside = open_pointers | {pointer}
    view = View()
    if "$ref" in schema:
        view = _target_of(schema["$ref"], child(pointer, "$ref"), document, inside)
        if document.ref_stands_alone:
            return view
    own = {
        name: (value, child(pointer, name))
        for name, value in schema.items()
        if name in ENFORCED and name not in ("$ref", "allOf")
    }
    view = merge(view, View(own))
    for number, part in enumerate(schema.get("allOf", ())):
        view = merge(view, view_of(part, child(pointer, "allOf", number), document, inside))
    return view


def _check_keywords(schema: dict[str, Json], pointer: str) -> None:
    for name, value in schema.items():
        if name in ENFORCED:
            check_value(name, value, child(pointer, name))
        elif name in REFUSED and not asserts_nothing(name, value, schema):
            raise UnsupportedGrammar(
                f"keyword {name} is not supported", child(pointer, name), keyword=name
            )


def _target_of(ref: str, where: str, document: Document, inside: frozenset[str]) -> View:
    target, pointer = document.resolve(ref, where)
    if pointer in inside:
        raise UnsupportedGrammar(
            f"recursive schemas are not supported yet: $ref {ref!r} leads back to a schema "
            "around it",
            where,
            keyword="$ref",
        )
    view = view_of(target, pointer, document, inside)
    return View(view.keywords, view.refs | {pointer}, view.is_never)


def merge(left: View, right: View) -> View:
    """Both sets of assertions together, exactly; refused where they interact in a way that is not
    enforced.
    """
    merged = dict(left.keywords)
    _refuse_split_groups(left, right)
    _refuse_split_groups(right, left)
    for name, (value, where) in right.keywords.items():
        if name not in merged or canonical(merged[name][0]) == canonical(value):
            merged.setdefault(name, (value, where))
        elif name == "const":
            merged["enum"] = ([], where)  # two different values: none is left
        else:
            merged[name] = (_combined(name, left, right), where)
    view = View(merged, left.refs | right.refs, left.is_never or right.is_never)
    return View(is_never=True) if view.value("type") == [] else view


def _combined(name: str, left: View, right: View) -> Json:
    ours, theirs = left.value(name), right.value(name)
    if name == "type":
        both = left.types() & right.types()
        return sorted(both - {"integer"} if "number" in both else both)
    if name == "enum":
        others = {canonical(value) for value in theirs}
        return [value for value in ours if canonical(value) in others]
    if name == "required":
        return [*ours, *(item for item in theirs if item not in ours)]
    if name == "properties":
        shared = [key for key in theirs if key in ours and ours[key] != theirs[key]]
        if not shared:
            return {**ours, **theirs}
    if name in _TIGHTEN:
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
    if extra not in (True, {}) and others.keys() - declared.keys():
        raise UnsupportedGrammar(
            "additionalProperties beside properties of another part (beside $ref, in allOf, or "
            "beside anyOf/oneOf) is not supported yet",
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
