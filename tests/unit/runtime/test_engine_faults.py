"""The engine on a simulated model: a fault hurts its own request only; closing answers all."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from unit.runtime.simulated_engine import (
    GREEDY,
    PROMPT,
    EngineRig,
    Listener,
    expected_tokens,
    rig,
)

from umbel.grammar import GrammarError, UnsupportedGrammar
from umbel.radix_cache.tree import RadixCache
from umbel.runtime.errors import (
    EngineClosed,
    EngineError,
    UnsupportedConstraint,
)
from umbel.runtime.outputs import Chunk
from umbel.runtime.params import SamplingParams
from umbel.runtime.step import StepPlan


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on() -> None:
    def fail(plan: StepPlan) -> None:
        raise MemoryError("no memory for this step")

    with rig() as made:
        made.runner.before_step = fail
        with pytest.raises(EngineError, match="no memory for this step") as caught:
            made.engine.generate(PROMPT, GREEDY)
        made.runner.before_step = lambda plan: None
        result = made.engine.generate(PROMPT, GREEDY)
        made.check_nothing_is_held()
        stats = made.engine.stats()

    assert isinstance(caught.value.__cause__, MemoryError)
    assert list(result.token_ids) == expected_tokens(PROMPT, 5)
    assert stats.num_failed_steps == 1


class BrokenMatcher:
    """Fails in the middle of an output."""

    def __init__(self, fails_in: str, fault: Exception | None = None) -> None:
        self.fails_in = fails_in
        self.fault = fault or ZeroDivisionError("a bug in the constraint")
        self.finished = False

    def fill_mask(self, row: Any, *, budget: int | None = None) -> None:
        row.fill(0xFFFFFFFF)
        if self.fails_in == "fill_mask":
            raise self.fault

    def advance(self, token_id: int) -> bool:
        if self.fails_in == "advance":
            raise self.fault
        return self.fails_in != "refuse"

    def forced(self, *, budget: int | None = None) -> list[int]:
        if self.fails_in == "forced":
            raise self.fault
        return []

    def start(self) -> "BrokenMatcher":
        if self.fails_in == "start":
            raise self.fault
        return self


@pytest.mark.parametrize("fails_in", ["start", "forced", "fill_mask", "advance", "refuse"])
def test_a_broken_constraint_fails_its_own_request_only(fails_in: str) -> None:
    broken = Listener()
    other = Listener()
    compilers = {"lark": lambda source, vocabulary: BrokenMatcher(fails_in)}
    with rig(compilers=compilers) as made:
        made.engine.submit(PROMPT, SamplingParams(lark="x"), broken)
        made.engine.submit(PROMPT, GREEDY, other)
        last, completion = broken.wait(), other.wait().completion
        made.check_nothing_is_held()

    assert isinstance(last.error, EngineError)
    assert list(completion.token_ids) == expected_tokens(PROMPT, 5)


@pytest.mark.parametrize("fails_in", ["forced", "fill_mask", "advance"])
def test_a_limit_that_a_text_runs_into_is_the_fault_of_its_request(fails_in: str) -> None:
    """As far as a grammar can be checked it is when it is compiled; ambiguity shows in the text."""
    limit = UnsupportedGrammar("the text can be read in more than 1000 ways at once")
    ambiguous = Listener()
    compilers = {"lark": lambda source, vocabulary: BrokenMatcher(fails_in, limit)}
    with rig(compilers=compilers) as made:
        made.engine.submit(PROMPT, SamplingParams(lark="x"), ambiguous)
        last = ambiguous.wait()
        made.check_nothing_is_held()

    assert isinstance(last.error, UnsupportedConstraint)
    assert "lark: the text can be read in more than 1000 ways" in str(last.error)


def test_closing_ends_what_is_under_way_and_leaves_no_engine_thread() -> None:
    running, waiting, compiling = Listener(), Listener(), Listener()
    go_on = threading.Event()

    def slow(source: str, vocabulary: object) -> object:
        assert go_on.wait(timeout=30)
        raise GrammarError("too late")

    made = EngineRig(max_running=1, compilers={"lark": slow})
    gate = made.hold_steps()
    made.engine.submit(PROMPT, SamplingParams(max_tokens=200), running)
    made.engine.submit(PROMPT, SamplingParams(max_tokens=200), waiting)
    made.engine.submit(PROMPT, SamplingParams(lark="x"), compiling)
    assert gate.reached.wait(timeout=30)
    threading.Timer(0.05, gate.open).start()

    made.engine.close()
    made.engine.close()
    go_on.set()

    for listener in (running, waiting, compiling):
        assert isinstance(listener.wait().error, EngineClosed)
    assert not any(thread.name == "umbel-engine" for thread in threading.enumerate())


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.generate(PROMPT),
        lambda engine: engine.generate(PROMPT, regex="a"),
        lambda engine: engine.score(PROMPT, [[1]]),
        lambda engine: engine.reset_cache(),
    ],
)
def test_a_closed_engine_says_so(call: Callable[[Any], object]) -> None:
    made = EngineRig()
    made.engine.close()

    with pytest.raises(EngineClosed):
        call(made.engine)


def test_a_listener_may_close_the_engine() -> None:
    made = EngineRig()
    listener = Listener()

    def close(chunk: Chunk) -> None:
        made.engine.close()
        listener(chunk)

    made.engine.submit(PROMPT, SamplingParams(max_tokens=100), close)

    assert isinstance(listener.wait().error, EngineClosed)
    made.engine.close()


def test_bugs_in_the_step_are_logged_with_their_trace(caplog: pytest.LogCaptureFixture) -> None:
    def fail(plan: StepPlan) -> None:
        raise KeyError("lost")

    with rig() as made, caplog.at_level(logging.ERROR):
        made.runner.before_step = fail
        with pytest.raises(EngineError):
            made.engine.generate(PROMPT, GREEDY)

    assert "computing a step failed" in caplog.text
    assert "Traceback" in caplog.text


def test_a_bug_after_the_model_fails_what_is_running_and_the_engine_goes_on() -> None:
    def lose_everything(*args: object) -> list[object]:
        return []

    with rig() as made:
        made.sampler.score = lose_everything  # type: ignore[method-assign, assignment]
        with pytest.raises(EngineError, match="scheduling a step failed"):
            made.engine.generate(PROMPT, GREEDY, prompt_logprobs=0)
        result = made.engine.generate(PROMPT, GREEDY)
        made.check_nothing_is_held()

    assert list(result.token_ids) == expected_tokens(PROMPT, 5)


def test_an_engine_that_cannot_go_on_answers_everybody_and_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("the cache is broken")

    listener = Listener()
    with rig() as made:
        monkeypatch.setattr(RadixCache, "commit_step", fail)
        monkeypatch.setattr(RadixCache, "discard_step", fail)
        made.engine.submit(PROMPT, GREEDY, listener)

        assert isinstance(listener.wait().error, EngineClosed)
        with pytest.raises(EngineClosed):
            made.engine.generate(PROMPT, GREEDY)
