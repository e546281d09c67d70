"""`umbel grammar check`: verdicts, exit codes, where instances fail; and what commands import."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from umbel.cli.grammar import detected_kind
from umbel.cli.main import COMMANDS, load_command, main

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}

TAG = json.dumps(
    {
        "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
        "triggers": ["<f"],
    }
)


def check(tmp_path: Path, text: str, *options: str, name: str = "grammar") -> int:
    path = tmp_path / name
    path.write_text(text)
    return main(["grammar", "check", str(path), *options])


def checked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, *options: str
) -> dict[str, Any]:
    check(tmp_path, text, *options, "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("text", "kind", "verdict", "code"),
    [
        (json.dumps(PERSON), "schema", "exact", 0),
        ('start: "a" | "b"\n', "lark", "exact", 0),
        ('root ::= "a" [0-9]\n', "gbnf", "exact", 0),
        ("[0-9]{3}\n", "regex", "exact", 0),
        (TAG, "tag", "exact", 0),
        ('{"pattern": "(a)\\\\1"}', "schema", "refused", 3),
        ('{"type": "integer", "minimum": 3, "maximum": 2}', "schema", "unsatisfiable", 4),
        ('start: "a" missing\n', "lark", "invalid", 5),
        ("[0-9\n", "regex", "invalid", 5),
    ],
)
def test_the_verdict_is_told_by_the_exit_code(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    kind: str,
    verdict: str,
    code: int,
) -> None:
    assert check(tmp_path, text) == code
    assert verdict in capsys.readouterr().out
    found = checked(capsys, tmp_path, text)
    assert (found["kind"], found["verdict"]) == (kind, verdict)
    assert (found["example"] is None) == (code != 0)


def test_a_refusal_names_keyword_and_pointer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {"properties": {"a": {"pattern": "(a)\\1"}}}

    found = checked(capsys, tmp_path, json.dumps(schema))

    assert (found["keyword"], found["where"]) == ("pattern", "/properties/a/pattern")
    assert "back-reference" in found["message"]


def test_what_is_left_out_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = {"type": "string", "pattern": "(a)\\1"}

    found = checked(capsys, tmp_path, json.dumps(schema), "--no-strict")

    assert found["verdict"] == "relaxed"
    assert any("pattern" in warning for warning in found["warnings"])


def test_the_example_is_an_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = checked(capsys, tmp_path, json.dumps(PERSON))

    assert json.loads(found["example"]) == {"name": "", "kind": "cat"}
    assert found["num_states"] > 0


def test_an_instance_fails_at_a_byte_with_what_could_have_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, short = (tmp_path / name for name in ("good", "bad", "short"))
    good.write_text('{"name": "é", "kind": "dog"}\n')
    bad.write_text('{"name": "é",\n "kind": "cow"}\n')
    short.write_text('{"name": "x"')
    options = [word for path in (good, bad, short) for word in ("--instance", str(path))]
    options += ["--whitespace", "any"]

    assert check(tmp_path, json.dumps(PERSON), *options) == 1
    shown = capsys.readouterr().out
    assert f"{good}: accepted" in shown
    assert f"{bad}:2:12: rejected at byte 26" in shown
    found = checked(capsys, tmp_path, json.dumps(PERSON), *options)
    good_found, bad_found, short_found = found["instances"]
    assert good_found["accepted"]
    text = bad.read_bytes()
    assert text[: bad_found["offset"]].endswith(b'"c')
    assert bad_found["expected"] == ["'at\"'"]
    assert short_found["offset"] == len(short.read_bytes())
    assert "','" in short_found["expected"]


def test_an_end_that_comes_too_late_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = tmp_path / "instance"
    instance.write_text("12345")

    found = checked(capsys, tmp_path, "[0-9]{3}", "--instance", str(instance))

    assert found["instances"][0]["offset"] == 3
    assert found["instances"][0]["expected"] == ["the end"]


def test_a_kind_may_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(capsys, tmp_path, "{}", "--regex")["kind"] == "regex"


def test_a_file_that_is_not_there_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["grammar", "check", str(tmp_path / "none")]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_the_kind_follows_the_suffix_before_the_text() -> None:
    assert detected_kind("a.lark", "[0-9]") == "lark"
    assert detected_kind("a.json", "[1]") == "schema"
    assert detected_kind("a.ebnf", "") == "gbnf"
    assert detected_kind("a", "[0-9]+") == "regex"


@pytest.mark.parametrize(
    "words",
    [["--help"], ["models"], ["grammar", "check", "FILE"], ["grammar", "--help"]],
    ids=" ".join,
)
def test_commands_that_need_no_model_do_not_import_torch(tmp_path: Path, words: list[str]) -> None:
    grammar = tmp_path / "a.lark"
    grammar.write_text('start: "a"')
    argv = [str(grammar) if word == "FILE" else word for word in words]
    program = f"""
import sys
from umbel.cli.main import main
try:
    code = main({argv!r})
except SystemExit as stopped:
    code = stopped.code
sys.exit(code or ("torch was imported" if "torch" in sys.modules else 0))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_arguments_and_runs(name: str) -> None:
    command = load_command(name)

    assert callable(command.add_arguments)
    assert callable(command.run)
