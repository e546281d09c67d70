"""anyOf and oneOf over branches that only list values: as jsonschema has it, and any number of
them.
"""

import json
import random
from typing import Any

import jsonschema
import pytest
from unit.grammar.oracles import trained_vocabulary

from umbel.grammar import Constraint, UnsatisfiableGrammar, compile_json_schema
from umbel.grammar.check import check_instance

_VALUES: list[Any] = [None, True, 0, 1, 2.0, 1.5, "", "a", "1", [], [1], {}, {"a": 1}]


def _branch(rng: random.Random) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        return {"type": rng.choice(["string", "integer", "array", "object"])}
    if kind == 1:
        return {"type": "integer", "enum": rng.sample(_VALUES, 3)}
    if kind == 2:
        return {"enum": rng.sample(_VALUES, 2), "title": "some"}
    return {"const": rng.choice(_VALUES)}


@pytest.mark.parametrize("seed", range(60))
def test_the_verdicts_are_those_of_jsonschema(seed: int) -> None:
    rng = random.Random(seed)
    keyword = rng.choice(["anyOf", "oneOf"])
    schema = {keyword: [_branch(rng) for _ in range(rng.randint(2, 6))]}
    constraint: Constraint | None
    try:
        constraint = compile_json_schema(schema, trained_vocabulary(), any_order=True)
    except UnsatisfiableGrammar:
        constraint = None

    for value in _VALUES:
        accepted = constraint is not None
        accepted = accepted and check_instance(constraint, json.dumps(value)).is_accepted
        assert accepted == jsonschema.Draft202012Validator(schema).is_valid(value), value


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_thousands_of_constants_are_one_enumeration(keyword: str) -> None:
    branches = [{"const": f"name{at}", "description": "one"} for at in range(3_000)]
    constraint = compile_json_schema({keyword: branches}, trained_vocabulary())

    assert check_instance(constraint, '"name2999"').is_accepted
    assert not check_instance(constraint, '"name3000"').is_accepted
