"""The programs in `examples/` give sensible results on the embedded model."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from umbel.frontend_dsl import Program, totals
from umbel.runtime.engine import Engine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PROGRAM_FILES = ("agent", "classify", "extract", "parts", "tree_of_thought")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # msgspec looks up annotations there
    spec.loader.exec_module(module)
    return module


def test_extraction_gives_typed_values_that_stand_in_the_text(engine: Engine) -> None:
    example = _load("extract")

    states = example.extract.run_batch(engine, [{"text": text} for text in example.TEXTS])

    assert [state.error for state in states] == [None] * len(states)
    for text, state in zip(example.TEXTS, states, strict=True):
        order = state.result
        assert isinstance(order, example.Order)
        assert order.customer in text
        assert str(order.quantity) in text
        assert state.meta("order").usage.num_forced_tokens > 0


def test_the_parts_of_an_output_come_back_by_name(engine: Engine) -> None:
    example = _load("parts")

    states = example.answer.run_batch(engine, [{"question": q} for q in example.QUESTIONS])

    for state in states:
        record = state.meta("reply")
        (thought,) = record.captures["thought"]
        (answer,) = record.captures["answer"]
        assert record.text == f"Thought: {thought.text}\nAnswer: {answer.text}"
        assert record.text[thought.start : thought.end] == thought.text
        assert len(engine.encode(f" {thought.text}\n")) <= 41  # it shares a token with each side
        assert state.result == answer.text


def test_classification_is_mostly_right_and_computes_the_examples_once(engine: Engine) -> None:
    example = _load("classify")
    reviews = example.load_reviews()

    states = example.classify.run_batch(engine, [{"review": review} for _, review in reviews])

    right = sum(state.result == label for (label, _), state in zip(reviews, states, strict=True))
    assert len(reviews) == 40
    assert right >= 34
    prefix = len(engine.encode(example.EXAMPLES))
    computed = [totals(state).num_computed_tokens for state in states]
    assert sum(number >= prefix for number in computed) <= 1


def test_tree_of_thought_scores_and_votes(engine: Engine) -> None:
    example = _load("tree_of_thought")

    state = example.think.run(engine, problem="How can I sleep better at night?")

    ideas, voters = state.branches[: example.WIDTH], state.branches[example.WIDTH :]
    assert all(0.0 < idea.meta("practical").distribution["Yes"] < 1.0 for idea in ideas)
    assert len({idea["idea"] for idea in ideas}) > 1
    assert sum("step" in idea for idea in ideas) == example.KEPT
    assert [voter["vote"] in (" A", " B") for voter in voters] == [True] * example.VOTERS
    assert state.result.startswith("You could")


def test_the_agent_chooses_the_right_tools_over_several_turns(engine: Engine) -> None:
    example = _load("agent")

    states = example.agent.run_batch(
        engine, [{"question": question} for question in example.QUESTIONS]
    )

    for state in states:
        values = state.variables()
        tools = [values[name].strip() for name in values if name.startswith("tool")]
        assert tools == ["lookup", "answer", "convert", "answer", "calculate", "answer"]
    assert "Result: 29032.15 feet" in states[0].text()
    assert "Result: 14516" in states[0].text()


@pytest.mark.parametrize("name", PROGRAM_FILES)
def test_an_example_is_short_and_has_a_program_and_a_main(name: str) -> None:
    module = _load(name)

    assert 20 <= len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 60
    assert any(isinstance(value, Program) for value in vars(module).values())
    assert callable(module.main)


def test_main_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    _load("extract").main()

    assert "Order(customer='Peter Novak'" in capsys.readouterr().out
