"""What importing `umbel` does to the process: the collector of garbage stays as it was."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("before", ["enable", "disable"])
def test_the_garbage_collector_is_as_before_once_a_name_was_resolved(before: str) -> None:
    code = f"import gc; gc.{before}(); import umbel; umbel.SamplingParams; print(gc.isenabled())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == str(before == "enable")


def test_no_garbage_is_looked_for_meanwhile_nor_in_the_modules_afterwards() -> None:
    code = (
        "import gc, umbel\n"
        "found = []\n"
        "gc.callbacks.append(lambda *_: found.append(1))\n"
        "umbel.SamplingParams\n"
        "print(len(found), gc.get_freeze_count() > 0)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["0", "True"]


def test_it_is_so_when_the_import_fails() -> None:
    code = (
        "import gc, sys, umbel\n"
        "sys.modules['umbel.runtime.params'] = None\n"
        "try:\n    umbel.SamplingParams\nexcept ImportError:\n    print(gc.isenabled())"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True"
