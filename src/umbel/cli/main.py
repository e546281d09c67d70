"""Entry point of the `umbel` command.

Exit codes: 0 done, 1 the work failed, 2 the command line was wrong, 130 interrupted.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Protocol

from umbel import __version__
from umbel.cli import batch, compile, generate, models, plan, replay, run, serve, show
from umbel.runtime.errors import UmbelError


class Command(Protocol):
    """What a module of this folder provides."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


COMMANDS: dict[str, Command] = {
    "run": run,
    "batch": batch,
    "compile": compile,
    "show": show,
    "generate": generate,
    "serve": serve,
    "replay": replay,
    "models": models,
    "plan": plan,
}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="umbel", description="Structured generation: programs, constraints, one shared cache."
    )
    parser.add_argument("--version", action="version", version=f"umbel {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what the engine does")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=module.HELP, description=module.HELP))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.DEBUG if args.verbose else logging.WARNING)
    try:
        return COMMANDS[args.command].run(args)
    except UmbelError as error:
        print(f"umbel {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output went away, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
