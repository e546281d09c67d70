"""`umbel batch FILE:PROGRAM in.jsonl -o out.jsonl`: a program over many items, resumable. With
first argument FILE.jsonl it does the requests of OpenAI's batch file: see `requests_batch`.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, get_type_hints

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from umbel.cli import requests_batch
from umbel.cli.engine_options import add_engine_arguments, start_engine
from umbel.cli.targets import load_target
from umbel.frontend_dsl import GraphProgram, Program
from umbel.frontend_dsl.batch.costs import Cost, CostReport
from umbel.frontend_dsl.batch.journal import Header, Journal
from umbel.frontend_dsl.batch.pipeline import BatchReport
from umbel.frontend_dsl.batch.sources import count_items, fingerprint, read_items
from umbel.runtime.errors import InvalidRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="FILE:PROGRAM", help="or a graph, FILE.json, or requests, FILE.jsonl"
    )
    parser.add_argument(
        "input", metavar="INPUT", nargs="?", help="items of a program: .jsonl, .csv or .parquet"
    )
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="results, one a line")
    parser.add_argument(
        "--checkpoint", metavar="FILE", help="default: the output with .journal at the end"
    )
    parser.add_argument("--max-in-flight", type=int, default=64, metavar="N")
    parser.add_argument("--window", type=int, default=2048, metavar="ITEMS",
                        help="items that are sorted together by their prefix")  # fmt: skip
    parser.add_argument("--retries", type=int, default=2, metavar="N",
                        help="after errors that may pass, such as a full queue")  # fmt: skip
    parser.add_argument(
        "--redo-errors", action="store_true", help="run items again that failed before"
    )
    requests = parser.add_argument_group("requests (FILE.jsonl, OpenAI's format)")
    requests.add_argument(
        "--resume", action="store_true", help="go on with an output; programs always do"
    )
    requests.add_argument(
        "--errors", metavar="FILE", help="requests that failed (default: OUTPUT.errors.jsonl)"
    )
    requests.add_argument("--served-model-name", metavar="NAME", help="what bodies call the model")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no table")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if requests_batch.is_requests_file(args.target):
        return requests_batch.run(args)
    if args.input is None:
        raise InvalidRequest("a program needs a file of items: umbel batch FILE:PROGRAM INPUT")
    program = load_target(args.target)
    source, output = Path(args.input), Path(args.output)
    items = read_items(source, annotations(program))
    checkpoint = Path(args.checkpoint or f"{args.output}.journal")
    if not output.parent.is_dir():
        raise InvalidRequest(f"{output.parent} is no folder, so {output} cannot be written")
    mark = fingerprint(source)
    console = Console(stderr=True, quiet=args.quiet)
    with _progress(console) as progress, start_engine(args) as engine:
        bar = progress.add_task("items", total=count_items(source), reuse="")
        is_begun = False

        def note(report: BatchReport) -> None:
            nonlocal is_begun
            total = report.costs.total
            if not is_begun:  # what was done before says nothing about the time that is left
                progress.reset(bar, completed=report.num_resumed)
                is_begun = True
            reuse = f"reused {total.reused_share:.0%}, output {total.num_output_tokens} tokens"
            if report.num_failed:
                reuse += f", {report.num_failed} failed"
            progress.update(bar, completed=report.num_done, reuse=reuse)

        report = program.run_batch(
            engine, items, checkpoint=checkpoint, source=mark, max_in_flight=args.max_in_flight,
            window=args.window, retries=args.retries, redo_errors=args.redo_errors,
            on_progress=note,
        )  # fmt: skip
    with Journal(checkpoint, Header(program.identity, mark)) as journal:
        journal.write_output(output)
    console.print(cost_table(report.costs))
    if report.num_failed:
        print(f"{report.num_failed} of {report.num_done} items failed", file=sys.stderr)
    return 1 if report.num_failed else 0


def annotations(target: Program | GraphProgram) -> dict[str, Any]:
    """Of a program's parameters, by name; the arguments of a graph say nothing of their types."""
    return get_type_hints(target.function) if isinstance(target, Program) else {}


def cost_table(costs: CostReport) -> Table:
    """Per call site what the batch cost, earlier runs of it included."""
    columns = ("calls", "computed", "reused", "forced", "drafted", "output", "rows/step", "seconds")
    table = Table(Column("call", overflow="fold"), *columns, box=None)
    for site, cost in sorted(costs.by_site.items()):
        table.add_row(site, *_numbers(cost))
    table.add_row("in all", *_numbers(costs.total), style="bold")
    return table


def _numbers(cost: Cost) -> list[str]:
    return [
        f"{cost.num_calls:,}", f"{cost.num_computed_tokens:,}", f"{cost.num_reused_tokens:,}",
        f"{cost.num_forced_tokens:,}", f"{cost.num_drafted_tokens:,}",
        f"{cost.num_output_tokens:,}", f"{cost.rows_per_step:,.1f}", f"{cost.call_s:,.1f}",
    ]  # fmt: skip


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[reuse]}"),
        console=console,
        disable=console.quiet,
    )
