"""Tools: checked arguments, time limits, retries, and their place in programs."""

import asyncio
import threading
import time
from typing import Any, Literal

import pytest
from unit.frontend_dsl.fake_client import FakeClient

from umbel.frontend_dsl import Program, ProgramError, State, gen, program, tool
from umbel.frontend_dsl.tools import MAX_WORKERS, ToolFailed
from umbel.runtime.errors import DeadlineExceeded, InvalidRequest

_calls: list[Any] = []


@tool
def add(a: int, b: int = 1) -> int:
    _calls.append((a, b))
    return a + b


@tool
async def shout(text: str) -> str:
    await asyncio.sleep(0.001)
    return text.upper()


@tool
def is_short(text: str) -> bool:
    return len(text) < 3


@tool
def mood(text: str) -> Literal["good", "bad"]:
    return "good" if text < "m" else "bad"


@program
def uses(s: State, number: str) -> Any:
    s += f"{number} "
    total = add(number, b=2)
    s += f"total {total}. "
    s += gen("x", max_tokens=3)
    s += shout(s["x"])
    if is_short(s["x"]):
        s += " short"
    if mood(s["x"]) == "good":
        s += gen("y", max_tokens=2)
    return total


def _faces(made: Program) -> list[Program]:
    return [made, made.eager()]


def test_tools_give_the_same_eager_and_compiled() -> None:
    for number in ("1", "20", "300"):
        states = []
        for face in _faces(uses):
            with FakeClient() as client:
                states.append(face.run(client, number=number))

        assert states[0].result == int(number) + 2
        assert states[0].result == states[1].result
        assert states[0].text() == states[1].text()
    assert "compiled" in uses.explain()
    assert "Python" not in uses.explain()


@pytest.mark.parametrize("face", range(2))
def test_an_argument_that_does_not_fit_names_the_line(face: int) -> None:
    made = _faces(uses)[face]

    with FakeClient() as client, pytest.raises(ProgramError, match="a='nothing'") as info:
        made.run(client, number="nothing")

    assert isinstance(info.value.cause, InvalidRequest)
    assert info.value.site is not None
    assert info.value.site.line == uses.function.__code__.co_firstlineno + 3


@pytest.mark.parametrize("face", range(2))
def test_a_tool_that_raises_fails_the_run_with_its_error(face: int) -> None:
    @tool
    def broken(text: str) -> str:
        raise OSError("no network")

    @program
    def calls(s: State) -> None:
        s += broken("x")

    with FakeClient() as client, pytest.raises(ProgramError, match="no network") as info:
        _faces(calls)[face].run(client)

    assert info.value.call == "broken(...)"
    assert isinstance(info.value.cause, ToolFailed)
    assert isinstance(info.value.cause.__cause__, OSError)


@pytest.mark.parametrize("face", range(2))
def test_a_tool_is_tried_again(face: int) -> None:
    attempts: list[int] = []

    @tool(retries=2)
    def flaky() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("again")
        return "done"

    @program
    def calls(s: State) -> str:
        return flaky() + "!"

    with FakeClient() as client:
        state = _faces(calls)[face].run(client)

    assert (state.result, len(attempts)) == ("done!", 3)


@pytest.mark.parametrize("face", range(2))
@pytest.mark.parametrize("is_async", [True, False])
def test_a_tool_that_takes_too_long_is_given_up(face: int, is_async: bool) -> None:
    release = threading.Event()

    @tool(timeout_s=0.05)
    async def sleeps() -> str:
        await asyncio.sleep(30)
        return "late"

    @tool(timeout_s=0.05)
    def blocks() -> str:
        release.wait(30)
        return "late"

    chosen = sleeps if is_async else blocks

    @program
    def calls(s: State) -> str:
        return str(chosen())

    start_s = time.perf_counter()
    with FakeClient() as client, pytest.raises(ProgramError) as info:
        _faces(calls)[face].run(client)
    release.set()

    assert isinstance(info.value.cause, DeadlineExceeded)
    assert time.perf_counter() - start_s < 5


def test_other_programs_go_on_while_a_tool_works() -> None:
    both_are_here = threading.Barrier(2, timeout=20)

    @tool
    def meets() -> str:
        both_are_here.wait()
        return "met"

    @program
    def calls(s: State) -> str:
        return meets()

    with FakeClient() as client:
        states = calls.run_batch(client, [{}, {}])

    assert [state.result for state in states] == ["met", "met"]


def test_tools_keep_the_order_of_the_program() -> None:
    @program
    def ordered(s: State) -> None:
        forks = s.fork(3)
        for number, branch in enumerate(forks):
            branch += gen("x", max_tokens=1 + number)
            add(number, len("abc"[number:]))
            branch += "."

    for face in _faces(ordered):
        _calls.clear()
        with FakeClient(seed=3) as client:
            face.run(client)
        assert _calls == [(0, 3), (1, 2), (2, 1)]


def test_a_tool_is_not_called_after_a_failure_that_comes_before_it() -> None:
    from unit.frontend_dsl.fake_client import FakeModel

    @program
    def late(s: State) -> None:
        s += gen("x", choices=["a", "b"])
        if s["x"] == "a":
            s += "1"
        else:
            s += "2"
        add(1, 1)

    for face in _faces(late):
        _calls.clear()
        model = FakeModel(fails=lambda context: True)
        with FakeClient(model=model) as client, pytest.raises(ProgramError, match="fails here"):
            face.run(client)
        assert _calls == []


def test_outside_a_program_a_tool_is_its_function_with_checks() -> None:
    assert add("4", 2) == 6
    assert shout("x") == "X"
    with pytest.raises(InvalidRequest, match="a=None"):
        add(None)
    with pytest.raises(InvalidRequest, match="missing a required argument"):
        add()


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"retries": -1}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        tool(**options)(print)


def test_many_calls_share_a_bounded_number_of_threads() -> None:
    @tool
    def quick(text: str) -> str:
        return text + threading.current_thread().name[:10]

    @program
    def calls(s: State, text: str) -> str:
        return quick(text)

    with FakeClient() as client:
        states = calls.run_batch(client, [{"text": f"{i}:"} for i in range(300)], max_in_flight=300)

    assert [state.result for state in states] == [f"{i}:umbel-tool" for i in range(300)]
    tools = [t for t in threading.enumerate() if t.name.startswith("umbel-tool")]
    assert len(tools) <= MAX_WORKERS


@tool
def look_up(text: str) -> dict[str, int] | None:
    return None if len(text) < 3 else {"a": 1}


def _by_is(found: Any) -> str:
    return "none" if found is None else "some"


def _by_is_not(found: Any) -> str:
    return "some" if found is not None else "none"


def _by_isinstance(found: Any) -> str:
    return "some" if isinstance(found, dict) else "none"


def _by_pattern(found: Any) -> str:
    match found:
        case None:
            return "none"
        case {"a": 1}:
            return "some"
    return "other"


def _by_pattern_in_a_tuple(found: Any) -> str:
    match (1, found):
        case (1, None):
            return "none"
    return "some"


def _by_pattern_further_in(found: Any) -> str:
    match {"a": [found]}:
        case {"a": [None]}:
            return "none"
    return "some"


LOOKS = [
    _by_is, _by_is_not, _by_isinstance, _by_pattern, _by_pattern_in_a_tuple, _by_pattern_further_in,
]  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
def test_python_never_sees_what_stands_for_a_result_that_is_not_known(look: Any) -> None:
    """Such looks ask no method of a value, so nothing but the program's own text can show them."""

    @program
    def looks(s: State, text: str) -> Any:
        s += text + gen("x", max_tokens=2)
        return look(look_up(text)), is_short(text) is True, isinstance(is_short(text), bool)

    for face in _faces(looks):
        with FakeClient() as client:
            results = [face.run(client, text=text).result for text in ("ab", "abcd")]
        assert results == [("none", True, True), ("some", False, True)]
