import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from umbel.grammar import (
    Constraint,
    GrammarError,
    UnsupportedGrammar,
    Vocabulary,
    compile_regex,
)
from umbel.grammar.interrupt import check_interrupt
from umbel.runtime import constraints
from umbel.runtime.constraints import ConstraintCompiler, make_vocabulary
from umbel.runtime.errors import (
    EngineClosed,
    EngineError,
    InvalidConstraint,
    UnsupportedConstraint,
)
from umbel.runtime.params import SamplingParams

WAIT_S = 10


class ByteTokenizer:
    def __init__(self) -> None:
        self.token_bytes: list[bytes | None] = [*(bytes([b]) for b in range(256)), None, b"yes"]
        self.eos_ids = frozenset({256})
        self.special_ids = {"<end>": 256}

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(text.encode())


VOCABULARY = make_vocabulary(ByteTokenizer(), 300)


@dataclass
class FakeGrammar:
    """Counts compilations of each source; `answer` makes the outcome."""

    answer: Callable[[Any], Any]
    sources: list[Any] = field(default_factory=list)

    def __call__(self, source: Any, vocabulary: Vocabulary) -> Constraint:
        self.sources.append(source)
        return self.answer(source)


def compiler(grammar: FakeGrammar, *, cache_size: int = 8, workers: int = 1) -> ConstraintCompiler:
    kinds = ("regex", "choices", "json_schema", "lark")
    return ConstraintCompiler(
        VOCABULARY,
        cache_size=cache_size,
        num_workers=workers,
        compilers=dict.fromkeys(kinds, grammar),
    )


def regex(pattern: str) -> SamplingParams:
    return SamplingParams(regex=pattern)


def schema(value: Any) -> SamplingParams:
    return SamplingParams(json_schema=value)


def fresh(source: Any) -> Any:
    return object()


def test_no_constraint_is_none():
    assert compiler(FakeGrammar(fresh)).compile(SamplingParams()) is None


def test_equal_constraints_are_compiled_once():
    grammar = FakeGrammar(fresh)
    cache = compiler(grammar)

    first, second = cache.compile(regex("a+")), cache.compile(regex("a+"))

    assert first is second
    assert grammar.sources == ["a+"]
    assert (cache.stats().num_hits, cache.stats().num_misses) == (1, 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (schema({"a": 1, "b": 2}), schema({"b": 2, "a": 1})),  # the order of properties is kept
        (schema({"const": 1}), schema({"const": True})),
        (schema({"const": 1}), schema({"const": 1.0})),
        (schema({"const": "1"}), schema({"const": 1})),
        (schema(True), schema("true")),
        (schema({1: {}}), schema({"1": {}})),
        (schema(int), schema(str)),
        (regex("a"), SamplingParams(lark="a")),
        (regex("a"), SamplingParams(choices=["a"])),
        (SamplingParams(choices=["a", "b"]), SamplingParams(choices=["b", "a"])),
    ],
)
def test_different_contents_are_compiled_apart(one, other):
    cache = compiler(FakeGrammar(fresh))

    assert cache.compile(one) is not cache.compile(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (schema({"a": [1, None]}), schema({"a": [1, None]})),
        (schema(FakeGrammar), schema(FakeGrammar)),
        (schema(list[int]), schema(list[int])),
        (SamplingParams(choices=["a"]), SamplingParams(choices=("a",), temperature=0.0)),
    ],
)
def test_equal_contents_share_whatever_object_brings_them(one, other):
    cache = compiler(FakeGrammar(fresh))

    assert cache.compile(one) is cache.compile(other)


def test_what_is_no_json_is_left_to_its_compiler_and_never_shared():
    circular: dict[str, Any] = {}
    circular["self"] = circular
    cache = compiler(FakeGrammar(fresh))

    assert cache.compile(schema(circular)) is not cache.compile(schema(circular))


def test_changing_a_schema_after_it_was_submitted_changes_nothing():
    go = threading.Event()
    grammar = FakeGrammar(lambda source: go.wait(WAIT_S) and object())
    cache = compiler(grammar)
    mine = {"type": "string"}

    cache.submit(regex("busy"))
    future = cache.submit(schema(mine))
    mine["type"] = "number"
    go.set()

    future.result(WAIT_S)
    assert grammar.sources[1] == {"type": "string"}


def test_the_least_recently_used_constraint_goes_first():
    grammar = FakeGrammar(fresh)
    cache = compiler(grammar, cache_size=2)

    for pattern in ("a", "b", "a", "c", "a", "b"):
        cache.compile(regex(pattern))

    assert grammar.sources == ["a", "b", "c", "b"]
    assert cache.stats().num_cached == 2


def test_equal_requests_in_flight_share_one_compilation():
    go = threading.Event()
    grammar = FakeGrammar(lambda source: go.wait(WAIT_S) and object())
    cache = compiler(grammar)

    futures = [cache.submit(regex("a")) for _ in range(5)]
    assert cache.stats().num_running == 1
    go.set()

    assert len({id(future.result(WAIT_S)) for future in futures}) == 1
    assert grammar.sources == ["a"]


def test_many_threads_compile_each_content_once():
    grammar = FakeGrammar(fresh)
    cache = compiler(grammar, workers=2)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: cache.compile(regex("a" * (i % 5 + 1))), range(200)))

    assert sorted(grammar.sources) == ["a" * n for n in range(1, 6)]


def test_cancelling_one_request_takes_nothing_from_the_others():
    go = threading.Event()
    cache = compiler(FakeGrammar(lambda source: go.wait(WAIT_S) and object()))
    mine, theirs = cache.submit(regex("a")), cache.submit(regex("a"))

    assert mine.cancel()
    go.set()

    assert theirs.result(WAIT_S) is not None


def raising(error: Exception) -> Callable[[Any], Any]:
    def answer(source: Any) -> Any:
        raise error

    return answer


@pytest.mark.parametrize(
    ("raised", "translated"),
    [(GrammarError, InvalidConstraint), (UnsupportedGrammar, UnsupportedConstraint)],
)
def test_a_verdict_is_translated_kept_and_new_for_each_request(raised, translated):
    grammar = FakeGrammar(raising(raised("'oneOf' overlaps", "/a/oneOf")))
    cache = compiler(grammar)
    errors = []

    for _ in range(2):
        with pytest.raises(InvalidConstraint, match="'oneOf' overlaps") as caught:
            cache.compile(schema({}))
        errors.append(caught.value)

    assert [type(error) for error in errors] == [translated, translated]
    assert (errors[0].param, errors[0].where) == ("json_schema", "/a/oneOf")
    assert errors[0] is not errors[1]
    assert len(grammar.sources) == 1


def test_a_fault_is_not_kept_as_a_verdict():
    outcomes = [MemoryError("no room"), None]

    def answer(source: Any) -> Any:
        error = outcomes.pop(0)
        if error is not None:
            raise error
        return object()

    cache = compiler(FakeGrammar(answer))

    with pytest.raises(EngineError, match="MemoryError: no room"):
        cache.compile(regex("a"))
    assert cache.compile(regex("a")) is not None


def test_closing_releases_whoever_waits_and_refuses_what_comes():
    go = threading.Event()
    cache = compiler(FakeGrammar(lambda source: go.wait(WAIT_S) and object()))
    running, queued = cache.submit(regex("a")), cache.submit(regex("b"))

    cache.close()
    cache.close()

    for future in (running, queued):
        with pytest.raises(EngineClosed):
            future.result(WAIT_S)
    with pytest.raises(EngineClosed):
        cache.submit(regex("c"))
    go.set()


def test_a_vocabulary_fits_the_models_logits():
    padded = make_vocabulary(ByteTokenizer(), 300)
    narrow = make_vocabulary(ByteTokenizer(), 200)

    assert (padded.size, padded.eos_ids) == (300, {256})
    assert (narrow.size, narrow.eos_ids) == (200, frozenset())
    assert padded.text_of(257) == b"yes"
    assert narrow.text_of(257) is None


def test_a_real_regex_masks_tokens_and_a_bad_one_names_the_option():
    cache = ConstraintCompiler(VOCABULARY, cache_size=4)
    row = np.zeros(VOCABULARY.num_words, np.uint32)

    constraint = cache.compile(regex("yes|no"))
    assert constraint is not None
    constraint.start().fill_mask(row)

    allowed = {i for i in range(300) if row[i // 32] >> (i % 32) & 1}
    assert allowed == {ord("y"), ord("n"), 257}
    with pytest.raises(InvalidConstraint) as caught:
        cache.compile(regex("(unclosed"))
    assert caught.value.param == "regex"
    cache.close()


def warming_compiler(
    monkeypatch: pytest.MonkeyPatch, steps: list[Callable[[], None]]
) -> ConstraintCompiler:
    monkeypatch.setattr(constraints, "warm_up_steps", lambda vocabulary: iter(steps))
    grammar = FakeGrammar(lambda source: compile_regex(source, VOCABULARY))
    return ConstraintCompiler(VOCABULARY, cache_size=8, compilers={"regex": grammar}, warm_up=True)


def test_warming_up_lets_requests_pass_and_ends_with_the_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    is_closed = threading.Event()
    done: list[str] = []

    def first() -> None:
        has_begun.set()
        assert may_end.wait(WAIT_S)

    def second() -> None:
        assert is_closed.wait(WAIT_S)

    cache = warming_compiler(monkeypatch, [first, second, lambda: done.append("third")])
    with cache.warming():
        assert has_begun.wait(WAIT_S)
        future = cache.submit(regex("a+"))
        may_end.set()
        assert future.result(WAIT_S) is not None
        cache.close()
        is_closed.set()

    assert cache.stats().num_compiled == 1  # a step is no compilation of a request
    assert done == []


def test_warming_up_pauses_when_the_engine_has_work_and_goes_on_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_begun, may_end, is_over = (threading.Event() for _ in range(3))
    done: list[str] = []

    def first() -> None:
        done.append("first")
        has_begun.set()
        assert may_end.wait(WAIT_S)

    def failing() -> None:
        done.append("failing")
        raise ValueError

    cache = warming_compiler(monkeypatch, [first, failing, is_over.set])
    cache.compile(regex("a"))
    assert done == []  # nobody said that there is time
    with cache.warming():
        assert has_begun.wait(WAIT_S)
    may_end.set()
    cache.compile(regex("a+"))  # behind whatever was begun
    assert done == ["first"]

    with cache.warming():
        assert is_over.wait(WAIT_S)

    assert done == ["first", "failing"]
    cache.close()


CONSTRAINT = object()


def _until_stopped(source: Any) -> Any:
    while True:
        check_interrupt()


def test_a_compilation_out_of_time_is_answered_and_not_kept() -> None:
    answers: list[Callable[[Any], Any]] = [_until_stopped, lambda source: CONSTRAINT]
    grammar = FakeGrammar(lambda source: answers.pop(0)(source))
    made = ConstraintCompiler(
        VOCABULARY, cache_size=8, compilers={"regex": grammar}, max_compile_s=0.05
    )

    with pytest.raises(UnsupportedConstraint, match=r"longer than 0\.05 s"):
        made.submit(SamplingParams(regex="a")).result(WAIT_S)
    assert made.submit(SamplingParams(regex="a")).result(WAIT_S) is CONSTRAINT

    made.close()


def test_a_compilation_that_nobody_waits_for_is_stopped() -> None:
    started = threading.Event()

    def answer(source: Any) -> Any:
        if source == "other":
            return CONSTRAINT
        started.set()
        return _until_stopped(source)

    made = compiler(FakeGrammar(answer))
    waiting = made.submit(SamplingParams(regex="a"))
    assert started.wait(WAIT_S)
    waiting.cancel()

    assert made.submit(SamplingParams(regex="other")).result(WAIT_S) is CONSTRAINT
    made.close()
