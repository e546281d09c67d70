"""Branches: what they share, when they go on, how wide they may be."""

import threading
import tracemalloc
from typing import Any

import pytest
from unit.frontend_dsl.fake_client import BOS, FakeClient, FakeModel

from umbel.frontend_dsl import ProgramError, State, assistant, gen, program, select, user
from umbel.frontend_dsl.driver import Driver
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams


def test_branches_go_on_from_the_fork_and_see_the_parents_variables() -> None:
    @program
    def think(s: State) -> None:
        s += "Q " + gen("q", max_tokens=4)
        forks = s.fork(3)
        for i, branch in enumerate(forks):
            branch += f" angle {i}, {branch['q']}: "
            branch += gen("text", max_tokens=6)
        forks.join()
        s += " | " + " / ".join(branch["text"] for branch in forks)

    with FakeClient() as client:
        state = think.run(client)

    prefix = f"Q {state['q']}"
    texts = [branch["text"] for branch in state.branches]
    for i, branch in enumerate(state.branches):
        assert branch.text() == f"{prefix} angle {i}, {state['q']}: {texts[i]}"
        assert branch.path == f"root/fork1[{i}]"
    assert state.text() == f"{prefix} | {' / '.join(texts)}"


def test_a_branch_made_before_the_parents_call_ends_waits_for_it() -> None:
    @program
    def early(s: State) -> None:
        s += gen("first")
        (child,) = s.fork(1)
        child += "-" + gen("second")

    with FakeClient() as client:
        state = early.run(client)

    assert [call.batch for call in client.calls] == [1, 2]
    assert client.calls[1].context == (BOS, *map(ord, state["first"] + "-"))


def test_the_parent_goes_on_by_itself() -> None:
    @program
    def both(s: State) -> None:
        s += "p"
        (child,) = s.fork(1)
        s += "arent" + gen("x")
        child += "!" + gen("x")

    with FakeClient() as client:
        state = both.run(client)

    assert state.text() == "parent" + state["x"]
    assert state.branches[0].text() == "p!" + state.branches[0]["x"]


def test_siblings_that_are_ready_together_are_submitted_together() -> None:
    @program
    def wide(s: State) -> None:
        forks = s.fork(20)
        for i, branch in enumerate(forks):
            branch += f"{i}" + gen("x")
        forks.join()

    with FakeClient() as client:
        wide.run(client)

    assert len(client.calls) == 20
    assert {call.batch for call in client.calls} == {1}


def test_a_fork_in_a_loop_works_every_round() -> None:
    @program
    def rounds(s: State) -> None:
        for turn in range(4):
            forks = s.fork(3)
            for branch in forks:
                branch += gen("text")
            forks.join()
            s += f"{turn}{forks[0]['text']}"

    with FakeClient() as client:
        state = rounds.run(client)

    assert len(state.branches) == 12
    assert [branch.path for branch in state.branches[9:]] == [f"root/fork4[{i}]" for i in range(3)]


def test_forks_of_forks_nest_deeper_than_the_recursion_limit() -> None:
    @program
    def deep(s: State) -> None:
        s += gen("start")
        branch = s
        for _ in range(1500):
            (branch,) = branch.fork(1)
            branch += "."
        branch += gen("end")
        s.fork(1)[0].text()

    with FakeClient() as client:
        state = deep.run(client)

    assert client.calls[1].context == (BOS, *map(ord, state["start"] + "." * 1500))


def test_five_hundred_branches_take_no_thread_and_share_the_prefix() -> None:
    num_threads: set[int] = set()
    prefix = "x" * 5_000

    @program
    def wide(s: State) -> None:
        s += prefix
        forks = s.fork(500)
        for i, branch in enumerate(forks):
            branch += f"{i}"
        tracemalloc.start()
        s.text()
        before = tracemalloc.get_traced_memory()[0]
        for branch in forks:
            branch += gen("x", max_tokens=1)
        forks[0].fork(499)
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert after - before < 5_000_000  # 1000 branches of 5000 tokens would be 40 MB
        forks.join()
        num_threads.add(threading.active_count())

    with FakeClient() as client:
        num_threads.add(threading.active_count())
        state = wide.run(client)

    assert len(num_threads) == 1
    assert len({branch.path for branch in state.branches}) == 500
    expected = FakeModel().generate([BOS, *map(ord, prefix + "7")], SamplingParams(max_tokens=1))
    assert state.branches[7]["x"] == expected


def test_a_child_may_use_a_name_of_the_parent_again() -> None:
    @program
    def shadow(s: State) -> None:
        s += gen("x")
        (child,) = s.fork(1)
        child += "+" + gen("x")

    with FakeClient() as client:
        state = shadow.run(client)

    assert state.branches[0].text() == f"{state['x']}+{state.branches[0]['x']}"


def test_a_fork_inside_a_message_continues_it_and_a_new_message_ends_it() -> None:
    @program
    def chat(s: State) -> None:
        s += user("q")
        with s.assistant():
            s += "one "
            a, b = s.fork(2)
        a += gen("x")
        b += "two"
        b += user("next")
        b += assistant(select("y", ["u", "v"]))

    with FakeClient() as client:
        state = chat.run(client)

    a, b = state.branches
    assert state.messages()[-1] == {"role": "assistant", "content": "one "}
    assert a.messages()[-1] == {"role": "assistant", "content": f"one {a['x']}"}
    assert b.messages() == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "one two"},
        {"role": "user", "content": "next"},
        {"role": "assistant", "content": b["y"]},
    ]


def test_forks_act_like_a_list() -> None:
    @program
    def use(s: State) -> None:
        forks = s.fork(3)
        forks[1] += "one"
        assert len(forks) == 3
        assert [b.path for b in forks[1:]] == ["root/fork1[1]", "root/fork1[2]"]
        with pytest.raises(InvalidRequest, match="cannot be replaced"):
            forks[0] = s

    with FakeClient() as client:
        assert use.run(client).branches[1].text() == "one"


@pytest.mark.parametrize("width", [0, -1, True, 2.0, 100_000])
def test_a_width_out_of_range_is_refused(width: int) -> None:
    @program
    def bad(s: State) -> None:
        s.fork(width)

    with FakeClient() as client, pytest.raises(ProgramError, match="from 1 to 4096"):
        bad.run(client)


def _race(s: State) -> tuple[list[str], list[bool]]:
    forks = s.fork(4)
    for number, branch in enumerate(forks):
        branch += f"{number}"
        branch += gen("x", max_tokens=3)
        (below,) = branch.fork(1)
        below += gen("y", max_tokens=3)
    winners = forks.join(first=2)
    return [winner.path for winner in winners], [branch.error is None for branch in forks]


def test_the_first_branches_win_and_the_others_are_cancelled() -> None:
    client = FakeClient(manual=True)
    deliveries: list[Any] = []
    driver = Driver(client, deliveries.append)
    execution = program(_race).execution(driver, {}, keep_events=False)
    driver.start(execution)
    driver.work()

    first_calls = client.open_calls
    for number in (3, 1):
        while not first_calls[number].is_ended:
            client.step(first_calls[number])
    driver.feed(deliveries)
    driver.work()

    assert first_calls[0].is_cancelled
    assert first_calls[2].is_cancelled
    while not execution.is_over:
        deliveries.clear()
        for call in client.open_calls:
            client.step(call)
        driver.feed(deliveries)
        driver.work()
    assert execution.error is None
    paths, are_fine = execution.result  # type: ignore[misc]  # what _race returns
    assert paths == ["root/fork1[1]", "root/fork1[3]"]
    assert are_fine == [False, True, False, True]


def test_a_race_that_all_lose_raises_and_fewer_winners_are_no_error() -> None:
    @program
    def racing(s: State) -> str:
        forks = s.fork(2)
        for branch in forks:
            branch += gen("x")
        return forks.race().path if not forks.join(first=2) else "somebody won"

    failing = FakeModel(fails=lambda context: True)
    with FakeClient(model=failing) as client, pytest.raises(ProgramError, match="fails here"):
        racing.run(client)
    assert "depends on which branch is first" in racing.explain()


def test_a_race_gives_a_branch_that_is_done() -> None:
    @program
    def racing(s: State) -> str:
        forks = s.fork(3)
        for number, branch in enumerate(forks):
            branch += f"{number}" + gen("x", max_tokens=2)
        winner = forks.race()
        return winner["x"]

    with FakeClient() as client:
        state = racing.run(client)

    done = [branch for branch in state.branches if branch.error is None]
    assert state.result in [branch["x"] for branch in done]


def test_a_number_of_winners_that_makes_no_sense_is_refused() -> None:
    @program
    def racing(s: State) -> None:
        s.fork(2).join(first=0)

    with FakeClient() as client, pytest.raises(ProgramError, match="expected 1 or more"):
        racing.run(client)
