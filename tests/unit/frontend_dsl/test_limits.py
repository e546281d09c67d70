"""Deadlines of runs, and calls that are sent again."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from unit.frontend_dsl.fake_client import FakeClient

from umbel.frontend_dsl import (
    GraphProgram,
    Program,
    ProgramError,
    State,
    gen,
    program,
    select,
    tool,
)
from umbel.runtime.errors import DeadlineExceeded, InvalidRequest, QueueFull

Face = Program | GraphProgram


@program
def waits(s: State) -> str:
    s += "a" + gen("first", max_tokens=2)
    forks = s.fork(2)
    for branch in forks:
        branch += gen("second", max_tokens=2)
    return forks[1]["second"]


def _faces(deadline_s: float) -> list[Face]:
    limited = waits.with_limits(deadline_s=deadline_s)
    return [limited, limited.eager(), GraphProgram(waits.graph, deadline_s=deadline_s)]


def _run_batch(made: Face, client: FakeClient) -> None:
    error = made.run_batch(client, [{}])[0].error
    assert error is not None
    raise error


WAYS: dict[str, Callable[[Face, FakeClient], object]] = {
    "run": lambda made, client: made.run(client),
    "arun": lambda made, client: asyncio.run(made.arun(client)),
    "stream": lambda made, client: list(made.stream(client)),
    "run_batch": _run_batch,
}


@pytest.mark.parametrize("face", [0, 1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_past_its_deadline_is_cancelled_and_names_what_it_waited_for(
    face: int, way: str
) -> None:
    made = _faces(0.02)[face]
    client = FakeClient(manual=True)  # never answers

    with pytest.raises(ProgramError) as caught:
        WAYS[way](made, client)

    assert isinstance(caught.value.cause, DeadlineExceeded)
    assert "deadline_s=0.02; " in str(caught.value)
    assert (caught.value.call, caught.value.branch) == ("gen('first')", "root")
    assert caught.value.site is not None
    assert caught.value.site.line == waits.function.__code__.co_firstlineno + 2
    assert all(call.is_cancelled for call in client.calls)


def test_a_deadline_is_of_each_run_of_a_batch_and_others_go_on() -> None:
    class Silent(FakeClient):
        """Does not answer what begins with "slow"."""

        def submit(self, token_ids: Any, params: Any, listener: Any) -> Any:
            if chr(token_ids[1]) == "s":
                listener = _nobody
            return super().submit(token_ids, params, listener)

    @program
    def echoes(s: State, word: str) -> str:
        s += word + gen("x", max_tokens=2)
        return s["x"]

    with Silent() as client:
        items = [{"word": word} for word in ("slow", "fast", "slow", "quick")]
        states = echoes.with_limits(deadline_s=0.3).run_batch(client, items, max_in_flight=2)

    failed = [isinstance(getattr(s.error, "cause", None), DeadlineExceeded) for s in states]
    assert failed == [True, False, True, False]


def _nobody(event: object) -> None:
    pass


def test_a_tool_that_is_waited_for_is_named() -> None:
    import threading

    release = threading.Event()

    @tool
    def slow() -> str:
        release.wait(10)
        return "done"

    @program
    def uses(s: State) -> str:
        return slow()  # type: ignore[no-any-return]  # a tool gives what its function gives

    with FakeClient() as client, pytest.raises(ProgramError, match=r"slow\(\.\.\.\) at .*deadline"):
        uses.with_limits(deadline_s=0.05).run(client)
    release.set()


def test_a_run_that_is_done_in_time_is_not_disturbed() -> None:
    with FakeClient() as client:
        assert waits.with_limits(deadline_s=30).run(client).result == waits.run(client).result


class _Full:
    """Refuses the first `times` of each call."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, params: object) -> QueueFull | None:
        self.left -= 1
        return QueueFull(f"{self.left} more") if self.left >= 0 else None


@pytest.mark.parametrize("is_eager", [True, False])
def test_a_call_is_sent_again_when_what_failed_may_pass(is_eager: bool) -> None:
    limited = waits.with_limits(retries=2)
    face = limited.eager() if is_eager else limited
    with FakeClient(refuse=_Full(2)) as client:
        state = face.run(client)

    with FakeClient() as client:
        assert state.result == waits.run(client).result
    assert state.meta("first").retries == ("QueueFull: 1 more", "QueueFull: 0 more")
    assert state.branches[0].meta("second").retries == ()


def test_what_fails_too_often_or_for_good_is_an_error() -> None:
    with FakeClient(refuse=_Full(9)) as client, pytest.raises(ProgramError, match="6 more"):
        waits.with_limits(retries=2).run(client)
    refusals: list[object] = []

    def never(params: object) -> InvalidRequest:
        refusals.append(params)
        return InvalidRequest("no")

    with FakeClient(refuse=never) as client, pytest.raises(ProgramError, match="no"):
        waits.with_limits(retries=2).run(client)
    assert len(refusals) == 1


def test_a_select_forgets_the_scores_of_the_attempt_before() -> None:
    @program
    def picks(s: State) -> str:
        s += "which?" + select("x", ["a", "bb", "c"])
        return s["x"]

    class Busy(FakeClient):
        scored = 0

        def submit_score(self, token_ids: Any, continuation_ids: Any, listener: Any) -> Any:
            self.scored += 1
            if self.scored == 3:
                raise QueueFull("too many")
            return super().submit_score(token_ids, continuation_ids, listener)

    with Busy() as client:
        state = picks.with_limits(retries=1).run(client)
    with FakeClient() as client:
        expected = picks.run(client)

    assert state.result == expected.result
    assert state.meta("x").distribution == expected.meta("x").distribution
    assert state.meta("x").retries == ("QueueFull: too many",)


def test_a_tool_that_fails_every_time_says_why_each_time() -> None:
    numbers = iter(range(9))

    @tool(retries=2)
    def fails() -> str:
        raise ValueError(f"number {next(numbers)}")

    @program
    def uses(s: State) -> str:
        return fails()  # type: ignore[no-any-return]  # a tool gives what its function gives

    with FakeClient() as client, pytest.raises(ProgramError) as caught:
        uses.run(client)

    assert "ValueError: number 2; attempt 1: ValueError: number 0; attempt 2" in str(caught.value)


@pytest.mark.parametrize("options", [{"deadline_s": 0}, {"deadline_s": -1.0}, {"retries": -1}])
def test_limits_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        waits.with_limits(**options)
