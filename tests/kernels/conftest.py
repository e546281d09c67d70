"""Turns Triton's interpreter on, repairs its numbers and lets it find memory faults.

Kernels run on CPU tensors here. What the interpreter cannot show (spills, instructions, whether a
construct compiles at all) is in `test_compiled.py`; what only a GPU shows is in
`benchmarks/gpu_check.py`.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
_SOURCE_TEST = _HERE / "test_source.py"
if str(_HERE) not in sys.path:
    sys.path.insert(0, str(_HERE))

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
    import triton

    if type(triton.language.zeros).__name__ != "InterpretedFunction":
        pytest.exit(
            "Triton was imported before its interpreter was turned on, so its own functions are "
            "compiled: run tests/kernels apart, or set TRITON_INTERPRET=1",
            returncode=4,
        )
    import interpreter_memory
    import interpreter_numbers

    interpreter_numbers.install()
    interpreter_memory.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.kernels)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without Triton only what reads the kernels' source runs; the summary says so."""
    needs_triton = collection_path.name.startswith("test_") and collection_path != _SOURCE_TEST
    return True if needs_triton and not HAS_TRITON else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not HAS_TRITON:
        terminalreporter.write_line(
            "tests/kernels: all but test_source.py left out, since triton is not installed "
            "(it exists for Linux on x86-64: pip install triton==3.9.0)"
        )
