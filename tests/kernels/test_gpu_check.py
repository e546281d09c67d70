"""The script for a GPU runs here as a whole, on small shapes: kernels in the interpreter, what is
timed there by the twins."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py"


def test_every_section_runs_and_is_right_in_the_interpreter(tmp_path: Path) -> None:
    path = tmp_path / "results" / "check.json"

    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--interpret", "--json", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads(path.read_text())
    checks, tables = written["checks"], written["tables"]
    assert not written["is_measured"]
    words = " ".join(check["name"] for check in checks)
    assert all(check["is_right"] for check in checks)
    for kind in ("attention", "norm", "rotation", "gated", "copy", "choice", "product", "greedy"):
        assert kind in words
    assert sum("engine, captured steps" in check["name"] for check in checks) == 2
    assert "left out" not in tables
    expected = {
        "decode tiny": 2,
        "branches of tiny": 2,
        "masks of tiny": 1,
        "engine, tiny bfloat16": 2,
        "engine, branches of tiny": 2,
        "engine, 1 rows under a regex": 1,
    }
    for begin, num_rows in expected.items():
        (rows,) = (rows for name, rows in tables.items() if name.startswith(begin))
        assert len(rows) == num_rows, begin


def test_an_unknown_section_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--only", "decodng"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "no section decodng" in done.stderr
