"""What the embedded model samples under constraints always matches them, at temperature 1."""

import random
import re
from collections.abc import Iterator

import pytest

from umbel.runtime.engine import Engine
from umbel.runtime.outputs import FinishReason, Result
from umbel.runtime.params import SamplingParams

NUM_REGEXES = 200
NUM_SEEDS = 10
MAX_TOKENS = 24
ATOMS = (
    "a",
    "b",
    "-",
    " ",
    "é",
    "7",
    "[a-f]",
    "[^x]",
    r"\d",
    r"\w",
    r"\s",
    ".",
    "(?i:yes)",
    "日本",
)
# Groups repeat a few times only: the oracle, `re`, takes exponential time on stars of stars.
FEW = ("", "", "", "?", "{2}")
MANY = ("", "", "", "?", "*", "+", "{2}", "{1,3}", "{0,2}?")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(num_blocks=1024, max_running=256) as made:
        yield made


def random_regex(rng: random.Random, depth: int = 3) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return rng.choice(ATOMS) + rng.choice(MANY)
    if kind < 0.7:
        return "".join(random_regex(rng, depth - 1) for _ in range(rng.randint(2, 3)))
    options = "|".join(random_regex(rng, depth - 1) for _ in range(rng.randint(2, 3)))
    return f"(?:{options}){rng.choice(FEW)}"


def test_200_random_regexes_hold_for_10_seeds_each(engine: Engine) -> None:
    rng = random.Random(20)
    patterns = [random_regex(rng) for _ in range(NUM_REGEXES)]
    params = [
        SamplingParams(regex=pattern, seed=seed, max_tokens=MAX_TOKENS)
        for pattern in patterns
        for seed in range(NUM_SEEDS)
    ]

    results = engine.generate_batch(["Write something:"] * len(params), params)

    wrong = [
        (param.regex, result.text if isinstance(result, Result) else result)
        for param, result in zip(params, results, strict=True)
        if not isinstance(result, Result) or not re.fullmatch(param.regex or "", result.text)
    ]
    assert wrong == []


def test_choices_are_answered_by_one_of_them_and_by_several_over_seeds(engine: Engine) -> None:
    choices = (" red", " reddish", " blue", " blue sky", " grün", " 0.5", " yes\n")
    params = [SamplingParams(choices=choices, seed=seed) for seed in range(60)]

    results = engine.generate_batch(["My favourite colour is"] * len(params), params)

    texts = [result.text for result in results if isinstance(result, Result)]
    assert len(texts) == len(params)
    assert set(texts) <= set(choices)
    assert len(set(texts)) >= 3


def test_a_constraint_that_is_complete_stops_by_itself(engine: Engine) -> None:
    result = engine.generate("Pick one:", regex="[ab]{3}", temperature=0)

    assert result.finish_reason is FinishReason.STOP
    assert re.fullmatch("[ab]{3}", result.text)
