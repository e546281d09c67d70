"""The script for a GPU runs its checks of correctness here, on small shapes in the interpreter."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu_check.py"


def test_every_section_but_the_timed_one_is_right_in_the_interpreter(tmp_path: Path) -> None:
    path = tmp_path / "results" / "check.json"

    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--interpret", "--json", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(path.read_text())["checks"]
    words = " ".join(check["name"] for check in checks)
    assert all(check["is_right"] for check in checks)
    for kind in ("attention", "norm", "rotation", "gated", "copy", "choice", "product", "greedy"):
        assert kind in words


def test_an_unknown_section_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--only", "decodng"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "no section decodng" in done.stderr
