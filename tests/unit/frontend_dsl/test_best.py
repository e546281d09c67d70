"""`umbel.best`: go on from the branches that rate highest, eager and compiled."""

from typing import Any

import pytest
from unit.frontend_dsl.fake_client import FakeClient

import umbel
from umbel.frontend_dsl import (
    Forks,
    GraphProgram,
    Program,
    ProgramError,
    State,
    best,
    gen,
    program,
    select,
)
from umbel.frontend_dsl.choosing import best_of, home_of
from umbel.frontend_dsl.graph.drawing import as_mermaid, as_svg, as_text
from umbel.frontend_dsl.graph.nodes import Best, walk
from umbel.frontend_dsl.graph.serial import from_json, to_json
from umbel.frontend_dsl.graph.verify import problems_of
from umbel.frontend_dsl.passes.pipeline import NAMES


def goodness(branch: State) -> float:
    return branch.meta("good").distribution["yes"]


@program
def search(s: State, problem: str) -> Any:
    """A beam of two over three ways, twice."""
    s += problem
    beam: Any = [s]
    for depth in range(2):
        ways = [way for branch in beam for way in branch.fork(3)]
        for number, way in enumerate(ways):
            way += f"({depth}.{number} " + gen(f"step{depth}", max_tokens=3)
            way += "good? " + select("good", ["yes", "no"])
        beam = best(ways, 2, key=goodness)
    first = beam[0]
    first += "so " + gen("answer", max_tokens=4)
    return [branch["step1"] for branch in beam], first["answer"], first["step0"]


@program
def counts(s: State) -> str:
    forks = s.fork(4)
    for fork in forks:
        fork += fork.path[-2] + gen("n", choices=list("123456789"))
    (one,) = best(forks, key=lambda fork: int(fork["n"]))
    one += "!" + gen("rest", max_tokens=2)
    return f"{one['n']}: {one['rest']}"


def tree(state: State) -> Any:
    return state.path, state.text(), state.variables(), [tree(below) for below in state.branches]


def outcome(made: Program | GraphProgram, seed: int, **arguments: str) -> Any:
    with FakeClient(seed=seed) as client:
        state = made.run(client, **arguments)
    return state.result, tree(state)


@pytest.mark.parametrize("passes", [NAMES, (), ("parallel",), ("drop", "roll", "tokenize")])
@pytest.mark.parametrize("seed", range(4))
def test_all_ways_of_running_choose_the_same_branches(passes: tuple[str, ...], seed: int) -> None:
    for problem in ("What?", "Why not?", "Who?"):
        expected = outcome(search.eager(), 0, problem=problem)

        assert outcome(search.with_passes(passes), seed, problem=problem) == expected
    graph = from_json(to_json(search.graph))
    assert outcome(GraphProgram(graph), seed, problem="Who?") == expected
    assert "goes on in Python" not in search.explain()


def test_numbers_rate_branches_as_well() -> None:
    expected = outcome(counts.eager(), 0)

    assert outcome(counts, 3) == expected
    assert any(isinstance(node, Best) for node in walk(counts.graph.body))


def test_the_best_come_first_and_of_equal_ones_the_earlier() -> None:
    assert best_of([1, 3.5, 2, 3.5], 3) == [1, 3, 2]
    assert best_of([1, 1], 5) == [0, 1]


def test_chosen_branches_are_named_below_what_the_candidates_have_in_common() -> None:
    assert home_of(["root/fork1[0]", "root/fork1[1]"]) == "root"
    assert home_of(["root/fork1[0]/fork1[1]", "root/fork1[0]/fork2[0]"]) == "root/fork1[0]"
    assert home_of(["root/fork1[0]/fork1[0]"]) == "root/fork1[0]"
    assert home_of(["root/best1[0]/fork1[0]", "root/best1[1]/fork1[0]"]) == "root"
    assert home_of(["root"]) == "root"


def test_a_chosen_branch_leaves_the_candidate_as_it_is() -> None:
    @program
    def splits(s: State) -> Any:
        ways = s.fork(2)
        for way in ways:
            way += "w" + gen("x", max_tokens=2)
        (one,) = umbel.best(ways, key=lambda way: len(way["x"]))
        for way in ways:
            way += "later " + gen("y", max_tokens=2)
        one += "chosen " + gen("y", max_tokens=3)
        return one["x"], one["y"]

    expected = outcome(splits.eager(), 0)

    assert {str(outcome(splits, seed)) for seed in range(5)} == {str(expected)}


@pytest.mark.parametrize("is_eager", [True, False])
def test_what_best_does_not_take_is_an_error_at_its_line(is_eager: bool) -> None:
    calls = {
        "a count of 1 or more": lambda s: best(s.fork(2), 0, key=lambda b: 1),
        "of no branches": lambda s: best([], key=lambda b: 1),
        "takes branches": lambda s: best(["x"], key=lambda b: 1),
        "expected a number": lambda s: best(s.fork(2), key=lambda b: "x"),
        "a branch twice": lambda s: best([s, s], key=lambda b: 1),
    }
    for message, call in calls.items():

        @program
        def asks(s: State) -> None:
            call(s)  # noqa: B023  # run at once

        with FakeClient() as client, pytest.raises(ProgramError, match=message) as caught:
            (asks.eager() if is_eager else asks).run(client)

        assert caught.value.site is not None
        assert caught.value.site.file == __file__


@pytest.mark.parametrize("is_eager", [True, False])
def test_a_candidate_that_failed_is_the_error_of_the_first_that_did(is_eager: bool) -> None:
    with FakeClient() as client:
        client.model.fails = lambda context: chr(context[-1]) == "1"
        made = counts.eager() if is_eager else counts
        with pytest.raises(ProgramError) as caught:
            made.run(client)

    error = caught.value
    assert (error.branch, error.call) == ("root/fork1[1]", "gen('n')")
    assert error.site is not None
    assert error.site.line == counts.function.__code__.co_firstlineno + 4


def test_a_number_that_is_none_is_met_in_python() -> None:
    @program
    def asks(s: State) -> None:
        ways = s.fork(2)
        for way in ways:
            way += gen("x", max_tokens=2)
        best(ways, key=lambda way: int(way["x"]))

    for made in (asks, asks.eager()):
        with FakeClient() as client, pytest.raises(ProgramError, match="invalid literal") as caught:
            made.run(client)
        assert caught.value.site is not None
        assert caught.value.site.line == asks.function.__code__.co_firstlineno + 5


def test_a_variable_that_only_some_candidates_have_is_looked_up_in_python() -> None:
    @program
    def asks(s: State) -> Any:
        one, other = s.fork(2)
        one += gen("x", max_tokens=2) + gen("extra", max_tokens=2)
        other += "b" + gen("x", max_tokens=2)
        (top,) = best([one, other], key=lambda way: len(way["x"]))
        return "extra" in top

    assert outcome(asks, 1) == outcome(asks.eager(), 0)
    assert "not all branches that best() chose from have a variable 'extra'" in asks.explain()


def test_best_inside_the_body_of_a_map_stays_below_its_branch() -> None:
    def answer(branch: State, word: str) -> str:
        ways = branch.fork(2)
        for way in ways:
            way += word + way.path[-2] + gen("x", max_tokens=3)
        (top,) = best(ways, key=lambda way: len(way["x"]))
        top += gen("y", max_tokens=2)
        return top["y"]

    @program
    def asks(s: State) -> Any:
        s += "All: "
        return s.map(answer, ["a", "b", "c"])

    assert outcome(asks, 2) == outcome(asks.eager(), 0)


def test_a_drawing_shows_what_is_chosen_by_what() -> None:
    assert "fork the 1 best of 4 branches by root/fork1[0]['n'].int()" in as_text(counts.graph)
    assert "fork the 1 best of 4" in as_mermaid(counts.graph)
    assert "fork the 1 best of 4" in as_svg(counts.graph)


def test_the_verifier_finds_a_choice_that_cannot_be_made() -> None:
    def changed(**changes: Any) -> list[str]:
        import msgspec

        graph = counts.graph
        body = tuple(
            msgspec.structs.replace(node, **changes) if isinstance(node, Best) else node
            for node in graph.body
        )
        graph = msgspec.structs.replace(graph, body=body)
        return [problem.message for problem in problems_of(graph) if problem.is_error]

    assert changed() == []
    assert any("a score for each candidate" in m for m in changed(scores=()))
    assert any("no branch 'elsewhere'" in m for m in changed(branch="elsewhere"))
    assert any("no new branch below" in m for m in changed(children=("root/fork1[0]",)))
    assert any("no variable 'm'" in m for m in changed(names=("m",)))
    assert any("no branch 'x'" in m for m in changed(candidates=("x",) * 4))


def test_the_result_is_a_fork() -> None:
    @program
    def asks(s: State) -> Any:
        chosen = best(s.fork(3), 2, key=lambda way: 0)
        return isinstance(chosen, Forks), len(chosen.join())

    with FakeClient() as client:
        assert asks.eager().run(client).result == (True, 2)
