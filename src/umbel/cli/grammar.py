"""`umbel grammar check FILE`: can this grammar be enforced, what fits it, and where a text fails.

Exit codes: 0 exact (and all instances accepted), 1 an instance is rejected or the work failed, 2
the command line was wrong, 3 refused, 4 unsatisfiable, 5 the grammar is wrong.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from umbel.grammar import (
    Constraint,
    GrammarError,
    Vocabulary,
    compile_gbnf,
    compile_json_schema,
    compile_lark,
    compile_regex,
    compile_structural_tag,
)
from umbel.grammar.check import GrammarReport, InstanceReport, check_grammar, check_instance
from umbel.grammar.schema.spacing import Whitespace
from umbel.runtime.errors import InvalidRequest

_EXIT_CODES = {"exact": 0, "relaxed": 0, "refused": 3, "unsatisfiable": 4, "invalid": 5}
_KIND_NAMES = {
    "schema": "JSON Schema",
    "lark": "Lark grammar",
    "gbnf": "GBNF grammar",
    "regex": "regular expression",
    "tag": "structural tag",
}
_LARK_RULE = re.compile(r"^[?!]?[A-Za-z_]\w*(\{[^}]*\}|\[[^]]*\])?(\.-?\d+)?\s*:", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="verdict, cost, an example, and where instances fail",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("file", metavar="FILE", help='a grammar; "-" reads standard input')
    check.add_argument(
        "--instance", action="append", default=[], metavar="FILE",
        help="a text to read with the grammar, without its last line end; may be repeated",
    )  # fmt: skip
    kind = check.add_mutually_exclusive_group()
    for name, shown in _KIND_NAMES.items():
        kind.add_argument(
            f"--{name}", dest="kind", action="store_const", const=name, help=f"FILE is a {shown}"
        )
    schema = check.add_argument_group("JSON Schema")
    schema.add_argument("--any-order", action="store_true", help="properties in any order")
    schema.add_argument(
        "--no-strict", action="store_true", help="leave out what cannot be enforced, and say so"
    )
    schema.add_argument(
        "--whitespace", choices=[option.value for option in Whitespace], default="compact"
    )
    check.add_argument(
        "--model", metavar="PATH",
        help="compile for the vocabulary of this model (default: one token for each byte)",
    )  # fmt: skip
    check.add_argument("--json", action="store_true", help="one JSON object, for scripts")


def run(args: argparse.Namespace) -> int:
    text = _read(args.file)
    kind = args.kind or detected_kind(args.file, text)
    vocabulary = _vocabulary(args.model)
    instances = [(path, _read(path).removesuffix("\n")) for path in args.instance]
    report = check_grammar(_compilation(kind, text, vocabulary, args))
    constraint = report.constraint
    try:
        results = [
            (path, check_instance(constraint, instance))
            for path, instance in instances
            if constraint is not None
        ]
    except GrammarError as error:
        raise InvalidRequest(str(error)) from error
    if args.json:
        print(json.dumps(_as_json(kind, report, results), ensure_ascii=False))
    else:
        _print(args.file, kind, report)
        for path, result in results:
            _print_instance(path, result)
    if any(not result.is_accepted for _, result in results):
        return 1
    return _EXIT_CODES[report.verdict]


def detected_kind(path: str, text: str) -> str:
    """By the file's suffix, or else by the text."""
    suffixes = {".lark": "lark", ".gbnf": "gbnf", ".ebnf": "gbnf", ".regex": "regex"}
    suffix = Path(path).suffix
    if suffix in suffixes:
        return suffixes[suffix]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and (value.get("type") == "structural_tag" or "triggers" in value):
        return "tag"
    if suffix == ".json" or isinstance(value, dict | bool):
        return "schema"
    if "::=" in text:
        return "gbnf"
    return "lark" if _LARK_RULE.search(text) else "regex"


def _compilation(
    kind: str, text: str, vocabulary: Vocabulary, args: argparse.Namespace
) -> Callable[[], Constraint]:
    match kind:
        case "schema":
            return lambda: compile_json_schema(
                text,
                vocabulary,
                any_order=args.any_order,
                strict=not args.no_strict,
                whitespace=args.whitespace,
            )
        case "lark":
            return lambda: compile_lark(text, vocabulary)
        case "gbnf":
            return lambda: compile_gbnf(text, vocabulary)
        case "tag":
            return lambda: compile_structural_tag(text, vocabulary)
        case _:
            return lambda: compile_regex(text.removesuffix("\n"), vocabulary)


def _vocabulary(model: str | None) -> Vocabulary:
    if model is None:
        return Vocabulary([bytes([value]) for value in range(256)], [256], size=257)
    # Here, because they import torch.
    from umbel.runtime.constraints import make_vocabulary
    from umbel.runtime.loading.source import find_model
    from umbel.runtime.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(find_model(model))
    return make_vocabulary(tokenizer, tokenizer.vocab_size)


def _read(path: str) -> str:
    try:
        if path == "-":
            return sys.stdin.read()
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {path!r}: {error}") from error


def _as_json(
    kind: str, report: GrammarReport, results: list[tuple[str, InstanceReport]]
) -> dict[str, Any]:
    return {
        "verdict": report.verdict,
        "kind": kind,
        "message": report.message,
        "where": report.where,
        "keyword": report.keyword,
        "warnings": list(report.warnings),
        "compile_ms": report.compile_ms,
        "num_states": report.num_states,
        "min_tokens": report.min_tokens,
        "example": report.example,
        "instances": [
            {
                "file": path,
                "accepted": result.is_accepted,
                "offset": result.offset,
                "line": result.line,
                "column": result.column,
                "expected": list(result.expected),
            }
            for path, result in results
        ],
    }


def _print(path: str, kind: str, report: GrammarReport) -> None:
    print(f"{path}: {_KIND_NAMES[kind]}: {report.verdict}")
    if report.message is not None:
        where = "" if report.where is None else f" (at {report.where or 'the root'})"
        keyword = "" if report.keyword is None else f"{report.keyword}: "
        print(f"  {keyword}{report.message}{where}")
    for warning in report.warnings:
        print(f"  not enforced: {warning}")
    print(f"  compiled in {report.compile_ms:.1f} ms", end="")
    if report.constraint is None:
        print()
        return
    print(f", {report.num_states} states made for the example")
    print(f"  shortest output: at most {report.min_tokens} tokens")
    shown = "too long to show" if report.example is None else repr(report.example)
    print(f"  example: {shown}")


def _print_instance(path: str, result: InstanceReport) -> None:
    if result.is_accepted:
        print(f"{path}: accepted")
        return
    print(f"{path}:{result.line}:{result.column}: rejected at byte {result.offset}")
    print(f"  expected: {', '.join(result.expected) or 'nothing'}")
