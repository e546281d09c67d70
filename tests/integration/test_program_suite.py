"""`python -m benchmarks.programs`: the suite runs, reuses what can be reused, and says so."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = "questions,endings,town,extraction"


def test_the_suite_prints_its_table_and_reuses_what_can_be_reused(tmp_path: Path) -> None:
    out = tmp_path / "numbers.json"
    command = [sys.executable, "-m", "benchmarks.programs", "--quick", "--only", NAMES]

    done = subprocess.run(
        [*command, "--json", str(out)], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    programs = json.loads(out.read_text())
    assert len(programs) == 4
    for one in programs:
        assert one["name"] in done.stdout
        for way in ("compiled", "eager"):
            assert one[way]["share_of_best"] >= 0.95
            assert one[way]["tokens_computed"] >= one[way]["tokens_fewest"]
        assert one["compiled"]["calls"] == one["eager"]["calls"]
