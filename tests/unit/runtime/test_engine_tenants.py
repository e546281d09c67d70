"""What a server needs of an engine: tenants that share no cache, and constraints compiled apart."""

import threading
from typing import Any

import pytest
from unit.runtime.simulated_engine import EngineRig, rig

from umbel.runtime.errors import InvalidConstraint, UnsatisfiableConstraint
from umbel.runtime.outputs import Chunk, Score
from umbel.runtime.params import CONSTRAINT_KINDS, SamplingParams

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3, 4]
GREEDY = SamplingParams(temperature=0, max_tokens=2)


def test_equal_prompts_share_kv_within_a_tenant_only() -> None:
    with rig() as made:
        first = num_cached(made, "a")
        again = num_cached(made, "a")
        other = num_cached(made, "b")
        nobody = num_cached(made, None)

    assert first == 0
    assert again > 0
    assert (other, nobody) == (0, 0)


def test_a_tenants_scores_reuse_the_tenants_prompts_only() -> None:
    with rig() as made:
        num_cached(made, "a")
        own = score_usage(made, "a")
        foreign = score_usage(made, "b")

    assert own > 0
    assert foreign == 0


def test_a_constraint_is_compiled_without_a_request_and_its_time_is_counted() -> None:
    with rig() as made:
        constraint = made.engine.compile_constraint(SamplingParams(regex="ab|cd"))
        stats = made.engine.compiler_stats()

    assert constraint is not None
    assert constraint.kind == "regex"
    assert stats.num_compiled == 1
    assert stats.compile_s > 0


def test_params_without_a_constraint_compile_to_none() -> None:
    with rig() as made:
        assert made.engine.compile_constraint(SamplingParams()) is None


def test_a_constraint_that_nothing_satisfies_has_an_error_of_its_own() -> None:
    with rig() as made, pytest.raises(UnsatisfiableConstraint) as caught:
        made.engine.compile_constraint(SamplingParams(json_schema=False))

    assert isinstance(caught.value, InvalidConstraint)
    assert caught.value.code == "unsatisfiable_constraint"


def num_cached(made: EngineRig, tenant: str | None) -> int:
    done, chunks = threading.Event(), []

    def listen(chunk: Chunk) -> None:
        chunks.append(chunk)
        if chunk.completion is not None or chunk.error is not None:
            done.set()

    made.engine.submit(PROMPT, GREEDY, listen, tenant=tenant)
    assert done.wait(timeout=30)
    completion = chunks[-1].completion
    assert completion is not None
    return completion.usage.num_cached_tokens


def score_usage(made: EngineRig, tenant: str | None) -> int:
    done, answers = threading.Event(), []

    def listen(answer: Any) -> None:
        answers.append(answer)
        done.set()

    made.engine.submit_score(PROMPT, [1, 2], listen, tenant=tenant)
    assert done.wait(timeout=30)
    assert isinstance(answers[0], Score)
    return answers[0].usage.num_cached_tokens


def test_each_kind_of_constraint_is_compiled() -> None:
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "ab"}}
    kinds: dict[str, Any] = {
        "regex": "ab", "choices": ["ab"], "json_schema": {"type": "object"}, "lark": 'start: "ab"',
        "gbnf": 'root ::= "ab"', "structural_tag": tag,
    }  # fmt: skip
    with rig() as made:
        texts = {
            kind: made.engine.generate(PROMPT, temperature=0, max_tokens=9, **{kind: source}).text
            for kind, source in kinds.items()
            if kind != "json_schema"  # needs more letters than the vocabulary has
        }

    assert set(kinds) == set(CONSTRAINT_KINDS)
    assert set(texts.values()) == {"ab"}
