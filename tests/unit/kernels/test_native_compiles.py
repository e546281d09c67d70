"""The kernels are compiled for processors that are not this one: they cannot run, but must be code
with the instructions that they are for.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from umbel.kernels.native import threads

COMMON = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16"]
SCRIPT = """
import importlib, os, sys
processor, features = sys.argv[1], sys.argv[2].split(",")
os.environ["NUMBA_CPU_NAME"] = processor
os.environ["NUMBA_CPU_FEATURES"] = ",".join("+" + name for name in features)
import llvmlite.binding
llvmlite.binding.get_host_cpu_features = lambda: dict.fromkeys(features, True)
from umbel.kernels.native import threads
print(threads.arithmetic())
for name in sys.argv[3:]:
    module = importlib.import_module("umbel.kernels.native." + name)
    kernel = module._attend if name == "attention" else module._multiply
    print(kernel._library.get_asm_str())
"""


@pytest.mark.skipif(not threads.is_available(), reason="needs numba and a CPU with AVX2")
@pytest.mark.parametrize(
    ("processor", "features", "modules", "arithmetic", "instructions"),
    [
        ("haswell", COMMON[:3], ["integer_products"], "floats", ["vpmaddwd", "vpmaddubsw"]),
        ("znver4", COMMON, ["attention", "bfloat_products"], "bfloats", ["vdpbf16ps"]),
        ("znver4", COMMON, ["integer_products"], "bfloats", ["vpmaddwd", "vpmaddubsw"]),
        (
            "sapphirerapids",
            [*COMMON, "avx512fp16"],
            ["attention", "half_products"],
            "halves",
            ["vdpbf16ps", "vfmadd231ph"],
        ),
    ],
)
def test_kernels_compile_for_other_processors(
    tmp_path: Path,
    processor: str,
    features: list[str],
    modules: list[str],
    arithmetic: str,
    instructions: list[str],
) -> None:
    command = [sys.executable, "-c", SCRIPT, processor, ",".join(features), *modules]

    done = subprocess.run(
        command, env={"NUMBA_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(arithmetic + "\n")
    for name in instructions:
        assert name in done.stdout
    assert "__truncsfbf2" not in done.stdout  # rounding one by one, by a library
