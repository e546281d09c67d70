"""`run_batch`, `stream` and the async twins."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

from umbel.frontend_dsl import (
    Event,
    Program,
    ProgramDone,
    ProgramError,
    ProgramFailed,
    State,
    TextDelta,
    VariableDone,
    VariableFailed,
    connect,
    gen,
    program,
    select,
    user,
)
from umbel.runtime.errors import InvalidRequest


@program
def describe(s: State, topic: str) -> None:
    s += f"{topic}: "
    forks = s.fork(2)
    for i, branch in enumerate(forks):
        branch += f"{i} " + gen("text", max_tokens=4)
    s += forks[0]["text"] + forks[1]["text"] + gen("end")


FAILING = FakeModel(fails=lambda context: "".join(map(chr, context[1:5])) == "bad:")


def test_a_batch_gives_the_states_of_single_runs_in_the_order_of_the_items() -> None:
    topics = [f"topic {i}" for i in range(30)]

    with FakeClient(seed=3) as client:
        states = describe.run_batch(client, [{"topic": topic} for topic in topics])
        alone = [describe.run(client, topic=topic) for topic in topics]

    assert [state.text() for state in states] == [state.text() for state in alone]
    assert [state.error for state in states] == [None] * 30


def test_one_failing_item_fails_alone() -> None:
    items: list[dict[str, Any]] = [{"topic": "a"}, {"topic": "bad"}, {}, {"topic": "b"}, {"x": 1}]

    with FakeClient(model=FAILING) as client:
        states = describe.run_batch(client, items)

    assert [state.error is not None for state in states] == [False, True, True, False, True]
    assert "the fake model fails" in str(states[1].error)
    assert "missing a required argument: 'topic'" in str(states[2].error)
    assert states[3]["end"]


def test_items_are_taken_only_as_room_becomes_free() -> None:
    taken: list[int] = []
    ended: list[int] = []
    most = 0

    def items() -> Iterator[dict[str, str]]:
        nonlocal most
        for i in range(20):
            taken.append(i)
            most = max(most, len(taken) - len(ended))
            yield {"topic": str(i)}

    with FakeClient() as client:
        states = describe.run_batch(
            client, items(), max_in_flight=3, on_done=lambda index, state: ended.append(index)
        )

    assert most == 3
    assert sorted(ended) == list(range(20))
    assert len(states) == 20


def test_the_calls_of_a_batch_are_submitted_together() -> None:
    with FakeClient() as client:
        describe.run_batch(client, [{"topic": str(i)} for i in range(10)])

    assert sum(call.batch == 1 for call in client.calls) == 20


def test_an_empty_batch_is_an_empty_list() -> None:
    with FakeClient() as client:
        assert describe.run_batch(client, []) == []


def test_a_batch_without_room_is_refused() -> None:
    with FakeClient() as client, pytest.raises(InvalidRequest, match="max_in_flight=0"):
        describe.run_batch(client, [], max_in_flight=0)


def test_items_that_cannot_be_read_end_the_batch_and_its_calls() -> None:
    def items() -> Iterator[dict[str, str]]:
        yield {"topic": "a"}
        raise OSError("the file broke")

    with FakeClient() as client, pytest.raises(OSError, match="the file broke"):
        describe.run_batch(client, items())


def _text_of(events: list[Event], branch: str) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta) and e.branch == branch)


def test_a_stream_has_the_text_of_each_branch_its_variables_and_the_end() -> None:
    with FakeClient(seed=1) as client:
        events = list(describe.stream(client, topic="tea"))

    last = events[-1]
    assert isinstance(last, ProgramDone)
    state = last.state
    assert _text_of(events, "root") == state.text()
    for i, branch in enumerate(state.branches):
        assert "tea: " + _text_of(events, f"root/fork1[{i}]") == branch.text()
    done = [(e.branch, e.variable, e.value) for e in events if isinstance(e, VariableDone)]
    assert sorted(done)[0] == ("root", "end", state["end"])
    assert {name for _, name, _ in done} == {"end", "text"}


def test_a_stream_shows_generated_text_in_pieces_with_its_variable() -> None:
    @program
    def one(s: State) -> None:
        s += user("q")
        s += gen("long", max_tokens=40) + select("pick", ["a", "b"])

    with FakeClient() as client:
        events = list(one.stream(client))

    pieces = [e.text for e in events if isinstance(e, TextDelta) and e.variable == "long"]
    assert len(pieces) == 2
    picks = [e.text for e in events if isinstance(e, TextDelta) and e.variable == "pick"]
    assert picks in (["a"], ["b"])


def test_a_stream_that_fails_says_so_and_then_raises() -> None:
    events: list[Event] = []

    with FakeClient(model=FAILING) as client, pytest.raises(ProgramError) as info:
        events.extend(describe.stream(client, topic="bad"))

    last = events[-1]
    assert isinstance(last, ProgramFailed)
    assert last.error is info.value
    assert any(isinstance(event, VariableFailed) for event in events)


def test_a_reader_that_stops_reading_cancels_the_run() -> None:
    client = FakeClient(manual=True)

    @program
    def endless(s: State) -> None:
        s += "start" + gen("x")
        s["x"]

    for event in endless.stream(client):
        assert isinstance(event, TextDelta)
        break

    assert all(call.is_cancelled for call in client.calls)


def test_a_stream_cannot_change_its_thread() -> None:
    caught: list[BaseException] = []

    with FakeClient() as client:
        stream = describe.stream(client, topic="tea")
        next(stream)

        def read() -> None:
            try:
                list(stream)
            except InvalidRequest as error:
                caught.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()

    assert "astream" in str(caught[0])


def test_two_streams_can_be_read_in_turns() -> None:
    with FakeClient() as client:
        both = zip(
            describe.stream(client, topic="a"), describe.stream(client, topic="a"), strict=True
        )
        pairs = list(both)

    assert isinstance(pairs[-1][0], ProgramDone)
    assert isinstance(pairs[-1][1], ProgramDone)
    assert pairs[-1][0].state.text() == pairs[-1][1].state.text()


def test_async_runs_go_side_by_side_and_give_the_same_as_sync_ones() -> None:
    async def several(client: FakeClient) -> list[State]:
        return await asyncio.gather(*(describe.arun(client, topic=str(i)) for i in range(20)))

    with FakeClient() as client:
        states = asyncio.run(several(client))
        alone = [describe.run(client, topic=str(i)) for i in range(20)]

    assert [state.text() for state in states] == [state.text() for state in alone]


def test_an_async_batch_is_like_a_sync_one() -> None:
    items = [{"topic": "a"}, {"topic": "bad"}, {"topic": "b"}]

    with FakeClient(model=FAILING) as client:
        states = asyncio.run(describe.arun_batch(client, items, max_in_flight=2))

    assert [state.error is None for state in states] == [True, False, True]


def test_the_event_loop_is_free_while_a_program_waits() -> None:
    client = FakeClient(manual=True)
    turns: list[int] = []

    async def tick() -> None:
        while not client.open_calls:
            await asyncio.sleep(0)
        for i in range(5):
            turns.append(i)
            await asyncio.sleep(0)
        while client.open_calls:
            client.step(client.open_calls[0])
            await asyncio.sleep(0)

    @program
    def one(s: State) -> None:
        s += gen("x")
        s["x"]
        turns.append(-1)

    async def both() -> None:
        await asyncio.gather(one.arun(client), tick())

    asyncio.run(both())

    assert turns == [0, 1, 2, 3, 4, -1]


def test_an_async_stream_gives_the_same_events() -> None:
    async def collect(stream: AsyncIterator[Event]) -> list[Event]:
        return [event async for event in stream]

    with FakeClient() as client:
        events = asyncio.run(collect(describe.astream(client, topic="tea")))

    assert isinstance(events[-1], ProgramDone)
    assert _text_of(events, "root") == events[-1].state.text()


def test_an_async_run_that_fails_raises_its_error() -> None:
    with FakeClient(model=FAILING) as client, pytest.raises(ProgramError):
        asyncio.run(describe.arun(client, topic="bad"))


@pytest.mark.parametrize("face", ["arun", "astream", "arun_batch"])
def test_cancelling_the_task_cancels_the_calls(face: str) -> None:
    client = FakeClient(manual=True)

    @program
    def endless(s: State) -> None:
        s += gen("x")
        s["x"]

    async def start() -> None:
        if face == "arun":
            await endless.arun(client)
        elif face == "arun_batch":
            await endless.arun_batch(client, [{}, {}])
        else:
            async for _ in endless.astream(client):
                pass

    async def cancel() -> None:
        task = asyncio.create_task(start())
        while not client.open_calls:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())

    assert client.calls
    assert all(call.is_cancelled for call in client.calls)
    for call in client.open_calls:  # the loop is closed: late events must not raise into the engine
        client.step(call)


@pytest.mark.parametrize("face", ["arun", "astream", "arun_batch"])
def test_async_faces_refuse_a_connection_and_say_what_to_use(face: str) -> None:
    connection: Any = connect("http://127.0.0.1:9")

    async def use() -> None:
        if face == "arun":
            await describe.arun(connection)
        elif face == "arun_batch":
            await describe.arun_batch(connection, [{}])
        else:
            async for _ in describe.astream(connection):
                pass

    with pytest.raises(InvalidRequest, match="to_thread"):
        asyncio.run(use())


def test_a_sync_run_inside_a_thread_of_its_own_works() -> None:
    texts: list[str] = []

    with FakeClient() as client:

        def work() -> None:
            texts.append(describe.run(client, topic="x").text())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(texts) == 4
    assert len(set(texts)) == 1


def test_many_runs_in_flight_take_no_thread_each() -> None:
    num_threads: set[int] = set()

    @program
    def watch(s: State, i: int) -> None:
        s += f"{i}" + gen("x")
        s["x"]
        num_threads.add(threading.active_count())

    with FakeClient() as client:
        num_threads.add(threading.active_count())
        watch.run_batch(client, [{"i": i} for i in range(300)], max_in_flight=300)

    assert len(num_threads) == 1


def test_a_kept_state_does_not_keep_the_engine() -> None:
    import gc
    import weakref

    client = FakeClient()
    gone = weakref.ref(client)
    with client:
        state = describe.run(client, topic="x")
    del client
    gc.collect()

    assert gone() is None
    assert state["end"]


def test_a_program_is_named_and_documented_like_its_function() -> None:
    @program
    def documented(s: State) -> None:
        """What it does."""

    assert isinstance(documented, Program)
    assert documented.name == "documented"
    assert documented.__doc__ == "What it does."
