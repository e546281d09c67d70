"""Random schemas: the lowered states accept exactly the valid values of a small world, and lead to
valid texts only.
"""

import json
import random
from typing import Any

import jsonschema
import pytest
from unit.grammar.naive_machine import NaiveMachine, accepts
from unit.grammar.oracles import random_walk, text_of, trained_vocabulary
from unit.grammar.schema_strategies import UNIVERSE, random_schema

from umbel.grammar import UnsatisfiableGrammar, UnsupportedGrammar, compile_json_schema
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.rules import RuleState
from umbel.grammar.schema.front import SchemaOptions, read_schema
from umbel.grammar.schema.load import load_schema

_CLOSING = b'}]"'


def _start(schema: Any, *, any_order: bool) -> RuleState | None:
    try:
        options = SchemaOptions(any_order=any_order)
        return read_schema(load_schema(schema, Limits()), options, Limits()).start
    except UnsatisfiableGrammar:
        return None


def _schema(rng: random.Random) -> Any:
    return {"$defs": {"shared": random_schema(rng, 1)}, **random_schema(rng, 3, references=True)}


@pytest.mark.parametrize("seed", range(80))
def test_exactly_the_valid_values_are_accepted_in_any_order(seed: int) -> None:
    schema = _schema(random.Random(seed))
    validator = jsonschema.Draft202012Validator(schema)
    try:
        start = _start(schema, any_order=True)
    except UnsupportedGrammar:
        return

    for value in UNIVERSE:
        text = json.dumps(value, ensure_ascii=False).encode()
        assert (start is not None and accepts(start, text)) == validator.is_valid(value), value


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("seed", range(80, 140))
def test_no_walk_gets_stuck_or_ends_in_an_invalid_value(seed: int, any_order: bool) -> None:
    rng = random.Random(seed)
    schema = _schema(rng)
    validator = jsonschema.Draft202012Validator(schema)
    try:
        start = _start(schema, any_order=any_order)
    except UnsupportedGrammar:
        return
    if start is None:
        assert not any(validator.is_valid(value) for value in UNIVERSE)
        return

    text = _walk(NaiveMachine.start(start), rng)

    if text is not None:
        assert validator.is_valid(json.loads(text)), text


def _walk(machine: NaiveMachine, rng: random.Random) -> bytes | None:
    """A complete text, or None when it became too long; never stuck."""
    text = b""
    while len(text) < 150:
        possible = machine.next_bytes()
        if machine.can_end and (not possible or rng.random() < 0.5):
            return text
        assert possible, f"no byte can follow {text!r}"
        ascii_only = [value for value in possible if value < 128]
        closing = [value for value in ascii_only if value in _CLOSING]
        chosen = rng.choice(closing if closing and rng.random() < 0.6 else ascii_only or possible)
        machine = machine.step(chosen)
        text += bytes([chosen])
    return None


@pytest.mark.parametrize("seed", range(923, 963))
def test_walks_by_tokens_within_a_limit_are_complete_and_valid(seed: int) -> None:
    rng = random.Random(seed)
    schema = _schema(rng)
    vocabulary = trained_vocabulary()
    try:
        constraint = compile_json_schema(schema, vocabulary, any_order=rng.random() < 0.5)
    except (UnsatisfiableGrammar, UnsupportedGrammar):
        return

    limit = constraint.start().closing_cost + rng.randint(0, 12)
    taken, complete = random_walk(constraint, vocabulary, rng, limit=limit)

    text = text_of(taken, vocabulary)
    assert complete, text
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text
