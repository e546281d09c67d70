"""`umbel show FILE:PROGRAM`: a program's graph as text, Mermaid or SVG."""

import argparse
from pathlib import Path

from umbel.cli.run import load_program, parse_arguments
from umbel.cli.targets import read_graph
from umbel.frontend_dsl.graph.drawing import as_mermaid, as_svg, as_text
from umbel.runtime.errors import InvalidRequest

_FORMATS = {"text": as_text, "mermaid": as_mermaid, "svg": as_svg}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="FILE:PROGRAM", help="or a graph, FILE.json")
    parser.add_argument("--format", choices=sorted(_FORMATS), default="text")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE",
        help="an argument that becomes part of the graph",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if args.target.endswith(".json"):
        graph = read_graph(args.target)
    else:
        program = load_program(args.target)
        compiled = program.compile(**parse_arguments(program, args.arg, is_complete=False))
        if compiled.graph is None:
            raise InvalidRequest(f"{program.name} has no graph: it {compiled}".rstrip())
        graph = compiled.graph
    drawing = _FORMATS[args.format](graph)
    if args.output is None:
        print(drawing)
        return 0
    try:
        Path(args.output).write_text(drawing + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot write {args.output!r}: {error}") from error
    return 0
