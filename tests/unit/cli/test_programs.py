"""`umbel compile`, `umbel show` and `umbel batch`, on a file with a program and a fake engine."""

import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from unit.frontend_dsl.fake_client import FakeClient

from umbel.cli import batch
from umbel.cli.main import main
from umbel.cli.serve import tools_of
from umbel.runtime.errors import InvalidRequest

SOURCE = """
import umbel

@umbel.program
def judge(s, essay: str, strict: bool = False):
    s += f"Essay: {essay}"
    s += umbel.select("verdict", ["good", "bad"])
    if s["verdict"] == "bad":
        s += umbel.gen("why", max_tokens=3)
        return s["why"]
    return s["verdict"]

@umbel.program
def typo(s):
    s += umbel.select("verdict", ["good", "bad"])
    return s["verdict"] == "Good"

@umbel.program
def prints(s):
    print("effect")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "programs.py"
    path.write_text(SOURCE)
    return path


@pytest.fixture
def _fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def start(args: Namespace) -> Iterator[FakeClient]:
        with FakeClient() as client:
            yield client

    monkeypatch.setattr(batch, "start_engine", start)


def test_a_program_is_compiled_to_a_file_that_can_be_shown(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = tmp_path / "judge.json"

    assert main(["compile", f"{file}:judge", "-o", str(graph)]) == 0
    assert "judge compiled" in capsys.readouterr().out
    assert json.loads(graph.read_bytes())["version"] == 3
    assert main(["show", str(graph)]) == 0
    assert "select('verdict', ['good', 'bad'])  :7" in capsys.readouterr().out
    for form, start in (("mermaid", "flowchart TD"), ("svg", "<svg")):
        out = tmp_path / form
        assert main(["show", f"{file}:judge", "--format", form, "-o", str(out)]) == 0
        assert out.read_text().startswith(start)


def test_what_is_odd_is_named_with_its_line_and_fails_when_strict(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", f"{file}:typo"]) == 0
    assert f"{file}:16: warning: 'verdict' can never be 'Good'" in capsys.readouterr().err
    assert main(["compile", f"{file}:typo", "--strict"]) == 1


def test_a_program_without_a_graph_says_why(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", f"{file}:prints"]) == 1
    out = capsys.readouterr().out
    assert f"{file}:20: calls print" in out
    assert main(["show", f"{file}:prints"]) == 1
    assert "calls print" in capsys.readouterr().err


@pytest.mark.usefixtures("_fake_engine")
def test_a_batch_writes_results_in_the_order_of_its_items(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    items.write_text("".join(json.dumps({"essay": f"{i % 7}{i}"}) + "\n" for i in range(50)))

    assert main(["batch", f"{file}:judge", str(items), "-o", str(out)]) == 0

    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(50))
    assert all(line["result"] for line in lines)
    table = capsys.readouterr().err
    assert "computed" in table
    assert "50/50" in table


@pytest.mark.usefixtures("_fake_engine")
def test_a_batch_with_failures_ends_with_one_and_goes_on_when_run_again(
    file: Path, tmp_path: Path
) -> None:
    items, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    items.write_text('{"essay": "a"}\n{"assay": "b"}\n')
    command = ["batch", f"{file}:judge", str(items), "-o", str(out), "--quiet"]

    assert main(command) == 1
    first = out.read_text()
    assert main(command) == 1

    assert out.read_text() == first
    assert "essay" in json.loads(first.splitlines()[1])["error"]


@pytest.mark.usefixtures("_fake_engine")
def test_a_stored_graph_runs_as_a_batch(file: Path, tmp_path: Path) -> None:
    graph, items = tmp_path / "g.json", tmp_path / "in.csv"
    items.write_text("essay\nx\ny\n")
    main(["compile", f"{file}:judge", "-o", str(graph)])
    outs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]

    for target, out in zip((str(graph), f"{file}:judge"), outs, strict=True):
        assert main(["batch", target, str(items), "-o", str(out), "--quiet"]) == 0

    assert outs[0].read_text() == outs[1].read_text()


def test_a_parquet_file_without_pyarrow_says_what_to_install(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from umbel.frontend_dsl.batch.sources import read_items
    from umbel.runtime.errors import InvalidRequest

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "in.parquet").write_bytes(b"PAR1")

    with pytest.raises(InvalidRequest, match="install"):
        list(read_items(tmp_path / "in.parquet"))


def _tool_file(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.py"
    path.write_text(
        f"import umbel\n\n@umbel.tool\ndef find(text: str) -> str:\n    return {text!r}\n"
    )
    return str(path)


def test_a_server_takes_the_tools_of_python_files(tmp_path: Path) -> None:
    found = tools_of([_tool_file(tmp_path, "tools_of_one", "one")])

    assert [(tool.name, tool("x")) for tool in found] == [("find", "one")]


def test_tools_that_a_server_cannot_tell_apart_or_find_are_refused(
    tmp_path: Path, file: Path
) -> None:
    files = [_tool_file(tmp_path, f"tools_of_{text}", text) for text in ("two", "three")]

    with pytest.raises(InvalidRequest, match="another tool 'find'"):
        tools_of(files)
    with pytest.raises(InvalidRequest, match=r"no @umbel\.tool function"):
        tools_of([str(file)])
