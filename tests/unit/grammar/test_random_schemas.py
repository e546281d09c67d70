"""Whatever random schema compiles, every text walked through its masks is a valid instance."""

import json
import random
from typing import Any

import jsonschema
import pytest
from unit.grammar.oracles import random_walk, text_of, trained_vocabulary

from umbel.grammar import (
    Constraint,
    UnsatisfiableGrammar,
    UnsupportedGrammar,
    compile_json_schema,
)

NAMES = ["a", "name", "age of", 'q"', "é", ""]


def _scalar(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-30, 30)
    return rng.choice(
        [
            {"type": "null"},
            {"type": "boolean"},
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)},
            {"type": "integer", "exclusiveMinimum": low, "multipleOf": rng.randint(1, 12)},
            {"type": "number", "minimum": low / 8, "exclusiveMaximum": low / 8 + rng.random() * 9},
            {"type": "number", "exclusiveMaximum": low / 7},
            {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 6)},
            {"type": "string", "pattern": rng.choice(["^[ab]+$", "x\\d", '["\\\\]$', "^(a|bc)*"])},
            {"type": "string", "pattern": "^[^x]{2,}$", "maxLength": 5},
            {"type": "string", "format": rng.choice(["date", "time", "ipv4", "uuid", "email"])},
            {"enum": [1, "1", None, [2.0], {"a": True}], "type": rng.choice(["string", "array"])},
            {"const": rng.choice([0, "x\n", [], {"b": [None]}])},
        ]
    )


def _schema(rng: random.Random, depth: int) -> Any:
    if depth == 0:
        return rng.choice([True, {}, _scalar(rng), _scalar(rng), _scalar(rng)])
    inner = [_schema(rng, depth - 1) for _ in range(3)]
    kind = rng.randrange(9)
    if kind == 0:
        return {"type": "array", "items": inner[0], "maxItems": rng.randint(0, 4)}
    if kind == 1:
        low = rng.randint(0, 4)
        return {"type": "array", "prefixItems": inner[:2], "items": inner[2], "minItems": low}
    if kind == 2:
        return {"anyOf": inner[: rng.randint(1, 3)]}
    if kind == 3:
        return {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"k": inner[0]}}]}
    if kind == 4:
        return {"allOf": [inner[0], {"type": ["object", "array", "integer", "string"]}]}
    if kind == 5:
        return {"type": "object", "additionalProperties": inner[0], "maxProperties": 2}
    if kind == 6:
        return {"$ref": "#/$defs/shared", "description": "a shared one"}
    names = rng.sample(NAMES, rng.randint(0, 4))
    schema = {
        "type": "object",
        "properties": {name: rng.choice(inner) for name in names},
        "required": rng.sample(NAMES, rng.randint(0, 2)),
    }
    if rng.random() < 0.5:
        schema["additionalProperties"] = rng.choice([False, True, inner[0]])
    return schema


def _compiled(rng: random.Random) -> tuple[dict[str, Any], Constraint]:
    while True:
        schema = {"$defs": {"shared": _scalar(rng)}, "allOf": [_schema(rng, 2)]}
        try:
            return schema, compile_json_schema(schema, trained_vocabulary())
        except (UnsatisfiableGrammar, UnsupportedGrammar):
            continue


@pytest.mark.parametrize("seed", range(8))
def test_walks_of_random_schemas_validate(seed: int) -> None:
    vocabulary = trained_vocabulary()
    kind = jsonschema.Draft202012Validator
    rng = random.Random(seed)
    for _ in range(12):
        schema, constraint = _compiled(rng)
        validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
        for limit in (None, constraint.start().closing_cost + rng.randint(0, 6)):
            taken, complete = random_walk(
                constraint, vocabulary, rng, limit=limit, use_forced=True, soft_limit=25
            )

            text = text_of(taken, vocabulary).decode()
            assert complete, (schema, text)
            error = next(validator.iter_errors(json.loads(text)), None)
            assert error is None, (schema, text, error)
