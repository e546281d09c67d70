"""Umbel beside vLLM's CPU build and llama.cpp: the same work, one engine after the other.

    python benchmarks/compare.py --engines umbel,vllm,llama.cpp --workloads all --json OUT \\
        --vllm-python V/bin/python --vllm-model HF_FOLDER --llama-python L/bin/python

Each engine runs in a process of its own, with its own Python, on all cores. Prints medians, the
ratio of throughput, and what the machine could do at best, measured in the same run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import workloads

ENGINES = {"umbel": "umbel_engine.py", "vllm": "vllm_engine.py", "llama.cpp": "llama_cpp_engine.py"}
_SCRIPTS = Path(__file__).resolve().parent / "engines"
Record = dict[str, Any]


def measure_limits(threads: int) -> dict[str, float]:
    """Copy bandwidth in GB/s (read and written), bfloat16 and int8 products in 1e9 operations/s."""
    import torch

    torch.set_num_threads(threads)
    source = torch.ones(64 << 20, dtype=torch.int32)
    target = torch.empty_like(source)
    copy_s = _best_s(lambda: target.copy_(source))
    size = 2048
    half = torch.randn(size, size).bfloat16()
    octets = torch.randint(-127, 127, (size, size), dtype=torch.int8)
    return {
        "copy_gb_s": 2 * source.nbytes / copy_s / 1e9,
        "bf16_gflop_s": 2 * size**3 / _best_s(lambda: half @ half) / 1e9,
        "int8_gop_s": 2 * size**3 / _best_s(lambda: torch._int_mm(octets, octets)) / 1e9,
    }


def _best_s(function: Any) -> float:
    best = float("inf")
    for _ in range(7):
        start_s = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start_s)
    return best


def run_engine(engine: str, args: argparse.Namespace, names: list[str]) -> list[Record]:
    """The records of one engine; raises `CalledProcessError` if it fails."""
    python, model = _python_and_model(engine, args)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "records.json"
        command = [
            python, str(_SCRIPTS / ENGINES[engine]), "--out", str(out), "--repeat",
            str(args.repeat), "--threads", str(args.threads), "--workloads", ",".join(names),
            "--started", str(time.time()),
        ]  # fmt: skip
        if model is not None:
            command += ["--model", model]
        subprocess.run(command, check=True, env=_environment(engine, python, args.threads))
        records: list[Record] = json.loads(out.read_text())
        return records


def _python_and_model(engine: str, args: argparse.Namespace) -> tuple[str, str | None]:
    if engine == "umbel":
        return sys.executable, args.model
    if engine == "vllm":
        python, model, what = args.vllm_python, args.vllm_model, "--vllm-python and --vllm-model"
    else:
        python, model, what = args.llama_python, args.gguf or _embedded_gguf(), "--llama-python"
    if python is None or model is None:
        raise SystemExit(f"{engine} needs {what}; see benchmarks/README.md")
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


def print_table(records: list[Record], limits: dict[str, float]) -> None:
    found = {(record["engine"], record["workload"]): record for record in records}
    engines = [engine for engine in ENGINES if any(engine == key[0] for key in found)]
    print("limits:", ", ".join(f"{name} {value:.0f}" for name, value in limits.items()))
    others = [engine for engine in engines if engine != "umbel"]
    heads = [f"{engine} tok/s" for engine in engines] + [f"x {engine}" for engine in others]
    print(f"{'workload':22}" + "".join(f"{head:>18}" for head in heads))
    for name in workloads.NAMES:
        rates = {e: found[e, name]["tok_s"] for e in engines if (e, name) in found}
        if not rates:
            continue
        cells = [f"{rates[e]:.1f}" if e in rates else "-" for e in engines]
        cells += [
            f"{rates['umbel'] / rates[e]:.2f}" if e in rates and "umbel" in rates else "-"
            for e in others
        ]
        print(f"{name:22}" + "".join(f"{cell:>18}" for cell in cells))
    for engine in engines:
        own = [record for record in records if record["engine"] == engine]
        peak_mb = max(record["peak_rss_mb"] for record in own)
        print(f"{engine}: first token {own[0]['start_s']:.1f} s, peak memory {peak_mb:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="umbel")
    parser.add_argument("--workloads", default="all", help=f"of {', '.join(workloads.NAMES)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--model", help="what umbel loads; the embedded model by default")
    parser.add_argument("--vllm-python")
    parser.add_argument("--vllm-model", help="Hugging Face folder of the same weights")
    parser.add_argument("--llama-python")
    parser.add_argument("--gguf", help="what llama.cpp loads; the embedded model by default")
    args = parser.parse_args()
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
    print_table(records, limits)


if __name__ == "__main__":
    main()
