"""The engine on a simulated model: listeners, calls that enter together, cancelled calls."""

import threading

import pytest
from unit.runtime.simulated_engine import (
    GREEDY,
    PROMPT,
    Listener,
    rig,
)

from umbel.grammar import GrammarError
from umbel.runtime.errors import (
    EngineError,
    InvalidConstraint,
    RequestCancelled,
)
from umbel.runtime.outputs import Chunk, Score
from umbel.runtime.params import SamplingParams


def test_a_listener_hears_chunks_and_one_last_completion() -> None:
    listener = Listener()
    with rig() as made:
        made.engine.submit(PROMPT, GREEDY, listener)
        completion = listener.wait().completion

    assert [chunk.completion is not None for chunk in listener.events] == [False] * 4 + [True]
    assert "".join(chunk.text for chunk in listener.events) == completion.text
    assert sum((chunk.token_ids for chunk in listener.events), ()) == completion.token_ids


def test_a_listener_that_raises_is_logged_and_hurts_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bad_listener(chunk: Chunk) -> None:
        raise RuntimeError("listener is broken")

    with rig() as made:
        made.engine.submit(PROMPT, GREEDY, bad_listener)
        result = made.engine.generate([5, 5, 5], GREEDY)
        made.check_nothing_is_held()

    assert len(result.token_ids) == 5
    assert "listener is broken" in caplog.text


def test_a_listener_that_waits_for_the_engine_gets_an_error() -> None:
    caught: list[Exception] = []
    done = threading.Event()

    def listener(chunk: Chunk) -> None:
        try:
            made.engine.generate(PROMPT, GREEDY)
        except EngineError as error:
            caught.append(error)
        finally:
            done.set()

    with rig() as made:
        made.engine.submit(PROMPT, GREEDY, listener)
        assert done.wait(timeout=30)

    assert "would never end" in str(caught[0])


def test_waiting_inside_hold_is_an_error() -> None:
    with rig() as made:
        with made.engine.hold(), pytest.raises(EngineError, match=r"inside hold\(\)"):
            made.engine.generate(PROMPT, GREEDY)
        made.check_nothing_is_held()


def test_calls_submitted_within_hold_enter_together() -> None:
    listeners = [Listener() for _ in range(3)]
    with rig() as made:
        with made.engine.hold():
            for index, listener in enumerate(listeners):
                made.engine.submit([index + 1, 2, 3], GREEDY, listener)
        for listener in listeners:
            listener.wait()

    assert len(made.runner.steps[0].requests) == 3


def test_cancelling_ends_a_call_once() -> None:
    listener = Listener()
    with rig() as made:
        gate = made.hold_steps()
        handle = made.engine.submit(PROMPT, SamplingParams(max_tokens=100), listener)
        assert gate.reached.wait(timeout=30)
        handle.cancel()
        handle.cancel()
        gate.open()
        last = listener.wait()
        made.check_nothing_is_held()

    assert isinstance(last.error, RequestCancelled)
    assert sum(chunk.error is not None for chunk in listener.events) == 1
    assert len(made.runner.steps) <= 2


def test_cancelling_after_the_end_does_nothing() -> None:
    listener = Listener()
    with rig() as made:
        handle = made.engine.submit(PROMPT, GREEDY, listener)
        listener.wait()
        handle.cancel()
        made.check_nothing_is_held()

    assert listener.events[-1].completion is not None


def test_a_call_can_be_cancelled_while_its_constraint_is_compiled() -> None:
    go_on = threading.Event()

    def slow(source: str, vocabulary: object) -> object:
        assert go_on.wait(timeout=30)
        raise GrammarError("too late")

    listener = Listener()
    with rig(compilers={"lark": slow}) as made:
        handle = made.engine.submit(PROMPT, SamplingParams(lark="x"), listener)
        handle.cancel()
        last = listener.wait()
        go_on.set()
        made.check_nothing_is_held()

    assert isinstance(last.error, RequestCancelled)
    assert len(listener.events) == 1


def test_a_compiling_constraint_holds_up_nobody_else() -> None:
    go_on = threading.Event()

    def slow(source: str, vocabulary: object) -> object:
        assert go_on.wait(timeout=30)
        raise GrammarError("it was not even valid")

    listener = Listener()
    with rig(compilers={"lark": slow}) as made:
        made.engine.submit(PROMPT, SamplingParams(lark="x"), listener)
        other = made.engine.generate(PROMPT, GREEDY)
        go_on.set()
        last = listener.wait()

    assert len(other.token_ids) == 5
    assert isinstance(last.error, InvalidConstraint)


def test_a_score_can_be_cancelled() -> None:
    listener = Listener()
    with rig() as made:
        gate = made.hold_steps()
        blocker = made.engine.submit(PROMPT, SamplingParams(max_tokens=100), Listener())
        assert gate.reached.wait(timeout=30)
        made.engine.submit_score(PROMPT, [3], listener).cancel()
        blocker.cancel()
        gate.open()

        assert isinstance(listener.wait(), RequestCancelled)


def test_a_score_listener_gets_one_score() -> None:
    listener = Listener()
    with rig() as made:
        made.engine.submit_score(PROMPT, [3, 4], listener)

        assert isinstance(listener.wait(), Score)
    assert len(listener.events) == 1
