"""Bad input gets a clear error, and the engine goes on serving others."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from umbel.runtime.engine import Engine
from umbel.runtime.errors import (
    ContextTooLong,
    InvalidConstraint,
    InvalidRequest,
    ModelError,
    UmbelError,
    UnsupportedConstraint,
)
from umbel.runtime.loading.source import find_model

CONTEXT = 128


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(num_blocks=64, context_len=CONTEXT) as made:
        yield made


@pytest.mark.parametrize(
    ("prompt", "options", "error", "words"),
    [
        ("", {}, InvalidRequest, ["empty"]),
        ([], {}, InvalidRequest, ["empty"]),
        ([10**6], {}, InvalidRequest, ["1000000", "49151"]),
        (["a"], {}, InvalidRequest, ["'a'"]),
        ("word " * CONTEXT, {}, ContextTooLong, [str(CONTEXT), "shorten"]),
        ("Hi", {"max_tokens": CONTEXT}, ContextTooLong, [str(CONTEXT), "lower max_tokens to"]),
        ("Hi", {"max_tokens": 0}, InvalidRequest, ["max_tokens=0", "at least 1"]),
        ("Hi", {"max_tokens": 2.5}, InvalidRequest, ["max_tokens=2.5"]),
        ("Hi", {"regex": "(a"}, InvalidConstraint, ["("]),
        ("Hi", {"regex": r"(a)\1"}, UnsupportedConstraint, ["back-reference"]),
        ("Hi", {"json_schema": {"type": "nonsense"}}, InvalidConstraint, ["nonsense"]),
        ("Hi", {"json_schema": "{"}, InvalidConstraint, ["JSON"]),
        ("Hi", {"choices": []}, InvalidRequest, ["choices"]),
        ("Hi", {"regex": "a", "choices": ["b"]}, InvalidRequest, ["regex and choices"]),
        ("Hi", {"temprature": 1}, InvalidRequest, ["temprature", "temperature"]),
        ("Hi", {"temperature": math.nan}, InvalidRequest, ["temperature=nan"]),
        ("Hi", {"temperature": -1}, InvalidRequest, ["temperature=-1"]),
        ("Hi", {"top_p": 0}, InvalidRequest, ["top_p=0"]),
        ("Hi", {"stop": [""]}, InvalidRequest, ["stop"]),
        ("Hi", {"logit_bias": {10**6: 1.0}}, InvalidRequest, ["logit_bias", "1000000"]),
        ("Hi", {"stop_token_ids": [10**6]}, InvalidRequest, ["stop_token_ids"]),
    ],
)
def test_a_bad_request_says_what_was_got_and_the_next_one_is_served(
    engine: Engine, prompt: Any, options: dict[str, Any], error: type[UmbelError], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        engine.generate(prompt, **{"max_tokens": 8, **options})

    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert engine.generate("Hello", max_tokens=2).usage.num_output_tokens >= 1


def _truncated(folder: Path) -> Path:
    path = folder / "truncated.gguf"
    with find_model(None).path.open("rb") as source:
        path.write_bytes(source.read(3_000_000))
    return path


def _not_gguf(folder: Path) -> Path:
    path = folder / "text.gguf"
    path.write_text("this is not a model")
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "missing.gguf", ["missing.gguf"]),
        (_truncated, ["truncated.gguf", "truncated"]),
        (_not_gguf, ["text.gguf"]),
        (lambda folder: folder, ["config.json"]),
    ],
    ids=["no such file", "truncated file", "not a model", "empty folder"],
)
def test_a_model_that_cannot_be_loaded_is_refused_by_name(
    tmp_path: Path, make: Callable[[Path], Path], words: list[str]
) -> None:
    path = make(tmp_path)

    with pytest.raises(ModelError) as caught:
        Engine(str(path))

    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_an_unknown_engine_option_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="max_runing"):
        Engine(max_runing=3)


def test_a_reader_that_stops_reading_does_not_hold_up_others(engine: Engine) -> None:
    stream = engine.stream("Tell me a long story.", max_tokens=100, ignore_eos=True)
    next(stream)

    others = [engine.generate("Hello", max_tokens=4, ignore_eos=True) for _ in range(3)]

    assert [other.usage.num_output_tokens for other in others] == [4, 4, 4]
    rest = list(stream)  # it was kept for the slow reader, joined
    assert rest[-1].completion is not None
    assert rest[-1].completion.usage.num_output_tokens == 100


def test_a_stream_that_is_closed_early_frees_its_blocks(engine: Engine) -> None:
    stream = engine.stream("Tell me a long story.", max_tokens=100, ignore_eos=True)
    next(stream)
    stream.close()

    engine.generate("Hello", max_tokens=2)

    assert engine.stats().num_running == 0
    assert engine.stats().cache.num_leased_blocks == 0
