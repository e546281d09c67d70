"""Finding tool calls in text: whole, cut anywhere, broken."""

import json
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.server.tool_parser import CallOpened, CallPiece, TextPiece, ToolCallParser, ToolPiece
from umbel.server.tools import JSON_LIST, JSON_ONE, TAGGED, CallSyntax

NAMES = ("get_weather", "add")
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


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
    parser, found = ToolCallParser(syntax, NAMES), Read()
    bounds = [0, *sorted(cuts or []), len(text)]
    for start, stop in pairwise(bounds):
        found.add(parser.feed(text[start:stop]))
    found.add(parser.finish())
    assert parser.num_calls == len(found.calls)
    return found


def test_a_tagged_call_is_found_between_texts() -> None:
    found = read(f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>\nDone.", TAGGED)

    assert found.calls == [["get_weather", '{"city": "Paris"}']]
    assert found.text == "Let me see.\nDone."


def test_adjacent_calls_leave_no_text() -> None:
    one = f"<tool_call>\n{CALL}\n</tool_call>"

    found = read(f"{one}\n{one}\n", TAGGED)

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
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3}',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "ad',
        "",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    found = read(text, TAGGED)

    assert found == Read(text)


def test_a_call_after_a_broken_one_is_found() -> None:
    found = read(f"<tool_call>oh <tool_call>{CALL}</tool_call>", TAGGED)

    assert found.text == "<tool_call>oh"
    assert len(found.calls) == 1


def test_arguments_that_were_cut_off_are_given_as_far_as_they_go() -> None:
    found = read('<tool_call>{"name": "add", "arguments": {"a": "}', TAGGED)

    assert found.calls == [["add", '{"a": "}']]


def test_a_name_longer_than_any_call_is_text_however_it_is_cut() -> None:
    text = '<tool_call>{"name": "add"' + " " * 2000 + ', "arguments": {}}</tool_call>'

    assert read(text, TAGGED) == read(text, TAGGED, list(range(len(text)))) == Read(text)


def test_a_list_of_calls_and_a_single_call_are_read_without_marks() -> None:
    listed = read(f'[{CALL}, {{"name":"add","arguments":{{"a":[1,{{}}]}}}}]', JSON_LIST)
    single = read(CALL, JSON_ONE)

    assert listed.calls == [["get_weather", '{"city": "Paris"}'], ["add", '{"a":[1,{}]}']]
    assert single.calls == [["get_weather", '{"city": "Paris"}']]
    assert listed.text == single.text == ""


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
def outputs(draw: st.DrawFn) -> str:
    """Texts, calls and ruins of both, in any order."""
    pieces = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "call", "ruin"]))
        if kind == "text":
            pieces.append(draw(st.text(alphabet='ab <>"{}\n\\_tol', max_size=8)))
            continue
        call = {"name": draw(st.sampled_from([*NAMES, "no"])), "arguments": draw(ARGUMENTS)}
        space = draw(st.sampled_from(["", "\n", "  "]))
        text = f"<tool_call>{space}{json.dumps(call)}{space}</tool_call>{space}"
        if kind == "ruin":
            text = text[: draw(st.integers(0, len(text)))]
        pieces.append(text)
    return "".join(pieces)


@settings(max_examples=300, deadline=None)
@given(text=outputs(), data=st.data())
def test_every_way_of_cutting_gives_the_same(text: str, data: st.DataObject) -> None:
    syntax = data.draw(st.sampled_from([TAGGED, JSON_LIST, JSON_ONE]))
    if syntax is not TAGGED:
        text = text.replace("<tool_call>", "[").replace("</tool_call>", ",")
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))

    assert read(text, syntax, cuts) == read(text, syntax)
    assert read(text, syntax, list(range(len(text)))) == read(text, syntax)


@settings(max_examples=100, deadline=None)
@given(
    calls=st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3),
    tagged=st.booleans(),
)
def test_calls_are_found_exactly(calls: list[tuple[str, dict[str, object]]], tagged: bool) -> None:
    texts = [json.dumps({"name": name, "arguments": value}) for name, value in calls]
    if tagged:
        text = "".join(f"<tool_call>\n{one}\n</tool_call>" for one in texts)
    else:
        text = f"[{', '.join(texts)}]"

    found = read(text, TAGGED if tagged else JSON_LIST)

    assert found.text == ""
    assert [(name, json.loads(value)) for name, value in found.calls] == calls
