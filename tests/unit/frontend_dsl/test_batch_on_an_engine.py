"""The batch pipeline over a whole engine, in processes that are killed: see the script."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "batch_pipeline.py"


def test_a_killed_batch_ends_with_the_output_of_one_that_was_left_alone() -> None:
    options = ["--items", "300", "--kills", "1", "--max-growth-mib", "1000"]  # small: it warms up

    done = subprocess.run(
        [sys.executable, SCRIPT, *options], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 of 300 items, 0 failed; killed 1 times: the same output" in done.stdout
