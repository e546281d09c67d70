"""Errors name program, file and line, call and branch, wherever in a program they come from, and
the same eager and compiled.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

from umbel.frontend_dsl import Program, ProgramError, State, best, gen, program, select, tool


@tool
def breaks(text: str) -> str:
    raise RuntimeError("the tool is broken")


@program
def loops(s: State) -> None:
    for turn in range(5):
        s += f"turn {turn}: " + gen(f"x{turn}", choices=["a", "b"])
        if s[f"x{turn}"] == "none":
            break
        s += "more " + gen(f"y{turn}", max_tokens=1)  # fails


def body(branch: State, word: str) -> str:
    branch += word + select("kind", ["a", "b"])
    if branch["kind"] == "a":
        branch += "."
    branch += "fail" + gen("x", max_tokens=1)  # fails
    return branch["x"]


@program
def maps(s: State) -> Any:
    return s.map(body, ["one ", "two "])


def pair(branch: State, left: str, right: str) -> str:
    branch += f"{left}{right}fail" + gen("both", max_tokens=1)  # fails
    return branch["both"]


@program
def reduces(s: State) -> Any:
    return s.reduce(pair, ["a", "b", "c"])


@program
def chooses(s: State) -> None:
    ways = s.fork(2)
    for way in ways:
        way += "way " + gen("n", choices=["1", "2"])
    (top,) = best(ways, key=lambda way: int(way["n"]))
    top += "fail" + gen("rest", max_tokens=1)  # fails
    s += top["rest"]


@program
def calls(s: State) -> None:
    s += "ask " + gen("question", max_tokens=1)
    s += breaks(s["question"])  # fails


class Row(msgspec.Struct):
    age: list[str]  # the fake model writes a number


@program
def decodes(s: State) -> Any:
    s += "row " + gen("row", json_schema=Row)
    row = s.json("row")  # fails
    s += breaks("not reached")
    return row


def ends_with(text: str) -> Callable[[Sequence[int]], bool]:
    return lambda context: list(context[-len(text) :]) == list(map(ord, text))


CASES = {
    "a turn of a loop": (loops, "more ", "gen('y0')", "root", loops.function),
    "an item of a map": (maps, "fail", "gen('x')", "root/fork1[0]", body),
    "a pair of a reduce": (reduces, "fail", "gen('both')", "root/fork1[0]", pair),
    "a chosen branch": (chooses, "fail", "gen('rest')", "root/best2[0]", chooses.function),
    "JSON of another type": (decodes, "nothing", "gen('row')", "root", decodes.function),
    "a tool": (calls, "nothing", "breaks(...)", "root", calls.function),
}


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("place", CASES)
def test_an_error_names_its_line_call_and_branch(place: str, is_eager: bool) -> None:
    made, text, call, branch, function = CASES[place]
    client = FakeClient(model=FakeModel(fails=ends_with(text)))

    with client, pytest.raises(ProgramError) as caught:
        _way(made, is_eager).run(client)

    error = caught.value
    assert (error.call, error.branch) == (call, branch)
    assert error.site is not None
    assert (error.site.file, error.site.line) == (__file__, _failing_line(function))
    message = str(error)
    for part in (made.name, f"{__file__}:{error.site.line}", call, f"branch {branch}"):
        assert part in message


def _way(made: Program, is_eager: bool) -> Program:
    if is_eager:
        return made.eager()
    assert made.compile().graph is not None, made.explain()
    return made


def _failing_line(function: Any) -> int:
    import inspect

    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if "# fails" in line)
