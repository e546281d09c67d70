"""`umbel serve`: the engine as an HTTP service with OpenAI's interface (see docs/server.md)."""

import argparse
import logging
import os
from pathlib import Path

from umbel.cli.engine_options import add_engine_arguments, start_engine
from umbel.cli.run import load_file
from umbel.frontend_dsl import Tool
from umbel.runtime.errors import InvalidRequest
from umbel.server.settings import ServerSettings

KEYS_VARIABLE = "UMBEL_API_KEYS"
DEFAULT_STATE = "~/.local/state/umbel/server-PORT"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--uds", metavar="PATH", help="serve on a Unix socket instead")
    group.add_argument("--served-model-name", metavar="NAME", help="what clients call the model")
    group.add_argument(
        "--api-key", action="append", default=[], metavar="KEY",
        help=f"may be given several times; or {KEYS_VARIABLE}, separated by commas",
    )  # fmt: skip
    group.add_argument("--max-body-bytes", type=int, metavar="BYTES")
    group.add_argument("--max-request-s", type=float, metavar="S", help="deadline of any request")
    group.add_argument(
        "--write-timeout-s",
        type=float,
        metavar="S",
        help="disconnect who reads nothing so long",
    )
    group.add_argument("--drain-s", type=float, metavar="S", help="time to finish after SIGTERM")
    group.add_argument("--dump", type=Path, metavar="FILE", help="append each request as JSON")
    group.add_argument(
        "--state", type=Path, metavar="FOLDER",
        help=f"where files and batches are kept (default: {DEFAULT_STATE}; none with --port 0)",
    )  # fmt: skip
    group.add_argument(
        "--tools", action="append", default=[], metavar="FILE",
        help="a Python file whose @umbel.tool functions programs may call; several times",
    )  # fmt: skip
    group.add_argument("--no-access-log", dest="access_log", action="store_false")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    settings = make_settings(args)
    tools = tools_of(args.tools)
    from umbel.server.app import make_app  # here: it needs torch, which takes seconds to import
    from umbel.server.serving import make_server, serve

    if args.access_log:
        _log_access()
    with start_engine(args) as engine:
        app = make_app(engine, settings, tools=tools)
        name = app.service.model_name
        serve(
            make_server(
                app,
                host=args.host,
                port=args.port,
                uds=args.uds,
                on_ready=lambda place: print(f"umbel serves {name} on {place}", flush=True),
            )
        )
    return 0


def _log_access() -> None:
    """Lines of JSON and nothing else on standard error."""
    access = logging.getLogger("umbel.access")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False


def make_settings(args: argparse.Namespace) -> ServerSettings:
    """The server's settings for the options that were given; the others keep their defaults."""
    names = ("max_body_bytes", "max_request_s", "write_timeout_s", "drain_s", "dump")
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    of_environment = os.environ.get(KEYS_VARIABLE, "")
    keys = [*args.api_key, *filter(None, of_environment.split(","))]
    if not 0 <= args.port <= 65535:
        raise InvalidRequest(f"--port {args.port} is not valid: expected 0 to 65535", param="port")
    return ServerSettings(
        model_name=args.served_model_name, api_keys=tuple(keys), state=_state(args), **options
    )


def tools_of(files: list[str]) -> list[Tool]:
    """The tools that `files` define or import; one that several have counts once."""
    found: dict[str, Tool] = {}
    for file in files:
        tools = [value for value in vars(load_file(file)).values() if isinstance(value, Tool)]
        if not tools:
            raise InvalidRequest(f"--tools {file}: there is no @umbel.tool function in it")
        for one in tools:
            if found.setdefault(one.name, one) is not one:
                raise InvalidRequest(f"--tools {file}: there is another tool {one.name!r} already")
    return list(found.values())


def _state(args: argparse.Namespace) -> Path | None:
    """The given folder, or one that the next server on the same port finds again."""
    if args.state is not None:
        return Path(args.state)
    if args.uds is not None or args.port == 0:
        return None
    return Path(DEFAULT_STATE.replace("PORT", str(args.port))).expanduser()
