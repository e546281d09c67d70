"""What the process holds after 300 schemas went through a grammar cache of 64.

    python benchmarks/grammar_memory.py DATA.jsonl[.xz] tokenizer.json[.xz] [--schemas 300]

DATA: lines with `schema` and `tests` (each `data` and `valid`), as MaskBench's. Each schema is
compiled by the engine's cache, and its valid instances are read mask by mask. Prints MiB beyond
what the process held when the vocabulary was warm.
"""

import argparse
import gc
import json
import lzma
import re
from pathlib import Path
from typing import Any

import numpy as np
from grammar_lark import Tokenizer

from umbel.grammar import Constraint, Vocabulary, warm_up
from umbel.runtime.constraints import ConstraintCompiler
from umbel.runtime.errors import UmbelError
from umbel.runtime.params import SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--cache", type=int, default=64)
    args = parser.parse_args()
    tokenizer = Tokenizer(_read(args.tokenizer))
    vocabulary = Vocabulary(
        tokenizer.token_bytes(), [tokenizer.eos_id], size=tokenizer.size, encode=tokenizer.encode
    )
    warm_up(vocabulary)
    row = np.zeros(vocabulary.num_words, np.uint32)
    compiler = ConstraintCompiler(vocabulary, cache_size=args.cache)
    records = [json.loads(line) for line in _read(args.data).splitlines()[: args.schemas]]
    before_mib = _held_mib()
    num_refused = num_masks = 0
    for record in records:
        try:
            constraint = compiler.compile(SamplingParams(json_schema=record["schema"]))
        except UmbelError:
            num_refused += 1
            continue
        assert constraint is not None
        for test in record["tests"]:
            if test["valid"] and "data" in test:
                num_masks += _read_instance(constraint, tokenizer, row, test["data"])
    gc.collect()
    print(
        f"{len(records)} schemas ({num_refused} refused), {num_masks:,} masks, a cache of "
        f"{args.cache}: {_held_mib() - before_mib:.0f} MiB more than {before_mib:.0f}"
    )
    compiler.close()


def _read_instance(
    constraint: Constraint, tokenizer: Tokenizer, row: "np.ndarray[Any, np.dtype[Any]]", data: Any
) -> int:
    """Up to where it leaves the constraint, which has an order of properties. Masks made."""
    matcher = constraint.start()
    num_masks = 0
    for token_id in tokenizer.encode(json.dumps(data, ensure_ascii=False)):
        matcher.fill_mask(row)
        num_masks += 1
        if not matcher.advance(token_id):
            break
    return num_masks


def _read(path: Path) -> str:
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode()


def _held_mib() -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    main()
