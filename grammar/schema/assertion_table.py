"""The keywords of JSON Schema: in which drafts each one asserts something. Everything else is an
annotation.

The table of `docs/json_schema.md` is checked against this one by a test.
"""

from dataclasses import dataclass

_FIRST, _LAST = 4, 9999


@dataclass(frozen=True, slots=True)
class Keyword:
    """Drafts (4, 6, 7, 2019, 2020) in which the keyword asserts. Without `$schema` all of them
    count.
    """

    since: int = _FIRST
    until: int = _LAST


ASSERTIONS: dict[str, Keyword] = {
    **dict.fromkeys(("type", "enum", "$ref", "allOf", "anyOf", "oneOf", "not"), Keyword()),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), Keyword()),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), Keyword()),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), Keyword()),
    **dict.fromkeys(("items", "minItems", "maxItems", "uniqueItems"), Keyword()),
    **dict.fromkeys(("properties", "required", "additionalProperties"), Keyword()),
    **dict.fromkeys(("patternProperties", "minProperties", "maxProperties"), Keyword()),
    "additionalItems": Keyword(until=2019),
    "dependencies": Keyword(until=7),
    **dict.fromkeys(("const", "contains", "propertyNames"), Keyword(since=6)),
    **dict.fromkeys(("if", "then", "else"), Keyword(since=7)),
    **dict.fromkeys(("minContains", "maxContains"), Keyword(since=2019)),
    **dict.fromkeys(("dependentRequired", "dependentSchemas"), Keyword(since=2019)),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), Keyword(since=2019)),
    "prefixItems": Keyword(since=2020),
    "$dynamicRef": Keyword(since=2020),
    "$recursiveRef": Keyword(since=2019, until=2019),
}
# Assertions of draft 3 that later drafts do not have: refused where no later draft is declared.
DRAFT_3 = frozenset({"extends", "disallow", "divisibleBy"})
