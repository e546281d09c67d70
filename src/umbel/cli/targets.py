"""FILE:PROGRAM and stored graphs as something that runs: shared by compile, show and batch."""

from pathlib import Path

from umbel.cli.run import load_program
from umbel.frontend_dsl import GraphProgram, Program
from umbel.frontend_dsl.graph.nodes import Graph
from umbel.frontend_dsl.graph.serial import from_json
from umbel.runtime.errors import InvalidRequest


def load_target(target: str) -> Program | GraphProgram:
    """A program of a Python file, or a graph that `umbel compile` wrote (FILE.json)."""
    return GraphProgram(read_graph(target)) if target.endswith(".json") else load_program(target)


def read_graph(file: str) -> Graph:
    """The graph in `file`, checked as one from somebody else."""
    try:
        return from_json(Path(file).read_bytes())
    except OSError as error:
        raise InvalidRequest(f"cannot read {file!r}: {error}") from error
