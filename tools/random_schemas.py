"""Random JSON Schemas: all sampled outputs are valid, and all valid instances are accepted.

    python tools/random_schemas.py [--schemas 10000] [--seed 0] [--tokenizer tokenizer.json[.xz]]

Schemas and instances come from hypothesis-jsonschema, outputs from masks over equal logits with a
limit of tokens. Prints what was counted, and every failure with its schema; exit code 1 for any.
"""

import argparse
import lzma
import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import tokenizers
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis_jsonschema import from_schema

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from unit.grammar.generated_schemas import (
    check_instance_is_accepted,
    check_schema,
    schemas,
)
from unit.grammar.oracles import bytes_of_token, trained_vocabulary

from umbel.grammar import Vocabulary

_INSTANCES = 3  # of each schema
_QUIET = list(HealthCheck)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--schemas", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=3, help="outputs of each schema")
    parser.add_argument("--tokenizer", type=Path, help="of a byte-level vocabulary, also .xz")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    vocabulary = trained_vocabulary() if args.tokenizer is None else _vocabulary(args.tokenizer)
    tally: Counter[str] = Counter()
    rng = random.Random(args.seed)
    failures = 0
    started_s = time.monotonic()
    while tally["schemas"] < args.schemas:
        for schema in _drawn(schemas, min(500, args.schemas - tally["schemas"]), rng):
            tally["schemas"] += 1
            failures += _is_wrong(schema, vocabulary, rng, tally, args.samples)
        print(
            f"{time.monotonic() - started_s:.0f} s", dict(tally), "failures", failures, flush=True
        )
    return 1 if failures else 0


def _is_wrong(
    schema: Any, vocabulary: Vocabulary, rng: random.Random, tally: Counter[str], samples: int
) -> bool:
    before = tally["refused"]
    try:
        constraint = check_schema(schema, vocabulary, rng, tally, samples=samples)
        if tally["refused"] == before:
            for instance in _instances(schema, rng, tally):
                check_instance_is_accepted(schema, constraint, instance, tally)
    except Exception as error:
        print("FAILED", repr(schema), f"{type(error).__name__}: {error}", flush=True)
        return True
    return False


def _instances(schema: Any, rng: random.Random, tally: Counter[str]) -> list[Any]:
    try:
        return _drawn(from_schema(schema), _INSTANCES, rng)
    except Exception:  # whatever the generator cannot do is not our concern
        tally["without instances"] += 1
        return []


def _drawn(strategy: Any, count: int, rng: random.Random) -> list[Any]:
    found: list[Any] = []

    @hypothesis.seed(rng.randrange(2**32))
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=_QUIET,
    )
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def _vocabulary(path: Path) -> Vocabulary:
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        tokenizer = tokenizers.Tokenizer.from_str(file.read())
    special = tokenizer.get_added_tokens_decoder()
    size = tokenizer.get_vocab_size()
    texts = [
        None if i in special else bytes_of_token(tokenizer.id_to_token(i)) for i in range(size)
    ]
    return Vocabulary(texts, [min(special)], size=size)


if __name__ == "__main__":
    sys.exit(main())
