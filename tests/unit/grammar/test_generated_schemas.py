"""Schemas and instances by hypothesis-jsonschema: outputs are valid, valid instances accepted."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument, Unsatisfiable
from hypothesis_jsonschema import from_schema
from unit.grammar.generated_schemas import check_instance_is_accepted, check_schema, schemas
from unit.grammar.oracles import trained_vocabulary

from umbel.grammar import compile_json_schema
from umbel.grammar.check import check_instance


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(schemas, st.randoms(use_true_random=False), st.data())
def test_outputs_are_valid_and_valid_instances_accepted(
    schema: Any, rng: random.Random, data: st.DataObject
) -> None:
    tally: Counter[str] = Counter()

    constraint = check_schema(schema, trained_vocabulary(), rng, tally, samples=2)

    if constraint is not None:
        try:
            instance = data.draw(from_schema(schema))
        except (
            InvalidArgument,
            Unsatisfiable,
        ):  # the generator gives up on some schemas that have instances
            return
        check_instance_is_accepted(schema, constraint, instance, tally)


@pytest.mark.parametrize("low", [1, 2, 4])
@pytest.mark.parametrize(
    "others",
    [
        {},
        {"additionalProperties": {"const": 10**20}},
        {"properties": {"": False, "é": False}},
        {"properties": {"a": True}, "required": ["a"]},
        {"patternProperties": {"^a": True}, "additionalProperties": False},
        {"propertyNames": {"maxLength": 2}},
    ],
)
def test_undeclared_names_that_must_come_fit_into_the_limit(
    low: int, others: dict[str, Any]
) -> None:
    schema = {"type": "object", "minProperties": low, **others}

    for seed in range(3):
        check_schema(schema, trained_vocabulary(), random.Random(seed), Counter(), samples=2)


@pytest.mark.parametrize("value", ["1.4", "2.9000", "0.30", "-1.10"])
def test_multiples_of_a_tenth_are_exact(value: str) -> None:
    constraint = compile_json_schema({"multipleOf": 0.1}, trained_vocabulary())

    assert check_instance(constraint, value).is_accepted
