"""Turns that were traced one after another become a loop that does the same."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

from umbel.frontend_dsl import GraphProgram, State, gen, program, select, tool
from umbel.frontend_dsl.graph.loops import turn
from umbel.frontend_dsl.graph.nodes import (
    Block,
    Generate,
    Graph,
    Loop,
    blocks_of,
    walk,
    with_blocks,
)
from umbel.frontend_dsl.graph.serial import from_json, to_json
from umbel.frontend_dsl.graph.verify import problems_of
from umbel.frontend_dsl.passes.pipeline import NAMES, PASSES


@tool
def search(text: str, limit: int) -> str:
    return f"<{text}:{limit}>"


@program
def agent(s: State, question: str) -> Any:
    s += question
    for i in range(8):
        s += f"Thought {i + 1}: " + gen(f"thought{i}", max_tokens=3, seed=i)
        s += "Action: " + select(f"action{i}", ["search", "look", "finish"])
        if s[f"action{i}"] == "finish":
            break
        if s[f"action{i}"] == "search":
            s += search(s[f"thought{i}"], i)
        else:
            s += "looked up."
    s += "Answer: " + gen("answer", max_tokens=4)
    return s["answer"]


@program
def unbounded(s: State) -> int:
    turns = 0
    s += gen("done0", choices=["true", "false"])
    while s[f"done{turns}"] != "true":
        turns += 1
        s += f"again {turns}: " + gen(f"done{turns}", choices=["true", "false"])
    return turns


@program
def forking(s: State) -> Any:
    for i in range(10):
        forks = s.fork(2)
        for branch in forks:
            branch += gen("x", max_tokens=2)
        s += forks[0]["x"] + gen(f"ok{i}", choices=["yes", "no"])
        if s[f"ok{i}"] == "yes":
            return i, forks[1]["x"]
    return "none"


@program
def nested(s: State) -> Any:
    for i in range(4):
        for j in range(4):
            s += gen(f"x{i}_{j}", choices=["on", "off"])
            if s[f"x{i}_{j}"] == "off":
                break
        s += gen(f"y{i}", choices=["more", "stop"])
        if s[f"y{i}"] == "stop":
            break
    return s["x0_0"]


@program
def numbers(s: State) -> Any:
    for i in range(6):
        s += gen(f"n{i}", max_tokens=2 + i)
        if len(s[f"n{i}"]) > 2:
            break
    return "done"


PROGRAMS = {
    "agent": (agent, {"question": "q"}), "unbounded": (unbounded, {}), "forking": (forking, {}),
    "nested": (nested, {}), "numbers": (numbers, {}),
}  # fmt: skip


def _graphs(name: str) -> tuple[Graph, Graph]:
    """As traced, and rolled."""
    graph = PROGRAMS[name][0].compile(passes=()).graph
    assert graph is not None
    return graph, PASSES["roll"](graph)[0]


def _written_out(block: Block) -> Block:
    out: list[Any] = []
    for node in block:
        if isinstance(node, Loop):
            out += _written_out(turn(node))
        else:
            out.append(with_blocks(node, [_written_out(body) for body in blocks_of(node)]))
    return tuple(out)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_written_out_is_what_was_traced(name: str) -> None:
    traced, rolled = _graphs(name)

    assert any(isinstance(node, Loop) for node in walk(rolled.body))
    assert _written_out(rolled.body) == traced.body


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rolled_graph_is_sound_and_can_be_stored(name: str) -> None:
    _, rolled = _graphs(name)

    assert not [problem for problem in problems_of(rolled) if problem.is_error]
    assert from_json(to_json(rolled)) == rolled


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("passes", [NAMES, ["roll"], ["roll", "parallel"]])
def test_rolled_programs_give_what_eager_ones_give(name: str, passes: tuple[str, ...]) -> None:
    made, arguments = PROGRAMS[name]
    with_passes = made.with_passes(passes)
    for salt in range(4):
        with FakeClient(model=_Salted(salt)) as client:
            compiled = with_passes.run(client, **arguments)
            eager = made.eager().run(client, **arguments)
        assert compiled.result == eager.result
        assert compiled.text() == eager.text()
        assert [b.text() for b in compiled.branches] == [b.text() for b in eager.branches]


class _Salted(FakeModel):
    """Another model for each salt."""

    def __init__(self, salt: int) -> None:
        super().__init__()
        self._salt = salt

    def generate(self, context: Any, params: Any) -> str:
        return super().generate([self._salt, *context], params)


def test_an_agents_graph_is_as_long_as_its_source() -> None:
    traced, rolled = _graphs("agent")

    assert sum(1 for _ in walk(rolled.body)) < 30 < sum(1 for _ in walk(traced.body))
    made = agent.compile()
    assert "roll: 1 loops (turns: 7)" in str(made)


def test_the_number_of_the_turn_may_be_an_option_an_argument_and_a_result() -> None:
    _, rolled = _graphs("agent")
    loop = next(node for node in walk(rolled.body) if isinstance(node, Loop))

    names = [n.name for n in walk(loop.body) if isinstance(n, Generate)]
    assert names == ["thought{turn1+1}"]
    with FakeClient() as client:
        state = GraphProgram(rolled, tools=[search]).run(client, question="q")
        expected = agent.eager().run(client, question="q")
    assert state.text() == expected.text()
    seeds = [call.params.seed for call in client.calls if call.params is not None]
    assert seeds[: len(seeds) // 2] == seeds[len(seeds) // 2 :]


def test_turns_that_differ_are_no_loop() -> None:
    @program
    def uneven(s: State) -> None:
        for i in range(6):
            s += gen(f"x{i}", choices=["a", "b"])
            if s[f"x{i}"] == "a":
                break
            s += "!" * (i * i)

    graph = uneven.compile(passes=()).graph
    assert graph is not None

    assert PASSES["roll"](graph)[0] == graph
    assert "no turns" in PASSES["roll"](graph)[1]


def test_two_turns_stay_written_out() -> None:
    @program
    def short(s: State) -> None:
        for i in range(3):
            s += gen(f"x{i}", choices=["a", "b"])
            if s[f"x{i}"] == "a":
                break

    graph = short.compile(passes=()).graph
    assert graph is not None

    assert PASSES["roll"](graph)[0] == graph


def test_a_name_with_braces_is_no_turn() -> None:
    @program
    def braces(s: State) -> Any:
        for i in range(6):
            s += "{turn1} " + gen("{turn1}" + str(i), choices=["a", "b"])
            if s["{turn1}" + str(i)] == "a":
                break
        return "ok"

    with FakeClient(model=_Salted(3)) as client:
        assert braces.run(client).text() == braces.eager().run(client).text()
    graph = braces.compile().graph
    assert graph is not None
    assert {n.index for n in walk(graph.body) if isinstance(n, Loop)} == {"turn2"}


@given(
    turns=st.integers(1, 7), stop=st.integers(0, 7), other=st.integers(0, 7),
    words=st.lists(st.sampled_from(["a", "b{i}", "{i}{i}", "3"]), max_size=3),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_chain_of_turns_is_the_same_written_out(
    turns: int, stop: int, other: int, words: list[str]
) -> None:
    """Turns by hand: some differ from the others, so only a part is a loop."""
    from umbel.frontend_dsl.graph.nodes import Arm, Decide, Ref, Say

    block: Block = (Say(branch="root", parts=("end",)),) if stop % 2 else ()
    for number in reversed(range(turns)):
        text = "".join(words).replace("{i}", str(number)) + ("!" if number == other else "")
        name = f"v{number}"
        arms = (Arm(("x",), ()),) if number != stop else (Arm(("x", "z"), ()),)
        block = (
            Say(branch="root", parts=(text or "-",)),
            Generate(branch="root", name=name, options={"choices": ["x", "y", "z"]}),
            Decide(subject=Ref("root", name), arms=arms, otherwise=block),
        )
    graph = Graph(name="chain", body=block)

    rolled, _ = PASSES["roll"](graph)

    assert _written_out(rolled.body) == graph.body
    with FakeClient() as client:
        for is_parallel in (False, True):
            found = msgspec.structs.replace(rolled, is_parallel=is_parallel)
            assert GraphProgram(found).run(client).text() == GraphProgram(graph).run(client).text()
