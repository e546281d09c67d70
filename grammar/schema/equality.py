"""JSON values by JSON Schema's own notion of type and equality, which is not Python's."""

from fractions import Fraction

from umbel.grammar.schema.load import Json


def types_of(value: Json) -> frozenset[str]:
    """The JSON Schema types of a value: an integral number is an integer and a number."""
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    for kind, name in ((float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return frozenset({name})
    return frozenset({"object"})


def canonical(value: Json) -> str:
    """Equal for exactly the values that JSON Schema calls equal (1 and 1.0, not 1 and true)."""
    if isinstance(value, dict):
        inner = sorted((name, canonical(item)) for name, item in value.items())
        return f"object {inner}"
    if isinstance(value, list):
        return f"array {[canonical(item) for item in value]}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"number {Fraction(repr(value))}"
    return f"{type(value).__name__} {value!r}"
