"""The keywords that assert something: which are enforced and what their values must be, which are
refused.
"""

from collections.abc import Callable

from umbel.grammar.errors import GrammarError
from umbel.grammar.schema.load import Json

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Json) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_bool(value: Json) -> bool:
    return isinstance(value, bool)


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


def _is_schema(value: Json) -> bool:
    return isinstance(value, dict | bool)


def _is_list(value: Json) -> bool:
    return isinstance(value, list)


def _is_type(value: Json) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


_COUNT = (_is_count, "a non-negative integer")
_NUMBER = (_is_number, "a number")
_LIMIT = (
    lambda value: _is_number(value) or _is_bool(value),
    "a number (or, in draft 4, a boolean)",
)
_SCHEMA = (_is_schema, "an object or a boolean")
_SOME = (lambda value: _is_list(value) and bool(value), "a non-empty list")

# Name to (is the value well formed, what is accepted).
ENFORCED: dict[str, tuple[Callable[[Json], bool], str]] = {
    "type": (_is_type, f"one or several of {', '.join(TYPES)}"),
    "enum": (_is_list, "a list"),
    "const": (lambda value: True, "any value"),
    "anyOf": _SOME,
    "oneOf": _SOME,
    "allOf": _SOME,
    "$ref": (_is_text, "a string"),
    "properties": (lambda value: isinstance(value, dict), "an object"),
    "required": (lambda value: _is_list(value) and all(map(_is_text, value)), "a list of names"),
    "additionalProperties": _SCHEMA,
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "items": (lambda value: _is_schema(value) or _is_list(value), "a schema or a list of schemas"),
    "prefixItems": (_is_list, "a list of schemas"),
    "additionalItems": _SCHEMA,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "uniqueItems": (_is_bool, "a boolean"),
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "pattern": (_is_text, "a string"),
    "format": (_is_text, "a string"),
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _LIMIT,
    "exclusiveMaximum": _LIMIT,
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number greater than 0"),
}
# Assertions that this version does not enforce. What is in neither asserts nothing, in any draft.
REFUSED = frozenset(
    {
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"),
        *("patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems"),
        *("contains", "minContains", "maxContains"),
        *("$dynamicRef", "$recursiveRef", "extends", "disallow", "divisibleBy"),
    }
)
_NEVER_VACUOUS = ("not", "if", "contains", "divisibleBy")


def check_value(name: str, value: Json, where: str) -> None:
    """Raises `GrammarError` when an enforced keyword has a value of the wrong shape."""
    is_valid, accepted = ENFORCED[name]
    if not is_valid(value):
        raise GrammarError(f"{name} must be {accepted}; got {value!r:.100}", where, keyword=name)


def asserts_nothing(name: str, value: Json, schema: dict[str, Json]) -> bool:
    """Whether a refused keyword is harmless as it stands: {} or true, or without its partner."""
    if name in ("then", "else"):
        return "if" not in schema
    if name in ("minContains", "maxContains"):
        return "contains" not in schema
    return (value is True or value == {}) and name not in _NEVER_VACUOUS
