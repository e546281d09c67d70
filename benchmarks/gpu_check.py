"""Checks and times the kernels on one NVIDIA GPU: correctness first, then shares of the roofline.

    python benchmarks/gpu_check.py [--json FILE] [--only attention,decoding,...]
    python benchmarks/gpu_check.py --interpret       # the same on a CPU, small, to try the script

Needs the project's own packages and Triton, no download: weights are random. Takes about six
minutes on an H100 or H200, at most eight (what does not fit is left out and named). Exit status 1
if a result is wrong; times below their targets are marked and do not fail, since they depend on the
machine.
"""

import argparse
import json
import os
import platform
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
BUDGET_S = 460.0
SECTIONS = (
    "attention", "elementwise", "choosing", "quantized", "shapes", "greedy", "engine", "decoding",
    "serving",
)  # fmt: skip

if TYPE_CHECKING:
    from gpu_timing import Session


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, by commas")
    parser.add_argument("--interpret", action="store_true", help="Triton's interpreter, on a CPU")
    args = parser.parse_args()
    wanted = args.only.split(",")
    if unknown := sorted(set(wanted) - set(SECTIONS)):
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    folders = ("src", "tests", "tests/kernels", "benchmarks")
    sys.path[:0] = [str(ROOT / folder) for folder in folders]
    if args.interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        import interpreter_numbers

        interpreter_numbers.install()
    import torch

    if not args.interpret and not torch.cuda.is_available():
        parser.error("no CUDA device here; --interpret tries the script on a CPU")
    session = _run(wanted, is_interpreted=args.interpret)
    wrong = [check.name for check in session.checks if not check.is_right]
    below = [check.name for check in session.checks if not check.is_on_target]
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(_as_json(session), indent=1) + "\n")
    print(
        f"{len(session.checks)} checks; wrong: {wrong or 'none'}; below target: {below or 'none'}"
    )
    return 1 if wrong else 0


def _run(wanted: list[str], *, is_interpreted: bool) -> "Session":
    import gpu_attention_checks
    import gpu_decoding
    import gpu_engine
    import gpu_kernel_checks
    import torch
    from gpu_timing import Check, Session, measure_rates

    torch.manual_seed(0)
    device = torch.device("cpu" if is_interpreted else "cuda")
    session = Session(device, not is_interpreted, time.monotonic() + BUDGET_S)
    measure_rates(session)
    if not session.is_timed:
        print("no GPU: small shapes, and times that mean nothing", flush=True)
    if session.is_timed:
        print(
            f"{torch.cuda.get_device_name()}: copy {session.copy_rate / 1e12:.2f} TB/s, "
            f"bfloat16 products {session.matmul_rate / 1e12:.0f} TFLOP/s",
            flush=True,
        )
    sections = {
        "attention": gpu_attention_checks.check_cases,
        "elementwise": gpu_kernel_checks.check_elementwise,
        "choosing": gpu_kernel_checks.check_choosing,
        "quantized": gpu_kernel_checks.check_quantized,
        "shapes": gpu_attention_checks.check_shapes,
        "greedy": gpu_decoding.check_greedy,
        "engine": gpu_engine.check_engine,
        "decoding": gpu_decoding.measure_decoding,
        "serving": gpu_engine.measure_engine,
    }
    for name in SECTIONS:
        if name not in wanted:
            continue
        if not session.has_time(30):
            session.add_row("left out", check=name)
            continue
        try:
            sections[name](session)
        except Exception as exc:  # one section must not hide what the others find
            traceback.print_exc()
            session.add(Check(name=name, error=float("nan"), note=f"{type(exc).__name__}: {exc}"))
        if session.is_timed:
            torch.cuda.empty_cache()
    return session


def _as_json(session: "Session") -> dict[str, object]:
    import torch
    import triton

    name = torch.cuda.get_device_name() if session.is_timed else "Triton's interpreter"
    return {
        "device": name,
        "is_measured": session.is_timed,  # False: the times mean nothing
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_bytes_per_s": session.copy_rate,
        "matmul_flop_per_s": session.matmul_rate,
        "seconds": round(BUDGET_S - (session.deadline_s - time.monotonic()), 1),
        "checks": [
            {**asdict(check), "is_right": check.is_right, "is_on_target": check.is_on_target}
            for check in session.checks
        ],
        "tables": session.tables,
    }


if __name__ == "__main__":
    sys.exit(main())
