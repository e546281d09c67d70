"""`umbel models`: what is installed and can be loaded."""

import argparse

import msgspec
from rich.console import Console
from rich.table import Table

from umbel.runtime.loading.source import list_models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", help="also look for models in this folder")
    parser.add_argument("--json", action="store_true", help="one JSON list, for scripts")


def run(args: argparse.Namespace) -> int:
    models = list_models(args.folder)
    if args.json:
        rows = [{"name": m.name, "format": m.format, "path": str(m.path)} for m in models]
        print(msgspec.json.encode(rows).decode())
        return 0
    table = Table("name", "format", "path", box=None)
    for model in models:
        table.add_row(model.name, model.format, str(model.path))
    Console().print(table)
    return 0
