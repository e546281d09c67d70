"""Runs the suite, prints its table, and says what does not hold. See the package's docstring."""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.programs.comparison import Comparison, compare, table, total_line
from benchmarks.programs.suite import SUITE
from benchmarks.programs.workload import Workload
from rich.console import Console

from umbel.runtime.engine import Engine

PLAIN = {
    "prefix_cache": False,
    "share_attention": False,
    "jump_forward": False,
    "speculate": "off",
    "max_running": 1,
}


def main() -> int:
    args = _parser().parse_args()
    console = Console(width=220)
    workloads = _chosen(args.only, quick=args.quick)
    options = {"dtype": args.dtype, "num_threads": args.threads}
    comparisons = []
    with Engine(**options) as engine, ExitStack() as stack:
        plain = None if args.quick else stack.enter_context(Engine(**options, **PLAIN))
        for workload in workloads:
            comparisons.append(compare(engine, plain, workload, 1 if args.quick else args.repeats))
            print(comparisons[-1].summary, file=sys.stderr, flush=True)
    console.print(table(comparisons))
    console.print(total_line(comparisons))
    if args.json is not None:
        values = [one.as_dict() for one in comparisons]
        Path(args.json).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    faults = _faults(comparisons, must_be_same=args.dtype == "float32")
    for fault in faults:
        console.print(fault)
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two cases of each, without the runs one at a time: a smoke test",
    )
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(SUITE)}")
    parser.add_argument("--repeats", type=int, default=3, help="of the compiled and the eager runs")
    parser.add_argument("--json", metavar="FILE", help="where the numbers go, too")
    parser.add_argument("--threads", type=int, metavar="N", help="default: the engine's")
    parser.add_argument(
        "--dtype", default="auto", help="float32: outputs must be the same all three ways"
    )
    return parser


def _chosen(only: str | None, *, quick: bool) -> list[Workload]:
    names = list(SUITE) if only is None else only.split(",")
    unknown = [name for name in names if name not in SUITE]
    if unknown:
        sys.exit(f"there is no program {unknown[0]!r}; there are {', '.join(SUITE)}")
    return [SUITE[name].first(2) if quick else SUITE[name] for name in names]


def _faults(comparisons: list[Comparison], *, must_be_same: bool) -> list[str]:
    faults = [
        f"{one.workload.name}: reuses {one.compiled.cache.share_of_best:.1%} (compiled) and "
        f"{one.eager.cache.share_of_best:.1%} (eager) of what could be reused"
        for one in comparisons
        if not one.reuses_enough
    ]
    if must_be_same:
        faults += [
            f"{one.workload.name}: {len(one.workload.cases) - one.num_same} cases differ"
            for one in comparisons
            if not one.is_same
        ]
    return faults


if __name__ == "__main__":
    sys.exit(main())
