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
if str(_HERE) not in sys.path:
    sys.path.insert(0, str(_HERE))

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
    import triton

    if not isinstance(triton.language.zeros, triton.runtime.interpreter.InterpretedFunction):
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
    return True if not HAS_TRITON and collection_path.name.startswith("test_") else None


def pytest_report_header() -> str:
    if HAS_TRITON:
        return f"triton {triton.__version__}, interpreted; kernels are compiled for sm_90 apart"
    return "tests/kernels is left out: triton is not installed (it exists for Linux on x86-64)"
