"""Umbel beside vLLM's CPU build and llama.cpp: the same work, one engine after the other.

    python benchmarks/compare.py --engines umbel,vllm,llama.cpp --workloads all --json OUT \\
        --vllm-python V/bin/python --vllm-model HF_FOLDER --llama-python L/bin/python
    python benchmarks/compare.py --show OUT [OUT ...]

Each engine runs in a process of its own, with its own Python, on all cores; for the workloads over
HTTP, as a server. Prints medians, the ratio of throughput with the floor and the aim, and what the
machine could do at best, measured in the same run. `--show` prints what earlier runs wrote.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import workloads
from comparison_table import ENGINES, Record, format_table

sys.path.insert(0, str(Path(__file__).resolve().parent / "engines"))
import measure  # found through the line above
import serving

_SCRIPTS = Path(__file__).resolve().parent / "engines"
SCRIPTS = {"umbel": "umbel_engine.py", "vllm": "vllm_engine.py", "llama.cpp": "llama_cpp_engine.py"}


def measure_limits(threads: int) -> dict[str, float]:
    """Copy bandwidth in GB/s (read and written), products by type in 1e9 operations/s."""
    import torch

    torch.set_num_threads(threads)
    source = torch.ones(64 << 20, dtype=torch.int32)
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source))
    return {
        "copy_gb_s": 2 * source.nbytes / copy_s / 1e9,
        "fp32_gflop_s": _product_rate(_float_product) / 1e9,
        "bf16_gflop_s": _product_rate(_half_product) / 1e9,
        "int8_gop_s": _product_rate(_octet_product) / 1e9,
    }


def _float_product(size: int) -> Callable[[], object]:
    import torch

    floats = torch.randn(size, size)
    return lambda: floats @ floats


def _half_product(size: int) -> Callable[[], object]:
    import torch

    half = torch.randn(size, size).bfloat16()
    return lambda: half @ half


def _octet_product(size: int) -> Callable[[], object]:
    import torch

    octets = torch.randint(-127, 127, (size, size), dtype=torch.int8)
    return lambda: torch._int_mm(octets, octets)


def _product_rate(make: Callable[[int], Callable[[], object]]) -> float:
    """Operations a second of square products. The largest is not tried where a smaller one shows
    that it would take seconds: processors without the instructions do 0.3e9 a second.
    """
    best = 0.0
    for size in (256, 2048):
        seconds = _best_s(make(size))
        best = max(best, 2 * size**3 / seconds)
        if seconds > 0.01:
            break
    return best


def _best_s(function: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(7):
        start_s = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start_s)
    return best


def run_engine(engine: str, args: argparse.Namespace, names: list[str]) -> list[Record]:
    """The records of one engine; raises `CalledProcessError` if it fails."""
    python, model = _python_and_model(engine, args)
    records: list[Record] = []
    direct = [name for name in names if name not in serving.NAMES or engine == "llama.cpp"]
    if direct:
        records += _run_direct(engine, python, model, args, direct)
    over_http = [name for name in names if name in serving.NAMES and engine != "llama.cpp"]
    if over_http:
        records += _run_served(engine, python, model, args, over_http)
    return records


def _run_direct(
    engine: str, python: str, model: str | None, args: argparse.Namespace, names: list[str]
) -> list[Record]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records.json"
        command = [
            python, str(_SCRIPTS / SCRIPTS[engine]), "--out", str(out), "--repeats",
            str(args.repeats), "--threads", str(args.threads), "--workloads", ",".join(names),
            "--started", str(time.time()),
        ]  # fmt: skip
        if model is not None:
            command += ["--model", model]
        subprocess.run(command, check=True, env=_environment(engine, python, args.threads))
        records: list[Record] = json.loads(out.read_text()) if out.exists() else []
        return records


def _run_served(
    engine: str, python: str, model: str | None, args: argparse.Namespace, names: list[str]
) -> list[Record]:
    environment = _environment(engine, python, args.threads)
    if engine == "vllm":
        environment["KMP_AFFINITY"] = "disabled"  # else the HTTP threads share the bound core
    with serving.served(engine, python, model, args.threads, environment) as endpoint:
        records = []
        for name in names:
            record = serving.run(endpoint, name, args.repeats)
            record |= {"engine": engine, "workload": name, "start_s": endpoint.start_s}
            record["peak_rss_mb"] = measure.peak_rss_mb(endpoint.process.pid)
            records.append(record)
        return records


def _python_and_model(engine: str, args: argparse.Namespace) -> tuple[str, str | None]:
    if engine == "umbel":
        return sys.executable, args.model
    if engine == "vllm":
        python, model, what = args.vllm_python, args.vllm_model, "--vllm-python and --vllm-model"
    else:
        python, model, what = args.llama_python, args.gguf or _embedded_gguf(), "--llama-python"
    if python is None or model is None:
        raise SystemExit(f"{engine} needs {what}; see the docstring of compare.py")
    return python, model


def _embedded_gguf() -> str:
    from umbel.runtime.loading.source import find_model

    return str(find_model(None).path)


def _environment(engine: str, python: str, threads: int) -> dict[str, str]:
    """Of vLLM: one process, OpenMP bound to all cores, its allocator and OpenMP loaded first."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    if engine != "vllm":
        return environment
    venv = Path(python).parent.parent
    first = [*venv.glob("sys/usr/lib/*/libtcmalloc_minimal.so.4"), venv / "lib/libiomp5.so"]
    cores = ",".join(str(core) for core in range(threads))
    environment.pop("PYTHONPATH", None)
    return environment | {
        "LD_PRELOAD": ":".join(str(path) for path in first if path.exists()),
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "KMP_BLOCKTIME": "5",
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{cores}]",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="umbel", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--workloads", default="all", help=f"of {', '.join(workloads.NAMES)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", help="what umbel loads; the embedded model by default")
    parser.add_argument("--vllm-python")
    parser.add_argument("--vllm-model", help="Hugging Face folder of the same weights")
    parser.add_argument("--llama-python")
    parser.add_argument("--gguf", help="what llama.cpp loads; the embedded model by default")
    parser.add_argument("--show", type=Path, nargs="+", metavar="OUT")
    args = parser.parse_args()
    if args.show:
        runs = [json.loads(path.read_text()) for path in args.show]
        print(format_table([r for run in runs for r in run["records"]], runs[0]["limits"]))
        return
    engines = args.engines.split(",")
    names = list(workloads.NAMES) if args.workloads == "all" else args.workloads.split(",")
    for given, known in ((engines, ENGINES), (names, workloads.NAMES)):
        unknown = [name for name in given if name not in known]
        if unknown:
            raise SystemExit(f"unknown: {', '.join(unknown)}; accepted: {', '.join(known)}")
    limits = measure_limits(args.threads)
    records: list[Record] = []
    for engine in engines:
        records += run_engine(engine, args, names)
        if args.json is not None:
            args.json.write_text(json.dumps({"limits": limits, "records": records}, indent=1))
    print(format_table(records, limits))


if __name__ == "__main__":
    main()
