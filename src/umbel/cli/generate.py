"""`umbel generate "prompt"`: one generation, streamed to the terminal, constrained if asked."""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec

from umbel.cli.engine_options import add_engine_arguments, start_engine
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams

_NUMBERS = {
    "max_tokens": int, "min_tokens": int, "temperature": float, "top_k": int, "top_p": float,
    "min_p": float, "repetition_penalty": float, "frequency_penalty": float,
    "presence_penalty": float, "seed": int, "n": int,
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help='text to go on from; "-" reads standard input')
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user message")
    parser.add_argument("--system", metavar="TEXT", help="system message (implies --chat)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    constraint = parser.add_argument_group(
        "constraint (at most one)"
    ).add_mutually_exclusive_group()
    constraint.add_argument("--regex", metavar="PATTERN")
    constraint.add_argument("--choices", nargs="+", metavar="TEXT")
    constraint.add_argument(
        "--json-schema", metavar="FILE", help='JSON Schema file; "-" reads standard input'
    )
    constraint.add_argument("--lark", metavar="FILE")
    sampling = parser.add_argument_group("sampling")
    for name, kind in _NUMBERS.items():
        sampling.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N")
    sampling.add_argument(
        "--stop", action="append", metavar="TEXT", help="may be given several times"
    )
    sampling.add_argument("--logprobs", type=int, metavar="K")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    params = SamplingParams(**_options(args))
    text = _read(args.prompt, "prompt")
    with start_engine(args) as engine:
        if args.chat or args.system is not None:
            messages = [{"role": "user", "content": text}]
            if args.system is not None:
                messages.insert(0, {"role": "system", "content": args.system})
            prompt: str | list[int] = engine.encode_chat(messages)
        else:
            prompt = text
        if args.json:
            print(msgspec.json.encode(engine.generate(prompt, params), enc_hook=str).decode())
            return 0
        if params.n > 1:
            for completion in engine.generate(prompt, params).completions:
                print(f"--- {completion.index}\n{completion.text}")
            return 0
        for chunk in engine.stream(prompt, params):
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
        print()
    return 0


def _options(args: argparse.Namespace) -> dict[str, Any]:
    names = [*_NUMBERS, "stop", "logprobs", "regex", "choices"]
    options = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.json_schema is not None:
        options["json_schema"] = _read_file(args.json_schema, "--json-schema")
    if args.lark is not None:
        options["lark"] = _read_file(args.lark, "--lark")
    return options


def _read(text: str, what: str) -> str:
    return _read_file("-", what) if text == "-" else text


def _read_file(path: str, what: str) -> str:
    if path == "-":
        return sys.stdin.read()
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{what}: cannot read {path!r}: {error}") from error
