"""`s.map` and `s.reduce`: the same function for many items, at the same time."""

from typing import Any

import pytest
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

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
from umbel.frontend_dsl.driver import Driver
from umbel.frontend_dsl.graph.nodes import walk
from umbel.frontend_dsl.graph.serial import from_json, to_json
from umbel.runtime.errors import InvalidRequest, RequestCancelled

_seen: list[str] = []


@tool
def note(text: str) -> str:
    _seen.append(text)
    return text


def rate(branch: State, document: str) -> tuple[str, str]:
    """Reads in the middle, so one after another would wait for each."""
    branch += document + gen("words", max_tokens=2)
    if branch["words"] != "zz":
        branch += "Is it good? "
    branch += select("good", ["yes", "no"])
    return branch["words"], branch["good"]


@program
def rates(s: State, documents: list[str]) -> Any:
    s += "Rate: "
    rated = s.map(rate, documents)
    s += f"{len(rated)} rated. " + gen("summary", max_tokens=3)
    return rated, s["summary"]


def shorter(branch: State, left: str, right: str) -> str:
    branch += f"{left} and {right} in short: " + gen("both", max_tokens=3)
    return branch["both"]


@program
def sums_up(s: State, parts: list[str]) -> str:
    s += "Sum up. "
    return s.reduce(shorter, parts)  # type: ignore[no-any-return]  # what `shorter` returns


def _tree(state: State) -> Any:
    return state.path, state.text(), [_tree(branch) for branch in state.branches]


@pytest.mark.parametrize("number", [0, 1, 3, 5])
@pytest.mark.parametrize(("made", "name"), [(rates, "documents"), (sums_up, "parts")])
def test_eager_and_compiled_give_the_same_in_any_order_of_answers(
    made: Program, name: str, number: int
) -> None:
    items = [f"item{i} " for i in range(number)]
    outcomes = set()
    for face in (made, made.eager()):
        for seed in range(4):
            with FakeClient(seed=seed) as client:
                try:
                    state = face.run(client, **{name: items})
                    outcomes.add(repr((state.result, _tree(state))))
                except ProgramError as error:
                    outcomes.add(str(error))

    assert len(outcomes) == 1
    assert made.compile(**{name: items or ["x"]}).graph is not None


def _first_calls(face: Program, **arguments: Any) -> int:
    """Calls that are under way before any was answered."""
    client = FakeClient(manual=True)
    driver = Driver(client, lambda delivery: None)
    driver.start(face.execution(driver, arguments, keep_events=False))
    driver.work()
    number = len(client.calls)
    driver.close(RequestCancelled("enough"))
    return number


def test_all_items_are_under_way_together() -> None:
    documents = [f"document {i}" for i in range(50)]

    assert _first_calls(rates.eager(), documents=documents) == 50
    # Compiled, the summary begins, too: its text depends on no item.
    assert _first_calls(rates, documents=documents[:5]) == 6


def test_a_reduction_has_a_logarithm_of_rounds() -> None:
    with FakeClient() as client:
        state = sums_up.run(client, parts=[str(i) for i in range(9)])

    assert [len(branch.calls) for branch in state.branches] == [1] * 8
    assert len({branch.path.partition("[")[0] for branch in state.branches}) == 4


def test_a_map_in_a_map_runs_its_items_together() -> None:
    def inner(branch: State, word: str) -> str:
        branch += word + gen("x", max_tokens=2)
        return branch["x"]

    def outer(branch: State, number: int) -> list[str]:
        branch += f"{number}: "
        return branch.map(inner, ["a", "b", "c"])

    @program
    def nests(s: State) -> Any:
        return s.map(outer, [1, 2])

    assert _first_calls(nests.eager()) == 6
    with FakeClient() as client:
        assert nests.run(client).result == nests.eager().run(client).result


@pytest.mark.parametrize("is_eager", [True, False])
def test_tools_keep_the_order_of_the_items_and_stop_where_one_fails(is_eager: bool) -> None:
    def uses(branch: State, word: str) -> str:
        branch += word + gen("x", max_tokens=2)
        note(f"{word} first")
        if word == "c":
            raise ValueError(f"{word}{branch['x']}")
        branch += gen("y", max_tokens=2)
        note(f"{word} {branch['y'][:0]}second")
        return branch["x"]

    @program
    def maps(s: State) -> Any:
        return s.map(uses, ["a", "b", "c", "d"])

    face = maps.eager() if is_eager else maps
    for seed in range(3):
        _seen.clear()
        with FakeClient(seed=seed) as client, pytest.raises(ProgramError, match="ValueError: c"):
            face.run(client)
        assert _seen == ["a first", "a second", "b first", "b second", "c first"]


def test_the_first_item_that_fails_is_raised_with_its_line() -> None:
    fails = FakeModel(fails=lambda context: ord("1") in context or ord("3") in context)

    for face in (rates, rates.eager()):
        with FakeClient(model=fails) as client, pytest.raises(ProgramError) as caught:
            face.run(client, documents=["d0", "d1", "d2", "d3"])
        assert caught.value.branch == "root/fork1[1]"
        assert caught.value.call == "gen('words')"
        assert caught.value.site is not None
        assert caught.value.site.line == rate.__code__.co_firstlineno + 2


def test_a_map_appends_to_its_own_branches_only() -> None:
    @program
    def strays(s: State) -> Any:
        def stray(branch: State, word: str) -> None:
            nonlocal s
            s += word

        return s.map(stray, ["a", "b"])

    with (
        FakeClient() as client,
        pytest.raises(ProgramError, match="appends to root, but its own branch is"),
    ):
        strays.run(client)


def test_a_run_that_is_given_up_ends_its_bodies() -> None:
    ended = []

    def waits(branch: State, word: str) -> str:
        try:
            branch += word + gen("x")
            return branch["x"]
        finally:
            ended.append(word)

    @program
    def maps(s: State) -> Any:
        return s.map(waits, ["a", "b"])

    client = FakeClient(manual=True)
    driver = Driver(client, lambda delivery: None)
    execution = maps.eager().execution(driver, {}, keep_events=False)
    driver.start(execution)
    driver.work()
    driver.close(RequestCancelled("enough"))

    assert sorted(ended) == ["a", "b"]
    assert not execution.fibers
    assert all(call.is_cancelled for call in client.calls)


def test_nothing_to_reduce_is_refused() -> None:
    with FakeClient() as client, pytest.raises(ProgramError, match="at least one") as caught:
        sums_up.eager().run(client, parts=[])

    assert isinstance(caught.value.cause, InvalidRequest)


def kind_of(branch: State, document: str) -> str:
    branch += document + select("kind", ["old", "new"])
    return "O" if branch["kind"] == "old" else "N"


def judged(branch: State, document: str) -> tuple[str, str]:
    """Decides twice, in a loop too; which variables there are depends on it."""
    for turn in range(3):
        branch += document + gen(f"go{turn}", choices=["on", "stop"])
        if branch[f"go{turn}"] == "stop":
            break
    if branch["go0"] == "on":
        branch += "?" + gen("words", max_tokens=3)
        return branch["words"].upper(), "long"
    return document, "short"


@program
def sorts(s: State, documents: list[str]) -> Any:
    s += "Sort: "
    kinds = s.map(kind_of, documents)
    found = s.map(judged, documents)
    s += " ".join(kinds) + gen("summary", max_tokens=3)
    if kinds[0] == "N" or found[1][1] == "short":
        s += "!" + gen("more", max_tokens=2)
    return kinds, found, s["summary"]


@pytest.mark.parametrize("number", [2, 7, 20])
def test_any_number_of_items_may_decide(number: int) -> None:
    documents = [f"item{i} " for i in range(number)]
    outcomes = set()
    for made in (sorts.eager(), sorts, sorts.with_passes([]), sorts.with_passes(["parallel"])):
        for seed in range(2):
            with FakeClient(seed=seed) as client:
                state = made.run(client, documents=documents)
            outcomes.add(str((state.result, _tree(state))))

    assert len(outcomes) == 1
    assert "goes on in Python" not in sorts.explain()
    graph = sorts.compile(documents=documents).graph
    assert graph is not None
    alone = GraphProgram(from_json(to_json(graph)))
    with FakeClient() as client:
        state = alone.run(client, documents=documents)
    assert outcomes == {str((state.result, _tree(state)))}


def test_the_failure_of_an_item_that_decides_is_that_of_the_first() -> None:
    def fails(context: Any) -> bool:
        return sum(context) % 5 == 0

    errors = set()
    for made in (sorts.eager(), sorts):
        with (
            FakeClient(model=FakeModel(fails=fails), seed=1) as client,
            pytest.raises(ProgramError) as caught,
        ):
            made.run(client, documents=[f"item{i} " for i in range(9)])
        errors.add((str(caught.value.site), caught.value.branch, caught.value.call))

    assert len(errors) == 1


def test_a_body_that_changes_something_outside_is_followed_with_the_program() -> None:
    @program
    def notes(s: State) -> Any:
        seen: list[str] = []

        def body(branch: State, word: str) -> str:
            branch += word + select("x", ["a", "b"])
            if branch["x"] == "a":
                seen.append(word)
                return "A"
            return "B"

        return s.map(body, ["p", "q"]), seen

    outcomes = set()
    for made in (notes.eager(), notes):
        with FakeClient() as client:
            outcomes.add(str(made.run(client).result))

    assert len(outcomes) == 1


def flag_of(branch: State, document: str) -> bool:
    branch += document + select("good", ["yes", "no"])
    if branch["good"] == "yes":
        branch += gen("why", max_tokens=2)
        return True
    return False


def grade_of(branch: State, document: str) -> int | None:
    branch += document + select("grade", ["a", "b", "c"])
    grades = {"a": 1, "b": 2}
    return grades.get(branch["grade"])


def length_of(branch: State, document: str) -> int:
    branch += document + gen("words", max_tokens=3)
    return len(branch["words"]) if branch["words"] != "zz" else 0


def only_appends(branch: State, document: str) -> None:
    branch += document + select("good", ["yes", "no"])
    if branch["good"] == "yes":
        branch += gen("why", max_tokens=2)


def many_things(branch: State, document: str) -> dict[str, Any]:
    branch += document + gen("person", json_schema={"type": "object"})
    branch += select("good", ["yes", "no"])
    is_good = branch["good"] == "yes"
    if is_good:
        branch += gen("why", max_tokens=2)
    return {"who": branch.json("person"), "good": is_good, "tags": [branch["good"], "x"]}


def _uses_flags(s: State, documents: list[str]) -> Any:
    flags = s.map(flag_of, documents)
    s += "good" if flags[0] else "bad"
    if flags[1] is True:
        s += gen("more", max_tokens=2)
    match flags[2]:
        case True:
            s += "!"
        case False:
            s += "?"
    return flags, f"{flags[3]}", int(flags[4]), isinstance(flags[5], bool)


def _uses_grades(s: State, documents: list[str]) -> Any:
    grades = s.map(grade_of, documents)
    s += "none" if grades[0] is None else f"grade {grades[0]}"
    best = max(grades[1] or 0, 2)
    s += gen("end", max_tokens=1 + best)
    return grades, best


def _uses_lengths(s: State, documents: list[str]) -> Any:
    lengths = s.map(length_of, documents)
    if lengths[0] > 1:
        s += "long"
    s += gen("end", max_tokens=2)
    return lengths


def _uses_nothing(s: State, documents: list[str]) -> Any:
    s.map(only_appends, documents)
    s += gen("end", max_tokens=2)
    return s["end"]


def _uses_many(s: State, documents: list[str]) -> Any:
    found = s.map(many_things, documents)
    s += "".join(item["tags"][0] for item in found)
    return found


@pytest.mark.parametrize(
    "function", [_uses_flags, _uses_grades, _uses_lengths, _uses_nothing, _uses_many]
)
def test_bodies_that_decide_may_return_any_plain_value(function: Any) -> None:
    """With twenty items, paths that multiply would be a million."""
    made = program(function)
    documents = [f"item{i} " for i in range(20)]
    outcomes = set()
    for face in (made.eager(), made, made.with_passes([])):
        for seed in range(2):
            with FakeClient(seed=seed) as client:
                state = face.run(client, documents=documents)
            outcomes.add(repr((state.result, _tree(state))))

    assert len(outcomes) == 1
    graph = made.compile(documents=documents).graph
    assert graph is not None
    assert "goes on in Python" not in made.explain()
    assert sum(1 for _ in walk(graph.body)) < 20 * 12
    with FakeClient() as client:
        state = GraphProgram(from_json(to_json(graph))).run(client, documents=documents)
    assert outcomes == {repr((state.result, _tree(state)))}


def test_maps_whose_paths_multiply_are_named_with_their_line() -> None:
    def mixed(branch: State, word: str) -> Any:
        branch += word + gen("x", max_tokens=2)
        if branch["x"] == "zz":
            return None
        return branch["x"]

    @program
    def maps(s: State, words: list[str]) -> Any:
        return s.map(mixed, words)

    line = maps.function.__code__.co_firstlineno + 2
    reason = "the body of this map decides and returns None or a text"
    for number in (12, 1000):
        assert maps.compile(words=["a"] * number).graph is None
        assert f"test_map.py:{line}: {reason}" in maps.explain()
    assert maps.compile(words=["a"] * 3).graph is not None
    with FakeClient() as client:
        results = [face.run(client, words=["a"] * 12).result for face in (maps, maps.eager())]
    assert results[0] == results[1]


def test_two_maps_whose_paths_multiply_are_both_named() -> None:
    def mixed(branch: State, word: str) -> Any:
        branch += word + gen("x", max_tokens=2)
        return None if branch["x"] == "zz" else branch["x"]

    @program
    def maps(s: State, words: list[str]) -> Any:
        return s.map(mixed, words), s.map(mixed, words)

    maps.compile(words=["a"] * 6)

    line = maps.function.__code__.co_firstlineno + 2
    assert f"test_map.py:{line}: the body of this map decides" in maps.explain()
