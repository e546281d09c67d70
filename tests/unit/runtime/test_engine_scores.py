"""Scores that are no numbers are errors of their own requests."""

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Any

import pytest
from unit.runtime.simulated_engine import EngineRig, rig

from umbel.runtime.errors import EngineError
from umbel.runtime.outputs import TokenLogprob

PROMPT = [1, 2, 3, 4, 5, 1, 2]
BROKEN_ID = 9


def break_a_token(made: EngineRig) -> None:
    """The model has no probability for one token."""
    score = made.sampler.score

    def broken(*args: Any) -> Sequence[TokenLogprob]:
        return [
            replace(one, logprob=nan) if one.token_id == BROKEN_ID else one for one in score(*args)
        ]

    made.sampler.score = broken  # type: ignore[method-assign,assignment]  # a fault


def test_a_continuation_without_a_probability_is_an_error() -> None:
    with rig() as made:
        break_a_token(made)
        with pytest.raises(EngineError, match=f"token {BROKEN_ID} is nan"):
            made.engine.score(PROMPT, [[3], [4, BROKEN_ID, BROKEN_ID]])

        assert len(made.engine.score(PROMPT, [[3], [4]])) == 2
        made.check_nothing_is_held()


def test_a_prompt_without_a_probability_fails_alone() -> None:
    with rig() as made:
        break_a_token(made)
        broken, good = made.engine.generate_batch(
            [[1, BROKEN_ID, 3], PROMPT], prompt_logprobs=0, max_tokens=2
        )

        assert isinstance(broken, EngineError)
        assert not isinstance(good, Exception)
        made.check_nothing_is_held()
