"""Compiles all Triton kernels for sm_90 (H100, H200) without a GPU; prints a table.

    python tools/kernel_report.py [--json FILE] [--only TEXT]

Exit status 1 if a kernel spills registers or lacks an instruction that it needs.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)  # nothing can be compiled while it is on
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # off by default from Triton 3.10 on
sys.path.insert(0, str(Path(__file__).resolve().parent))

from kernel_cases import Expectation, all_cases
from triton_aot import Report, compile_case


def faults(expectation: Expectation, report: Report) -> list[str]:
    """What is wrong with a compiled kernel, in words."""
    found = []
    if report.spill_bytes:
        found.append(f"spills {report.spill_bytes} bytes")
    found += [
        f"has no {' or '.join(sorted(group))}"
        for group in expectation.wanted
        if not any(report.groups.get(name) for name in group)
    ]
    found += [
        f"has {report.groups[name]} {name}"
        for name in sorted(expectation.unwanted)
        if report.groups.get(name)
    ]
    if (report.pending or 0) < expectation.min_pending:
        found.append(f"leaves {report.pending} copies in flight, not {expectation.min_pending}")
    if report.blocks_per_processor < expectation.min_blocks:
        found.append(
            f"{report.blocks_per_processor} blocks are resident, not {expectation.min_blocks}"
        )
    return found


def row(report: Report) -> str:
    """A line of the table."""
    counts = report.groups
    products = f"{counts.get('wgmma', 0)} / {counts.get('mma', 0)}"
    copies = " / ".join(str(counts.get(name, 0)) for name in ("async16", "async8", "async4"))
    loads = " / ".join(
        str(counts.get(name, 0)) for name in ("load16", "load8", "load4", "load_narrow")
    )
    pending = "" if report.pending is None else report.pending
    return (
        f"| {report.name} | {report.registers} | {report.spill_bytes} | {report.shared_bytes} "
        f"| {report.blocks_per_processor} | {pending} | {products} | {copies} | {loads} "
        f"| {report.num_instructions} | {report.turn or ''} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the reports there")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    args = parser.parse_args()
    print(
        "| kernel | registers | spills, B | shared, B | blocks/SM | in flight | wgmma / mma "
        "| async 16 / 8 / 4 | loads 16 / 8 / 4 / less | instructions | in a turn |"
    )
    print("| --- |" + " ---: |" * 10)
    results = []
    for expectation in all_cases():
        if args.only not in expectation.case.name:
            continue
        report = compile_case(expectation.case)
        print(row(report), flush=True)
        results.append({**asdict(report), "faults": faults(expectation, report)})
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    bad = [result for result in results if result["faults"]]
    for result in bad:
        print(f"{result['name']}: {'; '.join(result['faults'])}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
