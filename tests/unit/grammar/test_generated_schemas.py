"""Schemas and instances by hypothesis-jsonschema: outputs are valid, valid instances accepted."""

import random
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from hypothesis_jsonschema import from_schema
from unit.grammar.generated_schemas import check_instance_is_accepted, check_schema, schemas
from unit.grammar.oracles import trained_vocabulary


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
        except Unsatisfiable:  # the generator gives up on some schemas that have instances
            return
        check_instance_is_accepted(schema, constraint, instance, tally)
