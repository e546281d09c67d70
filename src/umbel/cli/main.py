"""Entry point of the `umbel` command.

Exit codes: 0 done, 1 the work failed, 2 the command line was wrong, 130 interrupted. Commands are
imported when they are asked for: most need torch, which takes a second to import.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from umbel import __version__
from umbel.importing import import_uncollected
from umbel.runtime.errors import UmbelError


class Command(Protocol):
    """What the module of a command provides."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


# The module of this folder is named as the command is.
COMMANDS = {
    "run": "run a program of a Python file",
    "batch": "run a program over a file of items, or do the requests of a file",
    "compile": "compile a program to a graph, and check it",
    "show": "draw a program's graph",
    "generate": "generate text after a prompt",
    "grammar": "say whether a grammar can be enforced, and what fits it",
    "serve": "serve the engine over HTTP, with OpenAI's interface",
    "replay": "send the requests of a dump to a server again",
    "models": "list the models that are installed and can be loaded",
    "plan": "what can this model do on this device: bounds, knee, batch, cost",
}


def load_command(name: str) -> Command:
    return cast(Command, import_uncollected(f"umbel.cli.{name}"))


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """chosen: the command whose arguments are known; the others are only named."""
    parser = argparse.ArgumentParser(
        prog="umbel", description="Structured generation: programs, constraints, one shared cache."
    )
    parser.add_argument("--version", action="version", version=f"umbel {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what the engine does")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        if name == chosen:
            load_command(name).add_arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    # The options before the command take no values.
    chosen = next((word for word in given if not word.startswith("-")), None)
    args = build_parser(chosen).parse_args(given)
    logging.basicConfig(level=logging.DEBUG if args.verbose else logging.WARNING)
    try:
        return load_command(args.command).run(args)
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
