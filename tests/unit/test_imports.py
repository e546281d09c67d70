"""What importing `umbel` does to the process: the collector of garbage stays as it was."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_the_garbage_collector_is_as_before_once_a_name_was_resolved(before: str) -> None:
    code = f"import gc; gc.{before}(); import umbel; umbel.SamplingParams; print(gc.isenabled())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(before == "enable")


def test_it_is_so_when_the_import_fails() -> None:
    code = (
        "import gc, sys, umbel\n"
        "sys.modules['umbel.runtime.params'] = None\n"
        "try:\n    umbel.SamplingParams\nexcept ImportError:\n    print(gc.isenabled())"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True"
