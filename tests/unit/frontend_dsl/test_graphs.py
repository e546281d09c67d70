"""Graphs as data: stored, bounded, verified, drawn, and run without their program."""

import asyncio
import time
import xml.dom.minidom
from typing import Any

import msgspec
import pytest
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

from umbel.frontend_dsl import (
    GraphProgram,
    ProgramDone,
    ProgramError,
    ProgramFailed,
    State,
    TextDelta,
    arun_graph,
    gen,
    program,
    run_graph,
    select,
    tool,
)
from umbel.frontend_dsl.graph.drawing import as_mermaid, as_svg, as_text
from umbel.frontend_dsl.graph.nodes import (
    Again,
    Arg,
    Arm,
    Block,
    Choose,
    Decide,
    Fork,
    Generate,
    Graph,
    Leave,
    Loop,
    Op,
    Ref,
    Return,
    Say,
    Words,
)
from umbel.frontend_dsl.graph.serial import GraphLimits, content_hash, from_json, to_json
from umbel.frontend_dsl.graph.verify import problems_of
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams


@program(max_tokens=4)
def judge(s: State, essay: str) -> Any:
    s += f"Essay: {essay}\n"
    s += select("verdict", ["good", "bad"])
    forks = s.fork(2)
    for branch in forks:
        branch += gen("why")
    if s["verdict"] == "bad":
        s += gen("more")
    return {"verdict": s["verdict"], "why": [branch["why"] for branch in forks]}


def _graph(*body: Any, **options: Any) -> Graph:
    return Graph(name="g", files=("g.py",), body=body, **options)


def _loop(*body: Any, until: str = "stop", max_turns: int = 5, **options: Any) -> Loop:
    """Ask "go" or "stop", do `body`, and once more unless it is `until`."""
    step = Generate(branch="root", name="step{i}", options={"choices": ["go", "stop"]})
    decide = Decide(
        subject=Ref("root", "step{i}"), arms=(Arm((until,), ()),), otherwise=(Again(index="i"),)
    )
    return Loop(index="i", body=(step, *body, decide), max_turns=max_turns, **options)


def _endless(*body: Any, max_turns: int) -> Loop:
    return Loop(index="i", body=(*body, Again(index="i")), max_turns=max_turns)


LOOP = _loop()


def test_a_stored_graph_runs_like_its_program() -> None:
    graph = from_json(to_json(judge.graph))

    with FakeClient() as client:
        state = GraphProgram(graph).run(client, essay="x")
        expected = judge.eager().run(client, essay="x")

    assert graph == judge.graph
    assert state.result == expected.result
    assert state.text() == expected.text()
    assert [b.text() for b in state.branches] == [b.text() for b in expected.branches]


def test_a_hash_stands_for_what_a_graph_does() -> None:
    same = from_json(to_json(judge.graph))

    assert content_hash(same) == content_hash(judge.graph)
    assert content_hash(msgspec.structs.replace(same, name="other")) != content_hash(same)


def test_a_graph_streams_events() -> None:
    with FakeClient() as client:
        events = list(run_graph(judge.graph, {"essay": "x"}, client))

    texts = [e.text for e in events if isinstance(e, TextDelta) and e.branch == "root"]
    last = events[-1]
    assert isinstance(last, ProgramDone)
    assert "".join(texts) == last.state.text()


def test_a_graph_streams_events_in_asyncio() -> None:
    async def collect(client: FakeClient) -> list[Any]:
        return [event async for event in arun_graph(judge.graph, {"essay": "x"}, client)]

    with FakeClient() as client:
        assert isinstance(asyncio.run(collect(client))[-1], ProgramDone)


def test_a_failure_in_a_graph_names_the_programs_line() -> None:
    events: list[Any] = []
    failing = FakeModel(fails=lambda context: True)
    with FakeClient(model=failing) as client, pytest.raises(ProgramError) as info:
        events.extend(run_graph(judge.graph, {"essay": "x"}, client))

    assert isinstance(events[-1], ProgramFailed)
    line = judge.function.__code__.co_firstlineno + 3
    assert str(info.value.site).endswith(f"test_graphs.py:{line}")
    assert info.value.call == "select('verdict')"


def test_wrong_arguments_of_a_graph_are_named() -> None:
    with FakeClient() as client, pytest.raises(ProgramError, match=r"missing: \['essay'\]"):
        GraphProgram(judge.graph).run(client, assay="x")
    with FakeClient() as client, pytest.raises(ProgramError, match="expected a string"):
        GraphProgram(judge.graph).run(client, essay=5)


def test_a_graph_that_leaves_says_that_it_ends_there() -> None:
    leaves = _graph(Leave(reason="it prints", line=7))

    with FakeClient() as client, pytest.raises(ProgramError, match=r"g\.py:7.*it prints"):
        GraphProgram(leaves).run(client)


def test_a_graph_calls_only_tools_that_it_is_given() -> None:
    @tool
    def double(text: str) -> str:
        return text * 2

    @program
    def uses(s: State, text: str) -> str:
        return double(text)

    with FakeClient() as client:
        assert GraphProgram(uses.graph, tools=[double]).run(client, text="a").result == "aa"
        with pytest.raises(ProgramError, match="no tool 'double' here"):
            GraphProgram(uses.graph).run(client, text="a")


@pytest.mark.parametrize("is_parallel", [True, False])
def test_a_loop_runs_until_its_value_or_its_bound(is_parallel: bool) -> None:
    class Counting(FakeModel):
        def generate(self, context: Any, params: SamplingParams) -> str:
            return "stop" if len(context) > 6 else "go"

    looping = _graph(LOOP, Say(branch="root", parts=("end",)), is_parallel=is_parallel)
    after = Say(branch="root", parts=("enough",))
    bounded = _graph(_loop(until="x", max_turns=2, last=(after,)), is_parallel=is_parallel)

    with FakeClient(model=Counting()) as client:
        assert GraphProgram(looping).run(client).text() == "gogogostopend"
        assert GraphProgram(bounded).run(client).text() == "gogoenough"


@pytest.mark.parametrize("is_parallel", [True, False])
def test_a_loop_may_fork(is_parallel: bool) -> None:
    fork = Fork(branch="root", children=("root/fork{i}",))
    inside = Generate(branch="root/fork{i}", name="x", options={"max_tokens": 2})
    quote = Say(branch="root", parts=(Ref("root/fork{i}", "x"), ";"))
    loop = _loop(fork, inside, quote)

    with FakeClient() as client:
        state = GraphProgram(_graph(loop, is_parallel=is_parallel)).run(client)

    assert len(state.branches) == len(state.variables())
    assert state.text().count(";") == len(state.branches)


# --- graphs from somebody else ---

ENDLESS = {"ignore_eos": True, "max_tokens": None}
PICK = Choose(branch="root", choices=(("a",),))
GEN = Generate(branch="root", name="x", options={"max_tokens": 10})


def _nested(depth: int) -> Block:
    block: Block = ()
    for _ in range(depth):
        block = (Decide(subject=Arg(("a",)), arms=(Arm(("x",), block),)),)
    return block


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (_graph(*[Say(branch="root", parts=("a",))] * 70), "max_nodes=60"),
        (_graph(*_nested(6)), "max_depth=5"),
        (_graph(Fork(branch="root", children=tuple(f"root/{i}" for i in range(9)))), "max_width=8"),
        (_graph(*[Fork(branch="root", children=("root/x",) * 7)] * 3), "max_branches=20"),
        (_graph(Choose(branch="root", choices=(("a",),) * 9)), "max_choices=8"),
        (_graph(msgspec.structs.replace(LOOP, max_turns=60)), "max_turns=50"),
        (_graph(_endless(Say(branch="root", parts=("a",)), max_turns=30)), "max_nodes=60"),
        (_graph(_endless(PICK, PICK, PICK, max_turns=11)), "max_calls=30"),
        (_graph(_endless(GEN, max_turns=29)), ""),
        (_graph(_endless(GEN, max_turns=30)), "max_tokens=290"),
        (_graph(GEN, defaults={"max_tokens": 290}), ""),
        (_graph(Generate(branch="root"), defaults={"max_tokens": 301}), "max_tokens=290"),
        (_graph(_endless(Again(index="i"), max_turns=2)), "in the middle of a path"),
        (_graph(_loop(last=(Again(index="i"),))), "goes on after its last turn"),
        (
            _graph(_loop(Say(branch="root/fork{i-1}[0]", parts=("a",)))),
            "no branch of the same turn",
        ),
        (_graph(Generate(branch="root", options={"max_tokens": None})), "whole number"),
        (_graph(Say(branch="root", parts=("a",), token_ids=(1, 2))), "no token ids"),
        (_graph(Say(branch="root", parts=(Ref("root", "x", (Op("eval"),)),))), "not an operation"),
        (
            _graph(Say(branch="root", parts=(Arg(("a",), (Op("format", (">999999999",)),)),))),
            "wider",
        ),
        (_graph(Generate(branch="root", options={"n": 3})), "n is not an option"),
        (_graph(Generate(branch="root", options={"wild": 3})), "unknown option 'wild'"),
        (_graph(Generate(branch="root", options={"stop": 3})), "gen"),
        (_graph(Generate(branch="root", options={"logit_bias": {"a": 1}})), "no token id"),
        (_graph(Generate(branch="root"), defaults={"regex": "a"}), "gen"),
        (_graph(version=99), "version 99"),
        (_graph(msgspec.structs.replace(LOOP, start=5)), "no valid turns"),
    ],
)
def test_a_graph_beyond_its_bounds_is_refused(graph: Graph, message: str) -> None:
    limits = GraphLimits(
        max_nodes=60, max_depth=5, max_width=8, max_branches=20, max_choices=8, max_turns=50,
        max_calls=30, max_tokens=290,
    )  # fmt: skip

    if not message:
        assert from_json(to_json(graph), limits) == graph
        return
    with pytest.raises(InvalidRequest, match=message):
        from_json(to_json(graph), limits)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b'{"name": 1}', b'{"name": "g", "body": [{"node": "exec"}]}',
        b'{"name": "g", "body": [{"node": "text"}]}', b"\xff",
        b'{"name": "g", "body": ' + b'[{"node": "loop", "body": ' * 5000,
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        from_json(data)


def test_a_very_deep_graph_is_refused() -> None:
    deep = b'{"node":"decide","subject":{"type":"argument","path":["a"]},"arms":[[["x"],['
    data = b'{"name":"g","body":[' + deep * 20_000 + b"]]]}" * 20_000 + b"]}"

    with pytest.raises(InvalidRequest):
        from_json(data)


def test_a_hundred_thousand_nodes_are_refused_in_bounded_time() -> None:
    graph = _graph(*[Say(branch="root", parts=(str(i),)) for i in range(100_000)])
    data = to_json(graph)

    start_s = time.perf_counter()
    with pytest.raises(InvalidRequest, match="max_nodes"):
        from_json(data)
    assert time.perf_counter() - start_s < 5


def test_a_hundred_thousand_nodes_are_handled_where_they_are_accepted() -> None:
    says = [Say(branch="root", parts=(f"{i % 10}",)) for i in range(100_000)]
    graph = from_json(to_json(_graph(*says)), GraphLimits(max_nodes=200_000))

    with FakeClient() as client:
        assert len(GraphProgram(graph).run(client).text()) == 100_000


def test_a_branch_that_a_loop_makes_twice_fails_the_run() -> None:
    fork = Fork(branch="root", children=("root/again",))
    with pytest.raises(InvalidRequest, match="no new branch below 'root'"):
        GraphProgram(_graph(_loop(fork)))


def test_options_that_json_spells_otherwise_arrive_as_they_were() -> None:
    @program
    def biased(s: State) -> None:
        s += gen("x", logit_bias={5: 1.5}, stop=("a", "b"), max_tokens=2)

    with FakeClient() as client:
        GraphProgram(from_json(to_json(biased.graph))).run(client)

    params = client.calls[0].params
    assert params is not None
    assert params.logit_bias == {5: 1.5}
    assert params.stop == ("a", "b")


# --- verification ---


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((Say(branch="root/x", parts=("a",), line=3),), "g.py:3: error: there is no branch"),
        ((Say(branch="root", parts=(Ref("root", "x"),)),), "no variable 'x' of root"),
        ((Say(branch="root", parts=(Arg(("a",)),)),), "no parameter"),
        ((GEN, GEN), "exists already"),
        ((Fork(branch="root", children=("other",)),), "no new branch"),
        (
            (
                Decide(subject=Arg(("p",)), arms=(Arm(("a",), (GEN,)),), otherwise=()),
                Return(value=Words((Ref("root", "x"),))),
            ),
            "no variable 'x'",
        ),
        ((Again(index="i"),), "there is no loop 'i'"),
        ((LOOP, Say(branch="root", parts=(Ref("root", "step1"),))), "no variable 'step1'"),
        (
            (_loop(Say(branch="root", parts=(Ref("root", "step{i+1}"),))),),
            "no variable 'step1'",
        ),
    ],
)
def test_a_graph_that_cannot_run_is_refused(body: Block, message: str) -> None:
    graph = _graph(*body, parameters=("p",))

    assert any(message in str(problem) for problem in problems_of(graph))
    with pytest.raises(InvalidRequest, match="cannot run"):
        GraphProgram(graph)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((Generate(branch="root", name="x", line=4),), "g.py:4: warning: the program does not"),
        ((Generate(branch="root", options=ENDLESS),), "cannot end"),
        ((_loop(until="halt"),), "cannot end before 5 turns"),
        ((_loop(until="halt"),), "it can never be 'halt'"),
        ((_endless(Generate(branch="root", name="x{i}"), max_turns=3),), "does not read 'x2'"),
        (
            (
                Choose(branch="root", name="v", choices=(("yes",), ("no",))),
                Decide(subject=Ref("root", "v"), arms=(Arm(("maybe",), ()),), otherwise=()),
            ),
            "it can never be 'maybe'",
        ),
    ],
)  # fmt: skip
def test_what_is_odd_is_a_warning(body: Block, message: str) -> None:
    problems = problems_of(_graph(*body))

    assert any(message in str(problem) for problem in problems), problems
    assert not any(problem.is_error for problem in problems)


# --- drawings ---


def test_drawings_show_nodes_ways_and_lines() -> None:
    text, mermaid, svg = (draw(judge.graph) for draw in (as_text, as_mermaid, as_svg))

    line = judge.function.__code__.co_firstlineno + 3
    assert f"select('verdict', ['good', 'bad'])  :{line}" in text
    assert "    bad:\n      root += gen('more')" in text
    assert mermaid.startswith("flowchart TD")
    assert '-->|"bad"|' in mermaid
    assert xml.dom.minidom.parseString(svg).documentElement.tagName == "svg"


def test_a_flowchart_goes_on_from_the_ends_of_all_ways() -> None:
    graph = _graph(_loop(), Say(branch="root", parts=("end",)))

    lines = as_mermaid(graph).splitlines()

    assert "  n0 --> n1" in lines  # the loop
    assert "  n2 --> n3" in lines  # the call and the decision
    assert '  n3 -.->|"otherwise"| n1' in lines
    assert '  n3 -->|"stop"| n4' in lines  # the text after the loop
    assert '  n1 -->|"after the last turn"| n4' in lines


def test_drawings_escape_what_programs_say() -> None:
    nasty = _graph(Say(branch="root", parts=('<script>"&\n\\',)))

    xml.dom.minidom.parseString(as_svg(nasty))
    assert "<script>" not in as_svg(nasty)
    assert '<script>"' not in as_mermaid(nasty)


def test_a_graph_that_was_made_for_one_argument_refuses_others() -> None:
    @program
    def splits(s: State, words: str) -> int:
        s += words + gen("x", max_tokens=2)
        return len(words.split())

    graph = splits.compile(words="a b").graph
    assert graph is not None
    made = GraphProgram(from_json(to_json(graph)))

    with FakeClient() as client:
        assert made.run(client, words="a b").result == 2
        with pytest.raises(ProgramError, match=r"made for 'a b' alone, not 'c'; compile it"):
            made.run(client, words="c")


def test_a_comparison_with_what_a_regex_does_not_match_is_reported() -> None:
    @program
    def typo(s: State) -> str:
        s += gen("x", regex="[0-9]{1,6}")
        if s["x"] == "seven":
            return "a"
        return "b" if s["x"] == "7" else "c"

    line = typo.function.__code__.co_firstlineno + 3
    found = str(typo.compile())
    assert f"test_graphs.py:{line}: 'x' can never be 'seven' here; its regex is" in found
    assert "can never be '7'" not in found
