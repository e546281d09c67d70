"""Damaged and random grammars for all front ends: each compiles, or raises `GrammarError`, soon.

    python tools/fuzz_grammars.py [--minutes 10] [--seed 0]

Pieces of grammars are joined at random, and sound grammars are damaged. What compiles is walked a
few bytes at random, with its mask and its closing cost. Prints each input that raises anything
else, or that takes longer than the limit; exit code 1 for any.
"""

import argparse
import json
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from umbel.grammar import (
    Constraint,
    GrammarError,
    Limits,
    Vocabulary,
    compile_gbnf,
    compile_json_schema,
    compile_lark,
    compile_regex,
)

_LIMITS = Limits(max_nodes=4_000, max_states=8_000, max_work=400_000)
_MAX_S = 30  # processor time of one input, with its walk
_NUM_STEPS = 6
_PIECES: dict[str, list[str]] = {
    "regex": [
        *"ab^$.|()[]{}*+?\\-,:&#é€ \n019",
        *("(?", "(?:", "(?i)", "(?x)", "(?=", "(?!", "\\p{L}", "\\d", "\\w", "\\b", "\\u00e9"),
        *("{2,}", "{0,90}", "{3}{3}", "[^a-z]", "[[:alpha:]]", "|", "*?", "\\1", "(?P<n>", ".*"),
    ],
    "lark": [
        *' \n|()[]{}*+?~:.,&@!<>"/\\%#-=',
        *("start: ", "a", "B", "a: ", "B.2: ", "\nstart: ", "\na: ", "\nB: ", "\n?a: a a | "),
        *('"x"', '"y"i', "/z+/", "/[a-c]*?/", '"a".."c"', "~2..5", "{3,}", "~0..99999", "/.*/s"),
        *("%ignore ", "%import common.WS\n", "%json {}", '%json {"type": "null"}', "%lark {", "}"),
        *('%regex {"substring_chars": "ab"}', "<[1]>", "<|x|>", "[lazy]", "a{a}", "a{x}: x x", "&"),
    ],
    "gbnf": [
        *' \n|()[]{}*+?."\\#-=^<>/',
        *("root ::= ", "a ::= ", "\na ::= ", "a", "root", "[a-z]", "[^x]", '"x"', "{3}", "{2,900}"),
    ],
}
_LARK = """
start: stmt+
stmt: "if" expr stmt ("else" stmt)? | NAME "=" expr ";"
expr: expr "+" term | term
term: NAME | NUMBER | "(" expr ")" | list{expr, ","}
list{x, sep}: "[" x (sep x)~0..20 "]"
NAME: /[a-z]+/
%import common.NUMBER
%ignore /[ \\n]+/
"""
_GBNF = r"""
root ::= value
value ::= "[" (value ("," value)*)? "]" | string | [0-9]+
string ::= "\"" [^"\\]{0,20} "\""
"""
_SOUND = {
    "regex": [r"(?i:ab+|c)[^x-z]{2,5}\d*(é|\p{Lu}|\.)?", r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?"],
    "lark": [_LARK],
    "gbnf": [_GBNF],
}
_KEYWORDS = [
    *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "not"),
    *("prefixItems", "anyOf", "allOf", "oneOf", "if", "then", "else", "pattern", "minLength"),
    *("maxLength", "minimum", "maximum", "multipleOf", "uniqueItems", "contains", "minContains"),
    *("patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentSchemas"),
    *("dependentRequired", "unevaluatedProperties", "unevaluatedItems", "$ref", "$defs", "format"),
]
_VALUES: list[Any] = [
    *(True, False, None, -1, 0, 1, 2, 7, 0.5, 10**30, "", "a", "string", "integer", "object"),
    *("array", "number", "#", "#/$defs/a", "^a|b$", "(a)\\1", "date", "x" * 300, [], {}),
]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    vocabulary = Vocabulary([bytes([value]) for value in range(256)], [256], size=257)
    compilers: dict[str, Callable[[Any], Constraint]] = {
        "regex": lambda text: compile_regex(text, vocabulary, limits=_LIMITS),
        "lark": lambda text: compile_lark(text, vocabulary, limits=_LIMITS),
        "gbnf": lambda text: compile_gbnf(text, vocabulary, limits=_LIMITS),
        "schema": lambda value: compile_json_schema(value, vocabulary, limits=_LIMITS),
    }
    signal.signal(signal.SIGPROF, _too_long)
    tally: Counter[str] = Counter()
    slowest_s, num_failures = 0.0, 0
    end_s = time.monotonic() + args.minutes * 60
    while time.monotonic() < end_s:
        kind = rng.choice(list(compilers))
        given = _random_schema(rng, 3) if kind == "schema" else _random_text(kind, rng)
        before_s = time.thread_time()
        signal.setitimer(signal.ITIMER_PROF, _MAX_S)
        try:
            _walk(compilers[kind](given), rng)
            tally[f"{kind} compiled"] += 1
        except GrammarError:
            tally[f"{kind} refused"] += 1
        except Exception:
            num_failures += 1
            print(f"FAILED {kind} {given!r}\n{traceback.format_exc(limit=-3)}", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        took_s = time.thread_time() - before_s
        if took_s > slowest_s:
            slowest_s = took_s
            print(f"slowest so far: {took_s:.2f} s, {kind} {given!r:.300}", flush=True)
    print(dict(tally), f"failures {num_failures}")
    return 1 if num_failures else 0


def _too_long(signum: int, frame: object) -> None:
    raise TimeoutError(f"longer than {_MAX_S} s")


def _random_text(kind: str, rng: random.Random) -> str:
    pieces = _PIECES[kind]
    if rng.random() < 0.5:
        start = {"regex": "", "lark": "start: ", "gbnf": "root ::= "}[kind]
        return start + "".join(rng.choices(pieces, k=rng.randint(1, 16)))
    text = rng.choice(_SOUND[kind])
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(text))
        text = text[:at] + rng.choice([*pieces, ""]) + text[at + rng.randint(0, 8) :]
    return text


def _random_schema(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(_VALUES)
    if rng.random() < 0.2:
        return [_random_schema(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    names = rng.sample(_KEYWORDS, rng.randint(1, 4))
    found = {name: _random_schema(rng, depth - 1) for name in names}
    return found if rng.random() < 0.9 else json.dumps(found)


def _walk(constraint: Constraint, rng: random.Random) -> None:
    matcher = constraint.start()
    row = np.zeros(constraint.machine.vocabulary.num_words, np.uint32)
    for _ in range(_NUM_STEPS):
        matcher.fill_mask(row, budget=matcher.closing_cost + rng.randint(0, 9))
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        assert allowed or matcher.accepting, "stuck"
        texts = [token_id for token_id in allowed if token_id < 256]
        if not texts:
            return
        assert matcher.advance(rng.choice(texts)), "a mask allows what is not taken"


if __name__ == "__main__":
    sys.exit(main())
