"""Whole masks beside llguidance's, at every step of valid instances: what one alone allows.

    python benchmarks/mask_compare.py tokenizer.json[.xz] schemas.jsonl[.xz] [--schemas 100]

schemas.jsonl: lines of {id, schema, tests: [{valid, data}]} (MaskBench's, which is no part of this
project). Schemas that either engine refuses are left out; instances that either does not accept
(property order) are cut short. Differing tokens are counted by class, which docs/grammar.md
explains; some are printed. Needs llguidance.
"""

import argparse
import json
import lzma
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import llguidance
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.grammar_lark import Tokenizer

from umbel.grammar import Constraint, GrammarError, Vocabulary, compile_json_schema
from umbel.grammar.warming import warm_up

_MAX_EXAMPLES = 3
_SPACE = b" \t\r\n"
_NUMBER = re.compile(rb"-?[0-9]*(\.[0-9]*)?([eE][+-]?[0-9]*)?\s*$")


class Comparison:
    """One tokenizer, both engines, and what was counted."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(
            tokenizer.token_bytes(), [tokenizer.eos_id], size=tokenizer.size
        )
        warm_up(self.vocabulary)
        self.peer = llguidance.LLTokenizer(
            tokenizer.text, n_vocab=tokenizer.size, eos_token=tokenizer.eos_id
        )
        self.counts: Counter[str] = Counter()
        self.tokens: Counter[tuple[str, str]] = Counter()  # (who alone allows it, class)
        self.examples: dict[tuple[str, str], list[str]] = {}

    def schema(self, schema: Any, instances: list[Any]) -> None:
        text = json.dumps({"grammars": [{"json_schema": schema}]})
        matcher = llguidance.LLMatcher(self.peer, text, log_level=0)
        try:
            ours = compile_json_schema(schema, self.vocabulary, whitespace="any")
            wide = compile_json_schema(
                schema, self.vocabulary, whitespace="any", any_order=True, assert_formats=False
            )
        except GrammarError:
            self.counts["schemas that Umbel refuses"] += 1
            return
        if matcher.is_error():
            self.counts["schemas that llguidance refuses"] += 1
            return
        self.counts["schemas"] += 1
        for instance in instances:
            self.instance(ours, wide, matcher.deep_copy(), instance)

    def instance(self, ours: Constraint, wide: Constraint, theirs: Any, instance: Any) -> None:
        ids = self.tokenizer.encode(json.dumps(instance, ensure_ascii=False))
        matchers = [ours.start(), wide.start()]
        rows = np.zeros((3, self.vocabulary.num_words), np.uint32)  # ours, theirs, our widest
        prefix = b""
        for token_id in [*ids, None]:
            matchers[0].fill_mask(rows[0])
            theirs.unsafe_compute_mask_ptr(rows[1].ctypes.data, rows[1].nbytes)
            self.counts["steps"] += 1
            if (rows[0] == rows[1]).all():
                self.counts["equal steps"] += 1
            else:
                matchers[1].fill_mask(rows[2])
                self.differences(rows, prefix)
            if token_id is None:
                return
            is_taken = [matcher.advance(token_id) for matcher in matchers]
            if not (all(is_taken) and theirs.consume_token(token_id)):
                self.counts["instances cut short"] += 1
                return
            prefix += self.vocabulary.text_of(token_id) or b""

    def differences(self, rows: Any, prefix: bytes) -> None:
        ours, theirs, widest = np.unpackbits(
            rows.view(np.uint8).reshape(3, -1), axis=1, bitorder="little"
        )
        place = _place(prefix)
        is_forced = int(theirs.sum()) == 1
        self._count("Umbel", np.flatnonzero(ours > theirs), prefix, place, is_forced=is_forced)
        ordered = np.flatnonzero((theirs > ours) & widest)
        self._add("llguidance", "property order and formats", ordered, prefix)
        self._count("llguidance", np.flatnonzero(theirs > np.maximum(ours, widest)), prefix, place)

    def _count(
        self, who: str, token_ids: Any, prefix: bytes, place: str, *, is_forced: bool = False
    ) -> None:
        if is_forced:
            self._add(who, "forced text: llguidance allows one token", token_ids, prefix)
        elif place == "name":
            self._add(who, "property names", token_ids, prefix)
        else:
            for token_id in token_ids.tolist():
                text = self.vocabulary.text_of(token_id)
                kind = _kind(text, prefix, is_inside=place == "text")
                self._add(who, kind, [token_id], prefix)

    def _add(self, who: str, kind: str, token_ids: Any, prefix: bytes) -> None:
        self.tokens[who, kind] += len(token_ids)
        examples = self.examples.setdefault((who, kind), [])
        if len(token_ids) and len(examples) < _MAX_EXAMPLES:
            text = self.vocabulary.text_of(int(token_ids[len(token_ids) // 2]))
            examples.append(f"    {text!r} after {prefix[-70:]!r}")


def _kind(text: bytes | None, prefix: bytes, *, is_inside: bool) -> str:
    if text is None:
        return "special tokens and the end"
    if is_inside:
        inside = text.split(b'"')[0]
        if b"\\" in inside or prefix.endswith(b"\\"):
            return "escapes"
        if b"\x7f" in inside:
            return "DEL in strings"
    if any(value in _SPACE for value in text):
        return "white space"
    if is_inside:
        return "strings and what follows them"
    if b'"' in text:
        return "a quote and what follows it"
    return "numbers" if _NUMBER.match(text) else "other"


def _place(prefix: bytes) -> str:
    """Where a prefix of JSON ends: in a property's name or before one, in another text, or
    elsewhere.
    """
    open_brackets: list[int] = []
    expects_name = is_inside = is_escaped = False
    for value in prefix:
        if is_inside:
            is_inside = is_escaped or value != 0x22
            is_escaped = not is_escaped and value == 0x5C
        elif value == 0x22:
            is_inside = True
        elif value in b"{[":
            open_brackets.append(value)
            expects_name = value == 0x7B
        elif value in b"}]":
            open_brackets.pop()
            expects_name = False
        elif value == 0x2C:
            expects_name = open_brackets[-1] == 0x7B
        elif value == 0x3A:
            expects_name = False
    if expects_name:
        return "name"
    return "text" if is_inside else "elsewhere"


def _read(path: Path) -> str:
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return file.read()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("schemas_file", type=Path)
    parser.add_argument("--schemas", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    comparison = Comparison(Tokenizer(_read(args.tokenizer)))
    records = [json.loads(line) for line in _read(args.schemas_file).splitlines()]
    random.Random(args.seed).shuffle(records)
    for record in records[: args.schemas]:
        valid = [test["data"] for test in record["tests"] if test["valid"] and "data" in test]
        if valid:
            comparison.schema(record["schema"], valid)
    for name, count in comparison.counts.items():
        print(f"{name}: {count}")
    print("tokens at steps that differ, by who alone allows them")
    for (who, kind), count in comparison.tokens.most_common():
        print(f"{count:9} {who:11} {kind}")
        print(*comparison.examples[who, kind], sep="\n")


if __name__ == "__main__":
    main()
