"""Arithmetics that this processor has but does not use, as on processors with nothing better."""

import os
import subprocess
import sys
from pathlib import Path

from umbel.kernels.native import threads

FOLDER = Path(__file__).parent
FILES = ("test_grouped.py", "test_native_program.py", "test_native_rows.py", "test_attention.py")


def test_weaker_arithmetics_pass_the_same_tests() -> None:
    weaker = []
    if threads.is_available():
        weaker = {"halves": ["bf16", "fp32"], "bfloats": ["fp32"], "floats": []}[
            threads.arithmetic()
        ]
    for switch in weaker:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, *(str(FOLDER / name) for name in FILES)],
            env={**os.environ, "UMBEL_NATIVE": switch, "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"UMBEL_NATIVE={switch}: {done.stdout[-3000:]}"
