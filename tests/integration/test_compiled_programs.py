"""Compiled programs on the embedded model: the examples, with all passes and without each."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import umbel
from umbel.frontend_dsl import GraphProgram, Program, State
from umbel.frontend_dsl.graph.serial import from_json, to_json
from umbel.frontend_dsl.passes.pipeline import NAMES
from umbel.runtime.engine import Engine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PASSES = [NAMES, (), ("parallel",), tuple(name for name in NAMES if name != "parallel")]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(dtype="float32") as engine:  # other types round by the shape of a step
        yield engine


@umbel.tool
def words(text: str) -> int:
    return len(text.split())


@umbel.program(temperature=0.0, max_tokens=10)
def debate(s: State, topic: str) -> Any:
    s += umbel.system("You are brief.")
    s += umbel.user(f"Is {topic} good?")
    forks = s.fork(3)
    for number, branch in enumerate(forks):
        with branch.assistant():
            branch += f"Point {number}:"
            branch += umbel.select("side", [" yes", " no"])
            if branch["side"] == " yes":
                branch += ", because" + umbel.gen("why", stop=["."])
                branch += f" ({words(branch['why'])} words)"
            branch += umbel.gen("grade", regex=" [1-3]")
            if int(branch["grade"]) > 1:
                branch += " fine"
    forks.join()
    with s.assistant():
        s += f"{forks[0]['side']} and {forks[1]['grade']}:" + umbel.gen("end")
    return [branch["grade"] for branch in forks], s["end"]


def _example(name: str) -> Program:
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    program = getattr(importlib.import_module(name), name)
    assert isinstance(program, Program)
    return program


def _seen(state: State) -> Any:
    return state.result, state.text(), state.variables(), [_seen(b) for b in state.branches]


@pytest.mark.parametrize("passes", PASSES, ids=lambda passes: "+".join(passes) or "none")
def test_no_pass_changes_an_output(engine: Engine, passes: tuple[str, ...]) -> None:
    expected = debate.eager().run(engine, topic="rain")

    found = debate.with_passes(passes).run(engine, topic="rain")

    assert _seen(found) == _seen(expected)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("classify", {"review": "It broke on the first day."}),
        ("extract", {"text": "Please send 5 chairs to Peter Novak in Prague."}),
        ("agent", {"question": "What is the height of Everest?"}),
    ],
)
def test_examples_give_the_same_eager_and_compiled(
    engine: Engine, name: str, arguments: dict[str, str]
) -> None:
    program = _example(name)

    expected = program.eager().run(engine, **arguments)
    found = program.run(engine, **arguments)

    assert _seen(found) == _seen(expected)
    assert "compiled" in program.explain()


def test_a_stored_graph_gives_the_same_on_the_engine(engine: Engine) -> None:
    graph = from_json(to_json(debate.graph))

    found = GraphProgram(graph, tools=[words]).run(engine, topic="rain")

    expected = debate.eager().run(engine, topic="rain")
    assert found.text() == expected.text()
    assert found.result[1] == expected.result[1]
