"""Values that can be any text: what a program asks of them, and makes of them, is in the graph."""

from contextlib import suppress
from typing import Any

import pytest
from unit.frontend_dsl.fake_client import FakeClient, FakeModel

from umbel.frontend_dsl import GraphProgram, ProgramError, State, gen, program, select
from umbel.frontend_dsl.events import TextDelta, VariableDone
from umbel.frontend_dsl.graph.nodes import Generate, Graph, Leave, Op, Ref, walk
from umbel.frontend_dsl.graph.serial import MAX_GIVEN_TOKENS, from_json, to_json
from umbel.frontend_dsl.graph.values import OPERATIONS, NoValue, apply_ops, check_op
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams


class Scripted(FakeModel):
    """Says `texts` one after another, as far as the number of `marks` in the context goes."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self._texts = texts

    def generate(self, context: Any, params: SamplingParams) -> str:
        if params.choices is not None:
            return super().generate(context, params)
        return self._texts[list(context).count(ord("|")) % len(self._texts)]


def _results(made: Any, texts: list[str], **arguments: Any) -> tuple[list[Any], list[Any]]:
    """What the compiled and what the eager program gives when the model says each of `texts`."""
    found: list[list[Any]] = [[], []]
    for index, face in enumerate((made, made.eager())):
        for text in texts:
            with FakeClient(model=Scripted(text)) as client:
                try:
                    state = face.run(client, **arguments)
                    found[index].append((state.result, state.text()))
                except ProgramError as error:
                    found[index].append((repr(error.cause), str(error.site), error.call))
    return found[0], found[1]


def _graph(made: Any) -> Graph:
    graph = made.compile().graph
    assert graph is not None, str(made.compile())
    return graph


def _never_leaves(made: Any) -> bool:
    return not any(isinstance(node, Leave) for node in walk(_graph(made).body))


@program
def counts(s: State) -> Any:
    s += gen("n")
    number = int(s["n"])
    out = []
    if number > 3:
        out.append("many")
    if 1 <= number < 3:
        out.append("one or two")
    if number in (0, 7):
        out.append("special")
    if number % 2 == 0 and not number:
        out.append("none")
    match number + 1:
        case 5:
            out.append("four")
        case 2 | 3:
            out.append("few")
    s += f"|{number}|{number * 2 - 1:03d}|{10 - number // 2!r}|" + str(number)
    return out, number, isinstance(number, int), min(number, 5), max(0, number)


def test_numbers_are_compared_calculated_with_and_written() -> None:
    texts = ["0", "1", "2", "4", " 7 ", "-3", "1_0", "007"]

    compiled, eager = _results(counts, texts)

    assert compiled == eager
    assert _never_leaves(counts)


def test_what_is_no_number_raises_what_python_raises() -> None:
    compiled, eager = _results(counts, ["seven", "", "1.5", "9" * 5000])

    assert compiled == eager
    assert eager[0][0].startswith("ValueError")
    assert eager[0][1].endswith(
        f"test_tracing_values.py:{counts.function.__code__.co_firstlineno + 3}"
    )


@program
def asks(s: State, question: str) -> Any:
    s += question + gen("x")
    text = s["x"]
    out: list[Any] = [len(text), text.count("a"), text.find("b")]
    if "yes" in text.lower() or text in "maybe or not":
        out.append("contains")
    if not text.strip().startswith("a") and text.endswith("."):
        out.append("ends")
    if text.isdigit() or text[:1].isupper():
        out.append("kind")
    if len(text) > 4 and len(question) != 2:
        out.append("long")
    return out, f"{len(text):>4}"


def test_tests_of_open_text_are_decisions() -> None:
    for question in ("q", "qq"):
        texts = ["", "Yes.", "maybe", "a.", "123", "Abba baab."]
        compiled, eager = _results(asks, texts, question=question)
        assert compiled == eager
    assert _never_leaves(asks)


def test_an_empty_text_has_no_first_character() -> None:
    @program
    def first(s: State) -> str:
        s += gen("x")
        return s["x"][0] + s["x"][-1]

    compiled, eager = _results(first, ["ab", ""])

    assert compiled == eager
    assert "IndexError" in eager[1][0]


@program
def given(s: State) -> Any:
    s += gen("n", regex="[0-9]{1,4}")
    s += "|"
    s += gen("x", max_tokens=int(s["n"]), stop=[s["n"], "end"], seed=int(s["n"]) + 1)
    s += "|"
    s += gen("y", choices=[s["x"], "other"])
    return s["y"]


def _params_of(face: Any, *texts: str) -> list[SamplingParams | None]:
    with FakeClient(model=Scripted(*texts)) as client:
        face.run(client)
    return [call.params for call in client.calls]


def test_options_are_made_of_values() -> None:
    assert _params_of(given, "12", "abc") == _params_of(given.eager(), "12", "abc")
    node = next(n for n in walk(_graph(given).body) if isinstance(n, Generate) and n.name == "x")
    assert [name for name, _ in node.given] == ["max_tokens", "stop", "seed"]
    assert from_json(to_json(_graph(given))) == _graph(given)


def test_a_stored_graph_bounds_the_tokens_that_a_value_may_ask_for() -> None:
    too_many = str(MAX_GIVEN_TOKENS + 1)

    assert _params_of(given, too_many, "x") == _params_of(given.eager(), too_many, "x")
    with (
        FakeClient(model=Scripted(too_many, "x")) as client,
        pytest.raises(ProgramError, match=f"a graph takes {MAX_GIVEN_TOKENS} at most"),
    ):
        GraphProgram(_graph(given)).run(client)


def test_an_option_that_cannot_be_is_refused_where_it_is_written() -> None:
    compiled, eager = _results(given, ["0"])

    assert compiled == eager
    assert "max_tokens" in eager[0][0]


@program
def sure(s: State, question: str) -> Any:
    s += question + select("v", ["yes", "no"])
    meta = s.meta("v")
    if meta.distribution["yes"] > 0.5:
        s += f" surely {meta.distribution['yes']:.3f}"
    elif meta.distribution["no"] >= 0.9:
        s += " never"
    return s["v"], meta.distribution["no"]


def test_probabilities_of_a_select_are_decided_on() -> None:
    texts = set()
    with FakeClient() as client:
        for question in ("a", "b", "c", "d", "e", "f", "g", "h"):
            compiled = sure.run(client, question=question)
            eager = sure.eager().run(client, question=question)
            assert (compiled.result, compiled.text()) == (eager.result, eager.text())
            texts.add(compiled.text()[1:].rstrip(".0123456789"))

    assert {"yes surely ", "no never"} <= texts
    assert _never_leaves(sure)
    assert from_json(to_json(_graph(sure))) == _graph(sure)


def test_a_probability_of_a_call_that_failed_is_left_to_python() -> None:
    @program
    def looks(s: State) -> Any:
        s += "Well?" + select("v", ["yes", "no"])
        found = s.meta("v").distribution["yes"] > 0.5
        return "high" if found else "low"

    outcomes = []
    for face in (looks, looks.eager()):
        with FakeClient(model=FakeModel(fails=lambda context: True)) as client:
            try:
                outcomes.append(face.run(client).result)
            except ProgramError as error:
                outcomes.append((repr(error.cause), str(error.site)))

    assert outcomes[0] == outcomes[1]


def test_a_class_pattern_leaves_a_number_to_python() -> None:
    @program
    def matches(s: State) -> str:
        s += gen("n")
        match int(s["n"]):
            case int():
                return "a number"
            case _:
                return "something else"

    compiled, eager = _results(matches, ["4"])

    assert compiled == eager == [("a number", "4")]
    assert "a class pattern looks into a number" in matches.explain()


def test_a_stream_that_goes_on_in_python_repeats_nothing() -> None:
    @program
    def leaves(s: State) -> int:
        s += "Start. " + gen("x")
        s += "|"
        forks = s.fork(2)
        for branch in forks:
            branch += "Say: " + gen("y")
        number = int(s["x"])
        s += f"middle {number}"
        s += gen("z")
        return number

    def events(face: Any) -> tuple[dict[str, str], list[tuple[str, str | None, str]]]:
        texts: dict[str, str] = {}
        ends = []
        with FakeClient(model=Scripted("12", "abc")) as client:
            for event in face.stream(client):
                if isinstance(event, TextDelta):
                    texts[event.branch] = texts.get(event.branch, "") + event.text
                elif isinstance(event, VariableDone):
                    ends.append((event.branch, event.variable, event.value))
        return texts, sorted(ends)

    assert events(leaves) == events(leaves.eager())


@pytest.mark.parametrize("text", ["", "12", "a.b", "-1", "1e3", "é"])
def test_operations_give_what_python_gives_or_have_no_value(text: str) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "slice": (0, 1, None), "item": (0,), "contains": ("a",), "is_in": ("abc12",),
        "format": (">4",), "format_number": (".1f",), "replace": ("a", "b"),
        "removeprefix": ("1",),
        "removesuffix": ("2",), "startswith": ("a",), "endswith": ("b",), "count": ("1",),
        "find": ("1",), "rfind": ("1",), **dict.fromkeys(("lt", "le", "gt", "ge", "eq"), (1.5,)),
        **dict.fromkeys(("add", "sub", "mul", "floordiv", "mod", "rsub"), (3,)),
    }  # fmt: skip
    for name in OPERATIONS:
        op = Op(name, arguments.get(name, ()))
        check_op(op)
        with suppress(NoValue):  # and nothing else
            assert isinstance(apply_ops(text, (op,)), str)


def test_a_number_cannot_grow_without_bound() -> None:
    with pytest.raises(NoValue, match="more than 40 digits"):
        apply_ops("7", (Op("mul", (10**30,)), Op("mul", (10**30,))))
    with pytest.raises(InvalidRequest, match="wider than"):
        check_op(Op("format_number", (">99999999",)))


def test_a_reference_keeps_what_it_reads_through_operations() -> None:
    ref = Ref("root", "v", probability_of="yes")

    assert ref.with_ops(()) == ref
