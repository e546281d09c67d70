"""JSON arrays and objects: items and properties with the separators between those present."""

from typing import TYPE_CHECKING

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.regex import syntax
from umbel.grammar.regex.syntax import NEVER, Node
from umbel.grammar.schema.load import child
from umbel.grammar.schema.strings import count_of, key_except, string_literal
from umbel.grammar.schema.values import COMMA, any_value, array_of, object_of, pair
from umbel.grammar.schema.view import View

if TYPE_CHECKING:
    from umbel.grammar.schema.lower import Lowering


def lower_array(view: View, lowering: "Lowering", around: frozenset[str]) -> Node:
    """items, prefixItems (or the older list form of items), minItems, maxItems."""
    low, high = count_of(view, "minItems") or 0, count_of(view, "maxItems")
    unique = view.value("uniqueItems", False)
    if unique is True and (high is None or high > 1):
        raise UnsupportedGrammar(
            "uniqueItems is not supported unless maxItems is at most 1",
            view.where("uniqueItems"),
            keyword="uniqueItems",
        )
    prefix, rest_name = _prefix(view)
    heads = [
        lowering.lower(schema, child(view.where(prefix), at), around)
        for at, schema in enumerate(view.value(prefix, []))
    ]
    if high is not None:
        heads = heads[:high]
    tail: Node = NEVER
    if high is None or high > len(heads):
        tail = _open_or(view, rest_name, lowering, around)
    if high is not None and low > high:
        return NEVER
    return array_of(_items(heads, tail, low, high))


def _prefix(view: View) -> tuple[str, str]:
    """The keywords that hold the schemas of the first items and of the rest."""
    prefix, rest = "prefixItems", "items"
    if isinstance(view.value("items"), list):  # drafts before 2020-12
        prefix, rest = "items", "additionalItems"
    return prefix, rest


def _items(heads: list[Node], tail: Node, low: int, high: int | None) -> Node:
    """Built from the end: after each item either the array may end, or a comma and more items
    follow.
    """
    count = len(heads)
    room = None if high is None else max(high - count, 0)
    more = syntax.separated(tail, COMMA, max(low - count, 0), room)
    # `more` may be empty or not; what follows the last head is nothing, or a comma and at least one
    # item.
    some = syntax.separated(tail, COMMA, max(low - count, 1), room) if room != 0 else NEVER
    if count == 0:
        return more
    following = syntax.cat([COMMA, some])
    rest = syntax.optional(following) if low <= count else following
    for at in range(count - 1, -1, -1):
        rest = syntax.cat([heads[at], rest])
        if at > 0:
            rest = syntax.cat([COMMA, rest])
        if low <= at:
            rest = syntax.optional(rest)
    return rest


def _open_or(view: View, name: str, lowering: "Lowering", around: frozenset[str]) -> Node:
    """The language of a subschema keyword; any value when it is absent."""
    if name not in view.keywords:
        return any_value(max(lowering.limits.max_value_depth - 1, 0))
    return lowering.lower(view.value(name), view.where(name), around)


def lower_object(view: View, lowering: "Lowering", around: frozenset[str]) -> Node:
    """properties in schema order, required, additionalProperties, minProperties, maxProperties."""
    properties = view.value("properties", {})
    required = list(dict.fromkeys(view.value("required", [])))
    items: list[tuple[Node, bool]] = []
    for name, schema in properties.items():
        value = lowering.lower(schema, child(view.where("properties"), name), around)
        items.append((pair(string_literal(name), value), name in required))
    undeclared = [name for name in required if name not in properties]
    emits_extra = "additionalProperties" in view.keywords or "properties" not in view.keywords
    extra: Node = NEVER
    if emits_extra or undeclared:
        extra = _open_or(view, "additionalProperties", lowering, around)
    items += [(pair(string_literal(name), extra), True) for name in undeclared]
    if not emits_extra or syntax.is_never(extra):
        _check_counts(view, len(required), len(items))
        return object_of(syntax.series(items, COMMA)) if _possible(items) else NEVER
    key = key_except([*properties, *undeclared], lowering.limits)
    low, high = _extra_counts(view, len(items))
    more = syntax.separated(pair(key, extra), COMMA, max(low, 1), high)
    items.append((more, low > 0))
    return object_of(syntax.series(items, COMMA)) if _possible(items) else NEVER


def _possible(items: list[tuple[Node, bool]]) -> bool:
    return not any(required and syntax.is_never(node) for node, required in items)


def _check_counts(view: View, num_required: int, num_all: int) -> None:
    """minProperties and maxProperties of an object with fixed names: only where they change
    nothing.
    """
    low, high = count_of(view, "minProperties") or 0, count_of(view, "maxProperties")
    if low > num_required:
        raise _counting(view, "minProperties")
    if high is not None and high < num_all:
        raise _counting(view, "maxProperties")


def _extra_counts(view: View, num_declared: int) -> tuple[int, int | None]:
    """How many undeclared properties there may be. Their names may repeat, so only one can be
    demanded.
    """
    low, high = count_of(view, "minProperties") or 0, count_of(view, "maxProperties")
    if low > 1 or (low == 1 and num_declared):
        raise _counting(view, "minProperties")
    if high is not None and (num_declared or high == 0):
        raise _counting(view, "maxProperties")
    return low, high


def _counting(view: View, name: str) -> UnsupportedGrammar:
    return UnsupportedGrammar(
        f"{name} {view.value(name)} is not supported here: it would need counting the optional "
        "properties",
        view.where(name),
        keyword=name,
    )
