"""The suite on Umbel in process, on `umbel serve` (graphs, and call by call), and call by call on
llama.cpp's server: the same programs, cases and weights, one after the other, side by side.

python -m benchmarks.programs.side_by_side --llama-python L/bin/python [--cases 2] [--json FILE]

llama.cpp's server is that of llama-cpp-python. What a server cannot do is said below the table.
Each way first runs one case that does not count, so grammars and graphs are made.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.programs.remote import Abilities, RemoteRun, flush, run_on, run_remotely
from benchmarks.programs.suite import SUITE, chosen
from benchmarks.programs.workload import Workload
from rich import box
from rich.console import Console
from rich.table import Table

from umbel.frontend_dsl import connect
from umbel.runtime.engine import Engine
from umbel.runtime.loading.source import find_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines"))
import serving  # found through the line above

Runs = dict[str, list[RemoteRun]]  # by the way of running
IN_PROCESS = "Umbel in process"
_TOOL_FILES = ("tool_agent.py", "voting.py")
_LLAMA_CPP = Abilities(structured_outputs="gbnf", scores=False)


def main() -> int:
    args = _parser().parse_args()
    workloads = chosen(args.only, args.cases)
    runs = in_process(workloads, args.threads) | on_umbel_serve(workloads, args.threads)
    if args.llama_python is not None:
        model = args.llama_model or str(find_model(None).path)
        runs |= on_llama_cpp(workloads, args.threads, args.llama_python, model)
    console = Console(width=220)
    console.print(table(runs))
    for line in (*total_lines(runs), *refusals(runs)):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if args.json is not None:
        found = {way: [run.as_dict() for run in of_way] for way, of_way in runs.items()}
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if any(run.error for way in runs if "Umbel" in way for run in runs[way]) else 0


def in_process(workloads: Sequence[Workload], threads: int) -> Runs:
    with Engine(num_threads=threads) as engine:
        runs = [run_on(engine, workload, 1, engine.reset_cache) for workload in workloads]
    return {IN_PROCESS: runs}


def on_umbel_serve(workloads: Sequence[Workload], threads: int) -> Runs:
    here = Path(__file__).resolve().parent
    with TemporaryDirectory() as state:
        options = ["--state", state]
        for name in _TOOL_FILES:
            options += ["--tools", str(here / name)]
        served = serving.served("umbel", sys.executable, None, threads, os.environ, options)
        with served as endpoint:
            url = f"http://{endpoint.host}:{endpoint.port}"
            server, empty = connect(url), partial(flush, url)
            graphs = [run_on(server, workload, 1, empty) for workload in workloads]
            calls = _calls(url, workloads, Abilities(), empty)
    return {"Umbel served, graphs": graphs, "Umbel served, calls": calls}


def on_llama_cpp(workloads: Sequence[Workload], threads: int, python: str, model: str) -> Runs:
    with serving.served("llama.cpp", python, model, threads, os.environ) as endpoint:
        url = f"http://{endpoint.host}:{endpoint.port}"

        def displace() -> None:  # the server keeps the KV of the last prompt, and no other
            asyncio.run(serving.complete(endpoint, "One", 1))

        return {"llama.cpp served, calls": _calls(url, workloads, _LLAMA_CPP, displace)}


def _calls(
    url: str, workloads: Sequence[Workload], abilities: Abilities, empty: Callable[[], object]
) -> list[RemoteRun]:
    return run_remotely(url, workloads, model=serving.MODEL, template="chatml", repeats=1,
                        abilities=abilities, empty=empty)  # fmt: skip


def table(runs: Runs) -> Table:
    """Seconds, and how many times those in process they are."""
    made = Table("program", "cases", "calls", *runs, box=box.MARKDOWN)
    for row in zip(*runs.values(), strict=True):
        here = row[0]
        cells = [_cell(run, here) for run in row]
        made.add_row(here.workload.name, f"{len(here.workload.cases)}", f"{here.num_calls}", *cells)
    return made


def _cell(run: RemoteRun, here: RemoteRun) -> str:
    if run.error is not None:
        return "cannot"
    if run is here or here.error is not None:
        return f"{run.wall_s:.2f} s"
    return f"{run.wall_s:.2f} s ({run.wall_s / here.wall_s:.1f}x)"


def total_lines(runs: Runs) -> list[str]:
    """Of each way beside those in process, over the programs that it can run."""
    lines = []
    here = runs[IN_PROCESS]
    for way, of_way in runs.items():
        able = [(run, own) for run, own in zip(of_way, here, strict=True) if run.error is None]
        seconds, own_s = sum(run.wall_s for run, _ in able), sum(own.wall_s for _, own in able)
        lines.append(f"{way}: {seconds:.1f} s for {len(able)} programs, in process {own_s:.1f} s")
    return lines


def refusals(runs: Runs) -> list[str]:
    """What each way could not do, and why."""
    return [
        f"{way} cannot run {run.workload.name}: {run.error}"
        for way, of_way in runs.items()
        for run in of_way
        if run.error is not None
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.programs.side_by_side", description=__doc__
    )
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(SUITE)}")
    parser.add_argument("--cases", type=int, metavar="N", help="the first N of each program")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument("--llama-python", metavar="PYTHON",
                        help="one that has llama-cpp-python[server]; default: no peer")  # fmt: skip
    parser.add_argument("--llama-model", metavar="GGUF",
                        help="default: the embedded model")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="where the numbers go, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
