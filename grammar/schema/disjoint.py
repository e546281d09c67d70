"""Whether two subschemas provably share no instance: what makes oneOf the same as anyOf."""

from umbel.grammar.errors import GrammarError
from umbel.grammar.schema.equality import canonical, types_of
from umbel.grammar.schema.load import Document, child
from umbel.grammar.schema.view import View, view_of

_MAX_DEPTH = 4  # nested discriminating properties


def are_disjoint(
    left: View, right: View, document: Document, around: frozenset[str], depth: int = 0
) -> bool:
    """True only if no instance satisfies both; False may also mean that it could not be decided."""
    if left.is_never or right.is_never or not _types(left) & _types(right):
        return True
    left_values, right_values = _values(left), _values(right)
    if left_values is not None and right_values is not None:
        return not left_values & right_values
    if _types(left) & _types(right) != {"object"} or depth >= _MAX_DEPTH:
        return False
    return any(
        _property_differs(name, left, right, document, around, depth)
        for name in _required_properties(left) & _required_properties(right)
    )


def _types(view: View) -> frozenset[str]:
    """The types an instance can have; integers count as both, so 1 and 1.0 overlap."""
    types = view.types()
    for name in ("const", "enum"):
        if name in view.keywords:
            value = view.value(name)
            values = [value] if name == "const" else value
            types &= frozenset().union(*map(types_of, values))
    return types


def _values(view: View) -> set[str] | None:
    if "const" in view.keywords:
        return {canonical(view.value("const"))}
    values = view.value("enum")
    return None if values is None else {canonical(value) for value in values}


def _required_properties(view: View) -> set[str]:
    properties = view.value("properties", {})
    return {name for name in view.value("required", []) if name in properties}


def _property_differs(
    name: str, left: View, right: View, document: Document, around: frozenset[str], depth: int
) -> bool:
    sides = []
    for view in (left, right):
        where = child(view.where("properties"), name)
        try:
            sides.append(view_of(view.value("properties")[name], where, document, around))
        except GrammarError:
            return False  # reported when the property itself is lowered
    return are_disjoint(sides[0], sides[1], document, around, depth + 1)
