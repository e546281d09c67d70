"""`umbel run FILE:PROGRAM --arg k=v`: run a program of a Python file and show what it made."""

import argparse
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import msgspec
from rich.console import Console

from umbel.cli.engine_options import add_engine_arguments, start_engine
from umbel.frontend_dsl import Program, State, draw
from umbel.runtime.errors import InvalidRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="FILE:PROGRAM", help="for instance examples/agent.py:agent"
    )
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE",
        help="an argument of the program; read as JSON unless its annotation says str",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    parser.add_argument(
        "--tree", action="store_true", help="draw the branches with their token counts"
    )
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    program = load_program(args.target)
    arguments = parse_arguments(program, args.arg)
    with start_engine(args) as engine:
        state = program.run(engine, **arguments)
    if args.json:
        print(msgspec.json.encode(_record(state)).decode())
        return 0
    console = Console()
    console.print(state.text(), markup=False, highlight=False)
    for name, value in state.variables().items():
        console.print(f"[bold]{name}[/bold] = {value!r}")
    if args.tree:
        console.print(draw(state))
    return 0


def load_program(target: str) -> Program:
    """Import FILE and return its program; `InvalidRequest` says what was found instead."""
    file, _, name = target.rpartition(":")
    if not file or not name:
        raise InvalidRequest(
            f"{target!r} is not FILE:PROGRAM, for instance examples/agent.py:agent"
        )
    values = vars(load_file(file))
    programs = {key: value for key, value in values.items() if isinstance(value, Program)}
    if name not in programs:
        raise InvalidRequest(
            f"{file} has no program {name!r}; it has {', '.join(sorted(programs)) or 'none'}"
        )
    return programs[name]


def load_file(file: str) -> ModuleType:
    """Import a Python file by its path."""
    path = Path(file)
    if not path.is_file():
        raise InvalidRequest(f"no such file: {file!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"{file!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def parse_arguments(
    program: Program, pairs: list[str], *, is_complete: bool = True
) -> dict[str, Any]:
    """NAME=VALUE pairs as the program's annotations want them; `is_complete`: all it needs."""
    hints = get_type_hints(program.function)
    names = list(inspect.signature(program.function).parameters)[1:]
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in names:
            raise InvalidRequest(
                f"--arg {pair!r}: expected NAME=VALUE with NAME one of {', '.join(names)}"
            )
        hint = hints.get(name, str)
        try:
            values[name] = text if hint is str else msgspec.json.decode(text, type=hint)
        except msgspec.DecodeError as error:
            raise InvalidRequest(
                f"--arg {name}: {text!r} is not JSON for {hint}: {error}"
            ) from error
    if not is_complete:
        return values
    try:
        inspect.signature(program.function).bind(None, **values)
    except TypeError as error:
        raise InvalidRequest(f"{error}; give it by --arg NAME=VALUE") from error
    return values


def _record(state: State) -> dict[str, Any]:
    return {"variables": state.variables(), "text": state.text(), "messages": state.messages()}
