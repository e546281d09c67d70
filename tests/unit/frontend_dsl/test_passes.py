"""What each pass does to a graph, and that the runs are what they were."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.frontend_dsl.fake_client import FakeClient, FakeModel
from unit.frontend_dsl.test_compiled_programs import Step, random_program, steps_of_depth

from umbel.frontend_dsl import GraphProgram, State, gen, program, select, tool
from umbel.frontend_dsl.driver import Driver
from umbel.frontend_dsl.graph.nodes import CallTool, Choose, Generate, Graph, Join, Say, walk
from umbel.frontend_dsl.passes.pipeline import NAMES, PASSES, optimized
from umbel.frontend_dsl.passes.tokenize import tokenized
from umbel.runtime.errors import InvalidRequest, RequestCancelled


@tool(pure=True)
def upper(text: str) -> str:
    return text.upper()


@tool
def remember(text: str) -> str:
    return text


@program
def sample(s: State, first: str, second: str) -> Any:
    s += "Intro. "
    s += "More. "
    s += f"[{second}][{first}]"
    s += gen("x", choices=["a", "b"])
    upper(s["x"])
    remember(s["x"])
    forks = s.fork(2)
    for branch in forks:
        branch += "constant"
        branch += gen("y", max_tokens=3)
        branch += gen("unread", max_tokens=3)
    forks.join()
    if s["x"] == "a":
        forks[0] += select("z", ["p", "q"])
    s += gen("tail", max_tokens=2)
    return s["x"], forks[0]["y"]


def _plain() -> Graph:
    graph = sample.compile(passes=()).graph
    assert graph is not None
    return graph


def _calls(graph: Graph) -> list[tuple[str, str | None]]:
    return [(n.branch, n.name) for n in walk(graph.body) if isinstance(n, Generate | Choose)]


def test_without_passes_a_graph_is_the_program() -> None:
    graph = _plain()

    assert not graph.is_parallel
    assert graph.passes == ()
    assert sum(isinstance(node, Join) for node in walk(graph.body)) == 1
    assert [name for branch, name in _calls(graph) if branch == "root"] == ["x", "tail"]


def test_parallel_removes_joins_and_keeps_everything_else() -> None:
    graph, message = PASSES["parallel"](_plain())

    assert graph.is_parallel
    assert [n for n in walk(_plain().body) if not isinstance(n, Join)] == list(walk(graph.body))
    assert "1 joins wait for nothing" in message


def test_a_parallel_graph_starts_calls_that_an_eager_run_would_start_later() -> None:
    @program
    def two(s: State) -> None:
        forks = s.fork(2)
        for branch in forks:
            branch += gen("x", choices=["a", "b"])
            if branch["x"] == "a":
                branch += "!"
            branch += gen("y", max_tokens=2)

    def first_calls(face: Any) -> int:
        client = FakeClient(manual=True)
        driver = Driver(client, lambda delivery: None)
        driver.start(face.execution(driver, {}, keep_events=False))
        driver.work()
        number = len(client.calls)
        driver.close(RequestCancelled("enough"))
        return number

    assert first_calls(two) == 2
    assert first_calls(two.eager()) == 1
    assert first_calls(two.with_passes([n for n in NAMES if n != "parallel"])) == 1


def test_hoist_orders_instances_by_the_text() -> None:
    graph, message = PASSES["hoist"](_plain())

    assert graph.order_by == (("second",), ("first",))
    assert f"{len('Intro. More. [')} characters" in message


def test_rank_counts_the_calls_that_wait() -> None:
    graph, message = PASSES["rank"](_plain())

    ranks = {(n.branch, n.name): n.rank for n in walk(graph.body) if isinstance(n, Generate)}
    assert ranks["root", "x"] > ranks["root/fork1[0]", "y"] > ranks["root/fork1[0]", "unread"]
    assert ranks["root", "tail"] == 0
    assert "the longest chain has 4 calls" in message


def test_calls_that_others_wait_for_are_submitted_first() -> None:
    @program
    def shape(s: State) -> None:
        forks = s.fork(2)
        forks[0] += gen("short", max_tokens=1)
        forks[1] += gen("long", max_tokens=2)
        forks[1] += gen("longer", max_tokens=3)

    def order(face: Any) -> list[int | None]:
        with FakeClient() as client:
            face.run(client)
        return [call.params.max_tokens for call in client.calls[:2]]

    assert order(shape) == [2, 1]
    assert order(shape.eager()) == [1, 2]


def test_drop_leaves_out_pure_tools_alone_by_default() -> None:
    graph, _ = optimized(_plain(), ["drop"])

    assert [n.tool for n in walk(graph.body) if isinstance(n, CallTool)] == ["remember"]
    assert _calls(graph) == _calls(_plain())


def test_drop_leaves_out_all_that_the_result_does_not_need() -> None:
    graph, reports = optimized(_plain(), ["drop"], reads_result_only=True)

    assert _calls(graph) == [("root", "x"), ("root/fork1[0]", "y")]
    assert [n.tool for n in walk(graph.body) if isinstance(n, CallTool)] == ["remember"]
    assert "5 calls" in reports[0].message
    with FakeClient() as client:
        expected = sample.eager().run(client, first="1", second="2").result
        found = GraphProgram(graph, tools=[remember]).run(client, first="1", second="2").result
    assert found == expected


def test_tokenize_joins_neighbours_and_keeps_their_own_tokens() -> None:
    graph, _ = tokenized(_plain(), lambda text: [len(text), ord(text[0])])

    says = [node for node in walk(graph.body) if isinstance(node, Say)]
    assert says[0].parts == ("Intro. More. ",)
    assert says[0].token_ids == (7, ord("I"), 6, ord("M"))
    assert says[1].token_ids is None


def test_constant_texts_are_encoded_once_for_all_runs() -> None:
    @program
    def constant(s: State) -> None:
        for number in range(5):
            s += f"text {number}"
            s += gen(f"x{number}", max_tokens=1)

    with FakeClient() as client:
        for _ in range(3):
            constant.run(client)

        assert client.num_encoded == 5


def test_an_unknown_pass_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="unknown pass 'inline'"):
        optimized(_plain(), ["inline"])


@given(steps=steps_of_depth(2), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_dropping_never_changes_a_result(steps: tuple[Step, ...], seed: int) -> None:
    made, source = random_program(steps)
    compiled = made.compile(reads_result_only=True, a="Ada", b="x")
    if compiled.graph is None or compiled.traced is None:
        return

    with FakeClient(model=FakeModel(), seed=seed) as client:
        expected = made.eager().run(client, a="Ada", b="x").result
        tools = list(compiled.traced.tools.values())
        found = GraphProgram(compiled.graph, tools=tools).run(client, a="Ada", b="x").result

    assert found == expected, source
