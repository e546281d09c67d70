"""With a limit of at least the closing cost, every output completes, whatever is chosen."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from unit.grammar.oracles import (
    byte_vocabulary,
    gappy_vocabulary,
    mask_ids,
    random_pattern,
    random_walk,
    spiky_vocabulary,
    trained_vocabulary,
)
from unit.grammar.schema_strategies import random_schema

from umbel.grammar import (
    UnsatisfiableGrammar,
    UnsupportedGrammar,
    Vocabulary,
    compile_choices,
    compile_json_schema,
    compile_regex,
)


@pytest.mark.parametrize(
    "make", [byte_vocabulary, spiky_vocabulary, gappy_vocabulary, trained_vocabulary]
)
@pytest.mark.parametrize("extra", [0, 1, 3])
def test_a_limit_of_the_closing_cost_always_completes(
    make: Callable[[], Vocabulary], extra: int
) -> None:
    vocabulary = make()
    rng = random.Random(extra)
    for _ in range(40):
        pattern = random_pattern(rng)
        try:
            constraint = compile_regex(pattern, vocabulary)
        except UnsatisfiableGrammar:
            continue
        limit = constraint.start().closing_cost + extra

        taken, complete = random_walk(constraint, vocabulary, rng, limit=limit)

        assert complete, (pattern, limit, taken)
        assert len(taken) <= limit


@pytest.mark.parametrize("use_forced", [False, True])
def test_schemas_complete_within_tight_limits(use_forced: bool) -> None:
    vocabulary = trained_vocabulary()
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 1000}},
        "required": ["name", "age"],
    }
    constraint = compile_json_schema(schema, vocabulary)
    rng = random.Random(2)

    for extra in range(12):
        limit = constraint.start().closing_cost + extra
        taken, complete = random_walk(
            constraint, vocabulary, rng, limit=limit, use_forced=use_forced
        )
        assert complete
        assert len(taken) <= limit


@pytest.mark.parametrize("any_order", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_limit_that_is_far_forbids_nothing(seed: int, any_order: bool) -> None:
    """Whatever may come can be completed: optional properties and items too."""
    vocabulary = trained_vocabulary()
    rng = random.Random(seed)
    for _ in range(12):
        schema = random_schema(rng, 3)
        try:
            constraint = compile_json_schema(schema, vocabulary, any_order=any_order)
        except (UnsatisfiableGrammar, UnsupportedGrammar):
            continue
        matcher = constraint.start()
        for _ in range(25):
            allowed = mask_ids(matcher, vocabulary)
            assert mask_ids(matcher, vocabulary, budget=10**6) == allowed, (schema, matcher)
            if not allowed:
                break
            assert matcher.advance(rng.choice(sorted(allowed)))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {"type": "integer"}, "b": True}, "type": "object"},
        {"properties": {"a": True, "b": {"type": "object"}}, "required": ["b"], "type": "object"},
        {"type": "array"},
        {"type": "object", "additionalProperties": {"type": "array", "minItems": 2}},
    ],
)
def test_optional_parts_are_allowed_where_they_fit(schema: dict[str, Any]) -> None:
    vocabulary = byte_vocabulary()
    matcher = compile_json_schema(schema, vocabulary).start()
    assert matcher.advance(ord("[" if schema["type"] == "array" else "{"))
    for token_id in mask_ids(matcher, vocabulary):
        after = matcher.clone()
        after.advance(token_id)
        assert token_id in mask_ids(matcher, vocabulary, budget=20 + after.closing_cost)


def test_the_closing_cost_of_a_literal_is_its_fewest_tokens() -> None:
    vocabulary = Vocabulary(
        [bytes([v]) for v in range(256)] + [b"hell", b"ello", b"o wo"], [], size=300
    )
    matcher = compile_choices(["hello world"], vocabulary).start()

    assert matcher.closing_cost == 5  # hell|o wo|r|l|d
    assert matcher.advance(vocabulary.ids_by_bytes[b"hell"][0])
    assert matcher.closing_cost == 4


def test_the_cost_falls_by_one_along_the_best_token() -> None:
    vocabulary = trained_vocabulary()
    matcher = compile_json_schema({"const": {"name": "Ada", "age": 36}}, vocabulary).start()

    while matcher.closing_cost:
        cost = matcher.closing_cost
        matcher.advance(min(mask_ids(matcher, vocabulary, cost)))
        assert matcher.closing_cost <= cost - 1

    assert matcher.accepting


def test_a_budget_leaves_out_tokens_that_lead_too_far() -> None:
    vocabulary = byte_vocabulary()
    matcher = compile_regex("a|bcd", vocabulary).start()

    assert mask_ids(matcher, vocabulary, 1) == {ord("a")}
    assert mask_ids(matcher, vocabulary, 2) == {ord("a")}
    assert mask_ids(matcher, vocabulary, 3) == {ord("a"), ord("b")}
    assert mask_ids(matcher, vocabulary) == {ord("a"), ord("b")}


def test_a_budget_below_the_closing_cost_gives_the_plain_mask() -> None:
    vocabulary = byte_vocabulary()
    matcher = compile_regex("abc|xyz", vocabulary).start()

    assert mask_ids(matcher, vocabulary, 2) == {ord("a"), ord("x")}


def test_eos_stays_allowed_with_any_budget() -> None:
    vocabulary = byte_vocabulary()
    matcher = compile_regex("(abc)?", vocabulary).start()

    assert mask_ids(matcher, vocabulary, 1) == vocabulary.eos_ids


def test_costs_count_tokens_across_missing_bytes() -> None:
    vocabulary = gappy_vocabulary()  # a, bc, ab, cb, d, add
    matcher = compile_regex("(bc){3}d", vocabulary).start()

    assert matcher.closing_cost == 4
