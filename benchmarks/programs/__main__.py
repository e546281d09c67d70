"""Runs the suite, prints its table, and says what does not hold. See the package's docstring."""

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.programs import remote, ways
from benchmarks.programs.comparison import Comparison, compare, table, tie_lines, total_line
from benchmarks.programs.remote import run_remotely
from benchmarks.programs.suite import SUITE, chosen
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
    workloads = chosen(args.only, 2 if args.quick else args.cases)
    if args.remote is not None:
        return _remotely(args, workloads, console)
    options = {"dtype": args.dtype, "num_threads": args.threads}
    if args.check:
        return _check(args, options, workloads, console)
    comparisons = []
    with Engine(**options) as engine, ExitStack() as stack:
        plain = None if args.quick else stack.enter_context(Engine(**options, **PLAIN))
        for workload in workloads:
            comparisons.append(compare(engine, plain, workload, 1 if args.quick else args.repeats))
            print(comparisons[-1].summary, file=sys.stderr, flush=True)
    console.print(table(comparisons))
    for line in [*tie_lines(comparisons), total_line(comparisons)]:
        console.print(line)
    _write(args.json, [one.as_dict() for one in comparisons])
    faults = _faults(comparisons, must_be_same=args.dtype == "float32")
    for fault in faults:
        console.print(fault)
    return 1 if faults else 0


def _check(
    args: argparse.Namespace, options: dict[str, Any], workloads: list[Workload], console: Console
) -> int:
    found = []
    with (
        Engine(**options) as engine,
        Engine(**options, **PLAIN) as plain,
        ways.served_here(engine, ways.tools_of(workloads)) as url,
    ):
        for workload in workloads:
            found.append(ways.agreement(engine, plain, url, workload))
            print(found[-1].summary, file=sys.stderr, flush=True)
    console.print(ways.table(found))
    num_ties = sum(one.num_ties for one in found)
    gaps = [one.widest_gap for one in found if one.widest_gap is not None]
    console.print(
        f"{num_ties} cases came out differently"
        + (f"; where they part, tokens differ by {max(gaps):.3f} at most" if gaps else "")
    )
    return 1 if num_ties and args.dtype == "float32" else 0


def _remotely(args: argparse.Namespace, workloads: list[Workload], console: Console) -> int:
    runs = run_remotely(
        args.remote, workloads, model=args.model, template=args.template, repeats=args.repeats
    )
    console.print(remote.table(runs, args.against))
    _write(args.json, [run.as_dict() for run in runs])
    return 1 if any(run.error is not None for run in runs) else 0


def _write(path: str | None, values: list[dict[str, Any]]) -> None:
    if path is not None:
        Path(path).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two cases of each, without the runs one at a time: a smoke test",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="instead: whether six ways of running give the same outputs, each once; in float32 "
        "they must",
    )
    parser.add_argument("--cases", type=int, metavar="N", help="the first N of each program")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(SUITE)}")
    parser.add_argument("--repeats", type=int, default=3, help="of the compiled and the eager runs")
    parser.add_argument("--json", metavar="FILE", help="where the numbers go, too")
    parser.add_argument("--threads", type=int, metavar="N", help="default: the engine's")
    parser.add_argument(
        "--dtype", default="auto", help="float32: outputs must be the same all three ways"
    )
    remotely = parser.add_argument_group("on a server with OpenAI's protocol")
    remotely.add_argument("--remote", metavar="URL", help="for instance http://127.0.0.1:8000")
    remotely.add_argument("--model", help="what the server calls it; default: its first")
    remotely.add_argument("--template", default="chatml", help="of the server's model")
    remotely.add_argument("--against", type=Path, metavar="FILE",
                          help="numbers of a run in process (--json), to stand beside")  # fmt: skip
    return parser


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
