"""`umbel compile FILE:PROGRAM -o g.json`: a program as a graph, and what is odd about it."""

import argparse
import sys
from pathlib import Path

from umbel.cli.run import load_program, parse_arguments
from umbel.frontend_dsl.graph.serial import check, content_hash, to_json
from umbel.frontend_dsl.graph.verify import problems_of
from umbel.runtime.errors import InvalidRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="FILE:PROGRAM", help="for instance examples/agent.py:agent"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="where the graph goes, as JSON")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE",
        help="an argument that becomes part of the graph; the other strings stay open",
    )  # fmt: skip
    parser.add_argument(
        "--no-pass", action="append", default=[], metavar="NAME", help="leave a pass out"
    )
    parser.add_argument("--strict", action="store_true", help="warnings are failures, too")


def run(args: argparse.Namespace) -> int:
    program = load_program(args.target)
    passes = [name for name in program.passes if name not in args.no_pass]
    compiled = program.compile(
        passes=passes, **parse_arguments(program, args.arg, is_complete=False)
    )
    print(f"{program.name} {compiled}".rstrip())
    if compiled.graph is None or compiled.traced is None:
        return 1
    problems = problems_of(compiled.graph)
    for problem in problems:
        print(problem, file=sys.stderr)
    for finding in compiled.traced.findings:
        print(f"{finding.site}: warning: {finding.message}", file=sys.stderr)
    if args.output is not None:
        check(compiled.graph)
        try:
            Path(args.output).write_bytes(to_json(compiled.graph))
        except OSError as error:
            raise InvalidRequest(f"cannot write {args.output!r}: {error}") from error
        print(f"{args.output}: {content_hash(compiled.graph)}")
    has_errors = any(problem.is_error for problem in problems)
    is_odd = bool(problems or compiled.traced.findings)
    return 1 if has_errors or (args.strict and is_odd) else 0
