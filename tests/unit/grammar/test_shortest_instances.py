"""The closing cost of a schema is the size of its shortest instance, and that is limit enough."""

import json
import random
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import jsonschema
import pytest
from unit.grammar.oracles import byte_vocabulary, random_walk, text_of

from umbel.grammar import compile_json_schema

# Schemas of values, each with its shortest instance.
VALUES: list[tuple[dict[str, Any], Any]] = [
    ({"type": "integer"}, 0),
    ({"type": "integer", "minimum": 1000}, 1000),
    ({"type": "string"}, ""),
    ({"type": "string", "minLength": 4}, "aaaa"),
    ({"type": "boolean"}, True),
    ({"enum": ["seventeen", "two", None]}, None),
    ({"type": "array", "items": {"type": "null"}, "minItems": 2}, [None, None]),
    ({"type": "object", "properties": {"k": {"const": 5}}, "required": ["k"]}, {"k": 5}),
]
NAMES = ["a", "bb", "long_name", "x" * 12, "c", "dd"]


def random_object(rng: random.Random) -> tuple[dict[str, Any], int]:
    """A schema, and the bytes of its shortest instance, found by trying all sets of properties."""
    names = rng.sample(NAMES, rng.randint(1, 5))
    values = {name: rng.choice(VALUES) for name in names}
    required = [name for name in names if rng.random() < 0.3]
    extra = rng.choice([False, True, rng.choice(VALUES)])
    low = rng.randint(0, len(names) + (2 if extra else 0))
    schema = {
        "type": "object",
        "properties": {name: schema for name, (schema, _) in values.items()},
        "required": required,
        "minProperties": low,
        "additionalProperties": extra[0] if isinstance(extra, tuple) else extra,
    }
    if rng.random() < 0.3:
        schema["maxProperties"] = max(low, len(required)) + rng.randint(0, 1)
    shortest = min(
        len(json.dumps(instance, separators=(",", ":")))
        for instance in instances(values, required, extra, low)
    )
    return schema, shortest


def instances(
    values: dict[str, tuple[Any, Any]], required: list[str], extra: Any, low: int
) -> Iterator[dict[str, Any]]:
    optional = [name for name in values if name not in required]
    extra_value = extra[1] if isinstance(extra, tuple) else 0
    for size in range(len(optional) + 1):
        for chosen in combinations(optional, size):
            found = {name: values[name][1] for name in (*required, *chosen)}
            if extra is not False:
                for name in ["", *"nopqrstuvwxyz"][: max(low - len(found), 0)]:
                    found[name] = extra_value
            if len(found) >= low:
                yield found


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_a_limit_of_the_shortest_instance_is_enough(seed: int, any_order: bool) -> None:
    rng = random.Random(seed)
    schema, shortest = random_object(rng)
    constraint = compile_json_schema(schema, byte_vocabulary(), any_order=any_order)

    assert constraint.start().closing_cost == shortest, schema
    for more in (0, 0, 2):
        tokens, complete = random_walk(
            constraint, byte_vocabulary(), rng, limit=shortest + more, use_forced=True
        )
        assert complete, schema
        jsonschema.validate(json.loads(text_of(tokens, byte_vocabulary())), schema)


def test_undeclared_names_run_out() -> None:
    schema = {
        "type": "object",
        "properties": {"long_name": {"type": "integer"}},
        "patternProperties": {"^[ab]$": {"type": "integer"}},
        "additionalProperties": False,
        "minProperties": 3,
    }
    constraint = compile_json_schema(schema, byte_vocabulary())

    assert constraint.start().closing_cost == len('{"long_name":0,"a":0,"b":0}')
