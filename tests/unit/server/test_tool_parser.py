"""Finding tool calls in text: whole, cut anywhere, broken."""

import json
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.grammar.cfg.tools import tool_formats
from umbel.server.tool_parser import CallOpened, CallPiece, TextPiece, ToolCallParser, ToolPiece
from umbel.server.tool_syntax import CUSTOM_END, CallSyntax, begin_of_custom, make_syntax

NAMES = ("get_weather", "add")
CUSTOMS = ("note",)
HERMES = make_syntax("hermes", ())
SYNTAXES = {name: make_syntax(name, ()) for name, form in tool_formats().items() if not form.answer}


def written(name: str, arguments: str, syntax: CallSyntax = HERMES) -> str:
    """One call as a model writes it."""
    return f"{syntax.open}{syntax.begin_of(name)}{arguments}{syntax.end}{syntax.close}"


CALL = written("get_weather", '{"city": "Paris"}')


@dataclass
class Read:
    """What the pieces say together."""

    text: str = ""
    calls: list[list[str]] = field(default_factory=list)

    def add(self, pieces: list[ToolPiece]) -> None:
        for piece in pieces:
            match piece:
                case TextPiece(text):
                    self.text += text
                case CallOpened(index, name):
                    assert index == len(self.calls)
                    self.calls.append([name, ""])
                case CallPiece(index, text):
                    self.calls[index][1] += text


def read(text: str, syntax: CallSyntax, cuts: list[int] | None = None) -> Read:
    parser, found = ToolCallParser(syntax, NAMES, CUSTOMS), Read()
    bounds = [0, *sorted(cuts or []), len(text)]
    for start, stop in pairwise(bounds):
        found.add(parser.feed(text[start:stop]))
    found.add(parser.finish())
    assert parser.num_calls == len(found.calls)
    return found


def test_a_call_is_found_between_texts() -> None:
    found = read(f"Let me see.\n{CALL}\nDone.", HERMES)

    assert found.calls == [["get_weather", '{"city": "Paris"}']]
    assert found.text == "Let me see.\nDone."


def test_adjacent_calls_leave_no_text() -> None:
    found = read(f"{CALL}\n{CALL}\n", HERMES)

    assert len(found.calls) == 2
    assert found.text == ""


@pytest.mark.parametrize(
    "text",
    [
        "plain text",
        "  ends with space \n",
        "half a mark <tool_c",
        "<tool_call>",
        "<tool_call>no json</tool_call>",
        written("unknown", "{}"),
        '<tool_call>\n{"name": "ad',
        "",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read(text, HERMES) == Read(text)


def test_a_call_after_a_broken_one_is_found() -> None:
    found = read(f"<tool_call>oh {CALL}", HERMES)

    assert found.text == "<tool_call>oh"
    assert len(found.calls) == 1


def test_arguments_that_were_cut_off_are_given_as_far_as_they_go() -> None:
    found = read('<tool_call>\n{"name": "add", "arguments": {"a": "}', HERMES)

    assert found.calls == [["add", '{"a": "}']]


@pytest.mark.parametrize("name", SYNTAXES)
def test_the_calls_of_every_format_are_found(name: str) -> None:
    syntax = SYNTAXES[name]
    first, second = ('{"a": [1, {}]}', '{"b": "}"}')
    calls = [["add", first]]
    text = f"{syntax.open}{syntax.begin_of('add')}{first}{syntax.end}"
    if syntax.is_parallel:
        calls.append(["get_weather", second])
        text += f"{syntax.between}{syntax.begin_of('get_weather')}{second}{syntax.end}"

    found = read(f"So: {text}{syntax.close}", syntax)

    assert found == Read("So:", calls)


ARGUMENTS = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=4,
    ),
    max_size=3,
)


@st.composite
def outputs(draw: st.DrawFn, syntax: CallSyntax) -> str:
    """Texts, calls and ruins of both, in any order."""
    pieces = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "call", "custom", "ruin"]))
        free = draw(st.text(alphabet='ab <>[]"{}\n\\_tolCA/', max_size=8))
        if kind == "text":
            pieces.append(free)
            continue
        name = draw(st.sampled_from([*NAMES, "no"]))
        text = written(name, json.dumps(draw(ARGUMENTS)), syntax)
        if kind == "custom" or (kind == "ruin" and draw(st.booleans())):
            text = f"{begin_of_custom('note')}{free}{CUSTOM_END}"
        text += draw(st.sampled_from(["", "\n", "  ", syntax.between]))
        pieces.append(text[: draw(st.integers(0, len(text)))] if kind == "ruin" else text)
    return "".join(pieces)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_every_way_of_cutting_gives_the_same(data: st.DataObject) -> None:
    syntax = SYNTAXES[data.draw(st.sampled_from(sorted(SYNTAXES)))]
    text = data.draw(outputs(syntax))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))

    assert read(text, syntax, cuts) == read(text, syntax)
    assert read(text, syntax, list(range(len(text)))) == read(text, syntax)


@settings(max_examples=100, deadline=None)
@given(calls=st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3))
def test_calls_are_found_exactly(calls: list[tuple[str, dict[str, object]]]) -> None:
    text = "\n".join(written(name, json.dumps(value)) for name, value in calls)

    found = read(text, HERMES)

    assert found.text == ""
    assert [(name, json.loads(value)) for name, value in found.calls] == calls


@settings(max_examples=100, deadline=None)
@given(inputs=st.lists(st.text(alphabet="ab<>/\n {}_custom", max_size=12), min_size=1, max_size=3))
def test_inputs_of_custom_tools_are_found_exactly(inputs: list[str]) -> None:
    text = "\n".join(f"{begin_of_custom('note')}{given}{CUSTOM_END}" for given in inputs)

    found = read(text, HERMES)

    assert found == Read("", [["note", given] for given in inputs])
