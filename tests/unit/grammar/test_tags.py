"""Structural tags: free text until a trigger, wherever tokens begin and end."""

import json
from typing import Any

import pytest
from unit.grammar.oracles import byte_vocabulary, mask_ids, matches

from umbel.grammar import (
    GrammarError,
    UnsupportedGrammar,
    Vocabulary,
    compile_structural_tag,
)

FUNCTION_TAGS = {
    "structures": [
        {"begin": "<function=f>", "schema": {"enum": [1, 2]}, "end": "</function>"},
        {"begin": "<function=go>", "schema": {"type": "boolean"}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}


def test_text_is_free_until_a_trigger_and_again_after_the_tag() -> None:
    constraint = compile_structural_tag(FUNCTION_TAGS, byte_vocabulary())

    accepted = [
        "",
        "hello <function is a word, é",
        "a<function=f>1</function>",
        "<function=go>true</function> and <<function=f>2</function>\n",
    ]
    rejected = [
        "<function=",
        "<function=x>",
        "<function=f>3</function>",
        "<function=f>1",
        "x<function=go>1</function>",
    ]
    assert [text for text in accepted if not matches(constraint, text)] == []
    assert [text for text in rejected if matches(constraint, text)] == []


def test_json_text_is_read_too() -> None:
    constraint = compile_structural_tag(json.dumps(FUNCTION_TAGS), byte_vocabulary())

    assert matches(constraint, "<function=f>2</function>")


def test_a_token_may_hold_the_end_of_the_text_the_trigger_and_what_follows() -> None:
    texts: list[bytes | None] = [b"x", b"a<", b"f=", b"<f=g>1", b"a<f=h>", b"g>", b"1!", b"2"]
    texts += [b"!", b"1"]
    vocabulary = Vocabulary(texts, [10], size=11)
    tag = {
        "structures": [{"begin": "<f=g>", "schema": {"const": 1}, "end": "!"}],
        "triggers": ["<f="],
    }
    matcher = compile_structural_tag(tag, vocabulary).start()

    assert mask_ids(matcher, vocabulary) == {0, 1, 2, 3, 5, 6, 7, 8, 9, 10}  # not `a<f=h>`
    assert matcher.advance(1)
    assert matcher.advance(2)
    assert mask_ids(matcher, vocabulary) == {5}
    assert matcher.advance(5)
    assert mask_ids(matcher, vocabulary) == {6, 9}


def test_a_trigger_that_overlaps_itself_is_found() -> None:
    tag = {"structures": [{"begin": "aab", "schema": {"const": 1}, "end": ""}], "triggers": ["aab"]}
    constraint = compile_structural_tag(tag, byte_vocabulary())

    assert matches(constraint, "aaaab1")
    assert not matches(constraint, "aaaabx")


def test_free_text_is_valid_utf8() -> None:
    matcher = compile_structural_tag(FUNCTION_TAGS, byte_vocabulary()).start()

    assert not matcher.advance(0x80)
    assert matcher.advance(0xE2)
    assert not matcher.accepting
    assert not matcher.advance(ord("a"))


def tagged(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": {"type": kind, **more}}


BOOL = {"type": "json_schema", "json_schema": {"type": "boolean"}}
TAG = {"type": "tag", "begin": "<b>", "content": BOOL, "end": "</b>"}

FORMATS = [
    (tagged("const_string", value="yes"), ["yes"], ["no"]),
    (tagged("json_schema", json_schema={"type": "null"}), ["null"], ["0"]),
    (tagged("regex", pattern="a+"), ["aa"], [""]),
    (tagged("grammar", grammar='root ::= "x" root | "y"'), ["xy"], ["x"]),
    (tagged("grammar", grammar='start: "x" start | "y"'), ["xxy"], ["x"]),
    (tagged("any_text"), ["", "é!"], []),
    (tagged("any_text", excludes=["<"]), ["ab"], ["a<"]),
    (tagged("sequence", elements=[BOOL, {"type": "any_text"}]), ["true", "truex"], ["x"]),
    (tagged("or", elements=[BOOL, {"type": "const_string", "value": "-"}]), ["-", "true"], [""]),
    (tagged("sequence", elements=[{"type": "optional", "content": TAG}, BOOL]), ["true"], ["<b>"]),
    ({"type": "structural_tag", "format": TAG}, ["<b>true</b>"], ["<b>1</b>"]),
    (
        tagged("tag", begin="<think>", content={"type": "any_text"}, end="</think>"),
        ["<think>a</thin</think>", "<think></think>"],
        ["<think>", "<think></think>x"],
    ),
    (
        tagged("triggered_tags", triggers=["<"], tags=[TAG]),
        ["", "a<b>true</b>c<b>false</b>"],
        ["<a", "<b>"],
    ),
    (
        tagged(
            "triggered_tags", triggers=["<b"], tags=[TAG], at_least_one=True, stop_after_first=True
        ),
        ["<b>true</b>"],
        ["", "a<b>true</b>", "<b>true</b> "],
    ),
    (
        tagged("tags_with_separator", separator=",", tags=[TAG], at_least_one=True),
        ["<b>true</b>", "<b>true</b>,<b>false</b>"],
        ["", "<b>true</b>,"],
    ),
    (
        tagged("tags_with_separator", separator="", tags=[TAG]),
        ["", "<b>true</b><b>false</b>"],
        [","],
    ),
]


@pytest.mark.parametrize(("tag", "accepted", "rejected"), FORMATS)
def test_formats(tag: dict[str, Any], accepted: list[str], rejected: list[str]) -> None:
    constraint = compile_structural_tag(tag, byte_vocabulary())

    assert [text for text in accepted if not matches(constraint, text)] == []
    assert [text for text in rejected if matches(constraint, text)] == []


def test_special_tokens_can_be_triggers_begins_and_ends() -> None:
    bytes_: list[bytes | None] = [bytes([value]) for value in range(256)]
    names = {"<call>": 257, "</call>": 258}
    vocabulary = Vocabulary([*bytes_, None, None, None], [256], size=260, special_ids=names)
    call = {
        "type": "tag",
        "begin": {"token": "<call>"},
        "content": BOOL,
        "end": [{"token": "</call>"}, ";"],
    }
    tag = tagged("triggered_tags", triggers=[{"token": "<call>"}], tags=[call])
    matcher = compile_structural_tag(tag, vocabulary).start()

    assert {257, 256, ord("<")} <= mask_ids(matcher, vocabulary)
    for token in (ord("x"), 257, *b"true", 258, *b";", *b"y", 257):
        assert matcher.advance(token), token
    assert not matcher.accepting
    assert mask_ids(matcher, vocabulary) == {ord("t"), ord("f")}


REFUSED = [
    ({"structures": []}, GrammarError, "/structures"),
    ({"structures": [{"begin": "a", "end": ""}], "triggers": ["a"]}, GrammarError, "/structures/0"),
    ({**FUNCTION_TAGS, "triggers": ["<call"]}, GrammarError, "/tags/0/begin"),
    ({**FUNCTION_TAGS, "triggers": ["<function=", "<x"]}, GrammarError, "/triggers"),
    ({**FUNCTION_TAGS, "triggers": [1]}, GrammarError, "/triggers/0"),
    (tagged("qwen_xml_parameter", json_schema={}), UnsupportedGrammar, "/format"),
    (
        tagged("sequence", elements=[{"type": "any_text"}, BOOL]),
        UnsupportedGrammar,
        "/format/elements/0",
    ),
    ([], GrammarError, None),
]


@pytest.mark.parametrize(("tag", "error", "where"), REFUSED)
def test_wrong_tags_are_refused_with_a_pointer(
    tag: Any, error: type[GrammarError], where: str | None
) -> None:
    with pytest.raises(error) as caught:
        compile_structural_tag(tag, byte_vocabulary())

    assert caught.value.where == where
