"""What one step of a constraint costs, by kind: the table of docs/grammar.md.

    python benchmarks/mask_costs.py tokenizer.json[.xz]

CPU time of the thread in microseconds: the median over the steps of an object of forty properties,
without automatic garbage collection.
"""

import argparse
import gc
import json
import lzma
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tokenizers

from umbel.grammar import Constraint, Vocabulary, compile_json_schema, compile_regex, warm_up

_KINDS = ({"type": "string"}, {"type": "integer"}, {"enum": ["low", "high"]}, {"type": "boolean"})
_EXAMPLES = ("some words of text", 120, "high", True)
_PATTERNS = 20


def _names(prefix: str) -> list[str]:
    return [f"{prefix}Name{at}" for at in range(40)]


def _schema(prefix: str) -> dict[str, object]:
    properties = {name: _KINDS[at % 4] for at, name in enumerate(_names(prefix))}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _text(prefix: str) -> str:
    return json.dumps({name: _EXAMPLES[at % 4] for at, name in enumerate(_names(prefix))})


def _steps(constraint: Constraint, tokens: list[int]) -> tuple[list[int], list[int]]:
    """Nanoseconds of every mask and of every move."""
    now = time.thread_time_ns
    row = np.zeros(constraint.machine.vocabulary.num_words, np.uint32)
    matcher = constraint.start()
    masks, moves = [], []
    for token_id in tokens:
        begin = now()
        matcher.fill_mask(row)
        middle = now()
        assert matcher.advance(token_id)
        moves.append(now() - middle)
        masks.append(middle - begin)
    return masks, moves


def _median(times: list[int]) -> float:
    return statistics.median(times) / 1e3


def _first_masks(vocabulary: Vocabulary) -> list[int]:
    """Of patterns that allow most of the vocabulary, each new."""
    row = np.zeros(vocabulary.num_words, np.uint32)
    times = []
    for at in range(_PATTERNS):
        matcher = compile_regex(f"[a-zA-Z0-9_ .-]{{2}}[^{at}\\n]*\\n", vocabulary).start()
        begin = time.thread_time_ns()
        matcher.fill_mask(row)
        times.append(time.thread_time_ns() - begin)
    return times


def _measure(vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> dict[str, float]:
    tokens = encode(_text("a"))
    fresh_masks, _ = _steps(compile_json_schema(_schema("a"), vocabulary), tokens)
    constraint = compile_json_schema(_schema("a"), vocabulary)
    masks, moves = _steps(constraint, tokens)
    known_masks, known_moves = _steps(constraint, tokens)
    pairs = zip(known_masks, known_moves, strict=True)
    return {
        "mask and move, place seen before": _median([mask + move for mask, move in pairs]),
        "new place: move": _median(moves),
        "new place: mask, everything in it read before": _median(masks),
        "new place: mask, its names and literals new, too": _median(fresh_masks),
        "a permissive leaf over the whole vocabulary, first time": _median(
            _first_masks(vocabulary)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("tokenizer", type=Path)
    path = parser.parse_args().tokenizer
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        tokenizer = tokenizers.Tokenizer.from_str(file.read())
    special = set(tokenizer.get_added_tokens_decoder())
    size = tokenizer.get_vocab_size()
    byte_of = _byte_of_char()
    texts = [
        None if i in special else bytes(byte_of[c] for c in tokenizer.id_to_token(i))
        for i in range(size)
    ]
    vocabulary = Vocabulary(texts, [min(special)], size=size)
    warm_up(vocabulary)
    gc.collect()
    gc.disable()
    print(f"vocabulary of {size} tokens")
    encode = tokenizer.encode
    costs = _measure(vocabulary, lambda text: encode(text, add_special_tokens=False).ids)
    for name, cost in costs.items():
        print(f"| {name} | {cost:.1f} us |")


def _byte_of_char() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes with."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in printable]
    found = {chr(value): value for value in printable}
    found.update({chr(256 + at): value for at, value in enumerate(others)})
    return found


if __name__ == "__main__":
    main()
