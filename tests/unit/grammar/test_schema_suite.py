"""JSON-Schema-Test-Suite as a ratchet: no verdict may be wrong, and what is refused may only
become less.

`refused.json` lists the groups that are refused; a group that is enforced now must be taken off
the list.
Properties come in any order, as the suite's instances have them; `format` asserts in the optional
tests only.
"""

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from unit.grammar.naive_machine import accepts

from umbel.grammar.errors import UnsatisfiableGrammar, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.rules import RuleState
from umbel.grammar.schema.front import SchemaOptions, read_schema
from umbel.grammar.schema.load import load_schema

DATA = Path(__file__).parents[2] / "data" / "json_schema_suite"
# `hostname` leaves A-labels out, of which only Punycode could tell the valid ones.
KNOWN_NARROW = {"hostname", "idn-hostname"}


@cache
def groups() -> list[dict[str, Any]]:
    with lzma.open(DATA / "suite.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _start(group: dict[str, Any], *, assert_formats: bool) -> RuleState | None:
    options = SchemaOptions(any_order=True, assert_formats=assert_formats)
    try:
        return read_schema(load_schema(group["schema"], Limits()), options, Limits()).start
    except UnsatisfiableGrammar:
        return None


def _text(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode()


@pytest.mark.parametrize("draft", ["draft7", "draft2020-12"])
def test_required_tests_have_no_wrong_verdict_and_few_refusals(draft: str) -> None:
    expected = set(json.loads((DATA / "refused.json").read_text()))
    wrong, refused = [], []
    for group in groups():
        if group["draft"] != draft or group["optional"]:
            continue
        try:
            start = _start(group, assert_formats=False)
        except UnsupportedGrammar:
            refused.append(group["id"])
            continue
        for test in group["tests"]:
            verdict = start is not None and accepts(start, _text(test["data"]))
            if verdict != test["valid"]:
                wrong.append((group["id"], test["description"]))

    assert wrong == []
    assert set(refused) == {entry for entry in expected if entry.startswith(draft + "/")}


def test_optional_format_tests_have_no_wrong_verdict() -> None:
    wrong = []
    for group in groups():
        name = group["schema"].get("format") if isinstance(group["schema"], dict) else None
        if (
            not group["optional"]
            or group["draft"] != "draft2020-12"
            or name in {"regex", None, *KNOWN_NARROW}
        ):
            continue
        start = _start(group, assert_formats=True)
        for test in group["tests"]:
            verdict = start is not None and accepts(start, _text(test["data"]))
            if verdict != test["valid"]:
                wrong.append((group["id"], test["description"]))

    assert wrong == []


def test_hostnames_are_never_accepted_wrongly() -> None:
    for group in groups():
        if group["optional"] and group["schema"].get("format") == "hostname":
            start = _start(group, assert_formats=True)
            assert start is not None
            invalid = [test for test in group["tests"] if not test["valid"]]

            assert [test["data"] for test in invalid if accepts(start, _text(test["data"]))] == []
