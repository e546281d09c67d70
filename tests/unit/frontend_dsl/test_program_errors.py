"""Failures: where they surface, what they say, what they stop. Nothing hangs or gets lost."""

import signal
import threading
import time

import pytest
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

from umbel.frontend_dsl import ProgramError, State, gen, program, select, user
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams


def _fails_after(mark: str) -> FakeModel:
    return FakeModel(fails=lambda context: bool(context) and context[-1] == ord(mark))


def test_a_failed_call_is_raised_where_its_value_is_read_and_says_where() -> None:
    caught: list[ProgramError] = []

    @program
    def judge(s: State) -> None:
        forks = s.fork(3)
        forks[1] += "!"
        forks[1] += gen("text")
        try:
            forks[1]["text"]
        except ProgramError as error:
            caught.append(error)

    with FakeClient(model=_fails_after("!")) as client:
        state = judge.run(client)

    (error,) = caught
    assert error.program == "judge"
    assert error.branch == "root/fork1[1]"
    assert error.call == "gen('text')"
    assert error.site is not None
    assert error.site.file == __file__
    assert isinstance(error.cause, InvalidRequest)
    assert error.__cause__ is error.cause
    for part in ("judge", "gen('text')", f"{__file__}:{error.site.line}", "root/fork1[1]", "fails"):
        assert part in str(error)
    assert state.branches[1].error is error


def test_an_error_that_was_never_met_is_raised_at_the_end() -> None:
    @program
    def careless(s: State) -> None:
        s += "!" + gen("lost")

    with FakeClient(model=_fails_after("!")) as client, pytest.raises(ProgramError, match="'lost'"):
        careless.run(client)


def test_join_waits_for_failed_branches_and_errors_are_values() -> None:
    @program
    def vote(s: State) -> list[bool]:
        forks = s.fork(4)
        for i, branch in enumerate(forks):
            branch += "!" if i % 2 else "?"
            branch += gen("text")
        forks.join()
        assert [b.path for b in forks.succeeded] == ["root/fork1[0]", "root/fork1[2]"]
        return [error is not None for error in forks.errors]

    with FakeClient(model=_fails_after("!")) as client:
        assert vote.run(client).result == [False, True, False, True]


def test_join_alone_does_not_hide_an_error() -> None:
    @program
    def vote(s: State) -> None:
        forks = s.fork(2)
        forks[1] += "!" + gen("text")
        forks.join()

    with FakeClient(model=_fails_after("!")) as client, pytest.raises(ProgramError, match=r"\[1\]"):
        vote.run(client)


def test_join_can_raise_the_first_error() -> None:
    @program
    def vote(s: State) -> None:
        forks = s.fork(2)
        forks[1] += "!" + gen("text")
        with pytest.raises(ProgramError):
            forks.join(raise_errors=True)

    with FakeClient(model=_fails_after("!")) as client:
        assert vote.run(client).error is None


def test_a_branch_ends_with_its_first_failed_call_and_so_do_its_children() -> None:
    met: list[ProgramError] = []

    @program
    def chain(s: State) -> None:
        s += "!" + gen("a")
        s += "more" + gen("b")
        (child,) = s.fork(1)
        child += gen("c")
        for read in (lambda: s["b"], lambda: child["c"], s.text, child.messages):
            with pytest.raises(ProgramError) as info:
                read()
            met.append(info.value)

    with FakeClient(model=_fails_after("!")) as client:
        state = chain.run(client)

    assert len(client.calls) == 1
    assert {id(error) for error in met} == {id(state.error)}
    assert [call.error is not None for call in state.calls] == [True, True]
    assert state.meta("b").error is state.error


def test_a_call_that_the_engine_refuses_at_once_is_an_error_like_any_other() -> None:
    def refuse(params: SamplingParams) -> InvalidRequest | None:
        return InvalidRequest("invalid regex") if params.regex else None

    @program
    def bad(s: State) -> str:
        (child,) = s.fork(1)
        child += gen("x", regex="(")
        s += gen("y")
        assert child.error is not None
        return s["y"]

    with FakeClient(refuse=refuse) as client:
        state = bad.run(client)

    assert state.result == state["y"]


def test_a_program_that_raises_halfway_keeps_its_error_and_cancels_its_calls() -> None:
    client = FakeClient(manual=True)

    @program
    def broken(s: State) -> None:
        forks = s.fork(3)
        for branch in forks:
            branch += gen("x")
        release.start()
        forks[0]["x"]
        raise ZeroDivisionError("halfway")

    def answer_the_first() -> None:
        while not client.open_calls:
            time.sleep(0.001)
        first = client.open_calls[0]
        client.step(first)
        client.step(first)

    release = threading.Thread(target=answer_the_first)
    with pytest.raises(ProgramError, match="ZeroDivisionError: halfway") as info:
        broken.run(client)
    release.join()

    assert isinstance(info.value.__cause__, ZeroDivisionError)
    assert info.value.site is not None
    assert info.value.site.file == __file__
    assert [call.is_cancelled for call in client.calls] == [False, True, True]


def test_a_variable_that_is_defined_twice_is_refused_naming_both_places() -> None:
    @program
    def twice(s: State) -> None:
        s += gen("x")
        s += select("x", ["a", "b"])

    with FakeClient() as client, pytest.raises(ProgramError, match="exists already") as info:
        twice.run(client)

    first = twice.function.__code__.co_firstlineno + 2
    assert f"gen('x') at {__file__}:{first}" in str(info.value)
    assert f"select('x') at {__file__}:{first + 1}" in str(info.value)


def test_an_unknown_variable_is_refused_at_once_with_those_there_are() -> None:
    @program
    def reads(s: State) -> None:
        s += gen("known")
        s["unknown"]

    with (
        FakeClient() as client,
        pytest.raises(ProgramError, match=r"'unknown'.*the branch has: known"),
    ):
        reads.run(client)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"regex": "a", "choices": ["a"]}, "one constraint"),
    ],
)
def test_impossible_options_are_raised_at_their_line(
    options: dict[str, object], message: str
) -> None:
    @program
    def bad(s: State) -> None:
        s += gen("x", **options)  # type: ignore[arg-type]  # wrong on purpose

    with FakeClient() as client, pytest.raises(ProgramError, match=message) as info:
        bad.run(client)

    assert info.value.site is not None
    assert info.value.site.line == bad.function.__code__.co_firstlineno + 2


@pytest.mark.parametrize("value", [3, None, b"bytes", ["list"]])
def test_only_text_and_calls_can_be_appended(value: object) -> None:
    @program
    def bad(s: State) -> None:
        s += value  # type: ignore[arg-type]  # wrong on purpose

    with FakeClient() as client, pytest.raises(ProgramError, match="cannot append"):
        bad.run(client)


def test_roles_do_not_nest() -> None:
    @program
    def nested(s: State) -> None:
        with s.user():
            s += user("x")

    with FakeClient() as client, pytest.raises(ProgramError, match="inside one of user"):
        nested.run(client)


def test_a_template_that_refuses_a_role_fails_the_branch() -> None:
    @program
    def late_system(s: State) -> None:
        with s.user():
            s += "x"
        with s.system():
            s += "y"
        s += gen("z")
        s["z"]

    with FakeClient() as client, pytest.raises(ProgramError, match="system message first") as info:
        late_system.run(client)

    assert info.value.call == "role 'system'"


@pytest.mark.parametrize("arguments", [{}, {"essay": "x", "more": 1}])
def test_wrong_arguments_name_the_ones_the_program_takes(arguments: dict[str, object]) -> None:
    @program
    def judge(s: State, essay: str) -> None: ...

    with FakeClient() as client, pytest.raises(ProgramError, match=r"judge\(s.*essay"):
        judge.run(client, **arguments)


def test_ctrl_c_cancels_what_is_outstanding_and_goes_on_to_the_caller() -> None:
    client = FakeClient(manual=True)
    cleaned_up: list[str] = []

    @program
    def waits(s: State) -> None:
        s += gen("never")
        try:
            s["never"]
        finally:
            cleaned_up.append("yes")

    def interrupt() -> None:
        while not client.open_calls:
            time.sleep(0.001)
        # One that comes just before the thread goes to sleep does not wake it: press again.
        while not is_over.wait(0.5):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    is_over = threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        waits.run(client)
    is_over.set()
    thread.join()
    signal.signal(signal.SIGINT, before)

    assert client.calls[0].is_cancelled
    assert cleaned_up == ["yes"]


def test_a_keyboard_interrupt_inside_the_program_is_not_wrapped() -> None:
    @program
    def interrupted(s: State) -> None:
        s += gen("x")
        s["x"]
        raise KeyboardInterrupt

    with FakeClient() as client, pytest.raises(KeyboardInterrupt):
        interrupted.run(client)


def test_a_program_that_swallows_everything_still_ends_when_it_is_given_up() -> None:
    client = FakeClient(manual=True)
    refused: list[BaseException] = []

    @program
    def stubborn(s: State) -> None:
        s += gen("x")
        while len(refused) < 3:
            try:
                s["x"]
            except BaseException as error:
                refused.append(error)

    stream = stubborn.stream(client)
    thread = threading.Thread(target=lambda: _answer_half(client))
    thread.start()
    next(stream)
    thread.join()
    stream.close()

    assert len(refused) == 3
    assert client.calls[0].is_cancelled


def _answer_half(client: FakeClient) -> None:
    while not client.open_calls:
        time.sleep(0.001)
    client.step(client.open_calls[0])


def test_a_fault_of_the_client_fails_the_call_and_does_not_hang() -> None:
    class Deaf(FakeClient):
        def submit(self, *arguments: object) -> object:  # type: ignore[override]  # refuses in a new way
            raise RuntimeError("a fault of the client")

    @program
    def one(s: State) -> None:
        s += gen("x")
        s["x"]

    with Deaf() as client, pytest.raises(ProgramError, match="RuntimeError: a fault of the client"):
        one.run(client)


def test_a_greenlet_of_the_programs_own_cannot_wait() -> None:
    greenlet = pytest.importorskip("greenlet")

    @program
    def split(s: State) -> None:
        s += gen("x")
        greenlet.greenlet(lambda: s["x"]).switch()

    with (
        FakeClient() as client,
        pytest.raises(ProgramError, match="only the program itself can wait"),
    ):
        split.run(client)


def test_an_engine_that_closes_midway_fails_the_calls_and_nothing_hangs() -> None:
    @program
    def wide(s: State) -> None:
        forks = s.fork(10)
        for i, branch in enumerate(forks):
            branch += f"{i}" + gen("a") + gen("b")
        forks.join()
        errors = [error for error in forks.errors if error]
        assert len(errors) == 4
        assert all("no more calls" in str(error) for error in errors)

    with FakeClient(close_after=16) as client:
        wide.run(client)
