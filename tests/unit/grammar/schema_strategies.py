"""Random JSON Schemas over a small world, and the values of that world."""

import random
from typing import Any

NAMES = ["a", "b", "ab", ""]
UNIVERSE: list[Any] = [
    *(None, True, False, 0, 1, 2, 3, -1, 1.5, 0.5, "", "a", "b", "ab", "abc", "ba"),
    *(
        [],
        [0],
        [1],
        ["a"],
        [1, 1],
        [1, 2],
        [0, "a"],
        ["a", "b", "a"],
        [[]],
        [[1], [1]],
        [None, 1, "ab"],
    ),
    *({}, {"a": 1}, {"a": "a"}, {"b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": "b"}, {"ab": True}),
    *(
        {"": None},
        {"a": {"a": 1}},
        {"a": {"b": 1}},
        {"a": [], "ab": [1]},
        {"a": 1, "b": 1, "ab": 1},
    ),
    *({"b": {"a": 2, "b": []}}, {"c": 1}, {"a": None, "c": "abc"}),
]


def random_schema(rng: random.Random, depth: int, *, references: bool = False) -> Any:
    """Every keyword that the algebra knows, with small values."""
    if depth <= 0:
        return _leaf(rng)
    schema: dict[str, Any] = {}
    for part in rng.sample(_PARTS, rng.randint(1, 2)):
        schema.update(
            part(rng, lambda: random_schema(rng, depth - rng.randint(1, 2), references=references))
        )
    if references and rng.random() < 0.2:
        schema["$ref"] = "#/$defs/shared"
    return schema


def _leaf(rng: random.Random) -> Any:
    return rng.choice(
        [
            True,
            *([False] if rng.random() < 0.3 else [{}]),
            {
                "type": rng.choice(
                    ["null", "boolean", "integer", "number", "string", "array", "object"]
                )
            },
            {"enum": rng.sample(UNIVERSE, rng.randint(1, 4))},
            {"const": rng.choice(UNIVERSE)},
            {"minimum": rng.randint(-1, 3)},
            {"exclusiveMaximum": rng.randint(0, 3), "type": "integer"},
            {"multipleOf": rng.choice([1, 2, 0.5, 1.5])},
            {"minLength": rng.randint(0, 3), "type": ["string", "null"]},
            {"maxLength": rng.randint(0, 3)},
            {"pattern": rng.choice(["^a", "b$", "^(ab?)*$", "a.", "^$"])},
            {"type": "array", "maxItems": rng.randint(0, 2)},
            {"required": rng.sample(NAMES, rng.randint(1, 2))},
        ]
    )


def _combined(rng: random.Random, inner: Any) -> dict[str, Any]:
    name = rng.choice(["allOf", "anyOf", "oneOf"])
    return {name: [inner() for _ in range(rng.randint(1, 3))]}


def _negated(rng: random.Random, inner: Any) -> dict[str, Any]:
    return {"not": inner()}


def _conditional(rng: random.Random, inner: Any) -> dict[str, Any]:
    return {"if": inner(), rng.choice(["then", "else"]): inner()}


def _object(rng: random.Random, inner: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {n: inner() for n in rng.sample(NAMES, 2)}}
    if rng.random() < 0.5:
        schema["required"] = rng.sample(NAMES, 1)
    if rng.random() < 0.5:
        schema["additionalProperties"] = inner()
    if rng.random() < 0.3:
        schema["patternProperties"] = {rng.choice(["^a", "b", "^$"]): inner()}
    return schema


def _object_counts(rng: random.Random, inner: Any) -> dict[str, Any]:
    low = rng.randint(0, 2)
    return {rng.choice(["minProperties", "maxProperties"]): low, "propertyNames": inner()}


def _dependent(rng: random.Random, inner: Any) -> dict[str, Any]:
    left, right = rng.sample(NAMES, 2)
    return rng.choice(
        [{"dependentRequired": {left: [right]}}, {"dependentSchemas": {left: inner()}}]
    )


def _array(rng: random.Random, inner: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"prefixItems": [inner() for _ in range(rng.randint(1, 2))]}
    if rng.random() < 0.7:
        schema["items"] = inner()
    if rng.random() < 0.3:
        schema["minItems"] = rng.randint(0, 2)
    return schema


def _contains(rng: random.Random, inner: Any) -> dict[str, Any]:
    schema = {"contains": inner()}
    if rng.random() < 0.5:
        schema["maxContains"] = rng.randint(0, 2)
        schema["minContains"] = rng.randint(0, schema["maxContains"])
    return schema


def _unevaluated(rng: random.Random, inner: Any) -> dict[str, Any]:
    name = rng.choice(["unevaluatedProperties", "unevaluatedItems"])
    return {
        name: rng.choice([False, inner()]),
        "anyOf": [_object(rng, inner), _array(rng, inner)],
    }


def _unique(rng: random.Random, inner: Any) -> dict[str, Any]:
    return {
        "uniqueItems": True,
        "items": rng.choice([{"type": "integer"}, {"type": "string"}, inner()]),
    }


_PARTS = [
    *(_combined, _combined, _negated, _conditional, _object, _object, _object_counts, _dependent),
    *(_array, _contains, _unevaluated, _unique),
]
