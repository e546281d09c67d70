"""Umbel on the workloads of the comparison. Started by `benchmarks/compare.py`."""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import measure  # found through the line above

from umbel.runtime.engine import Engine
from umbel.runtime.errors import UmbelError
from umbel.runtime.params import SamplingParams


class UmbelAdapter:
    def __init__(self, args: argparse.Namespace) -> None:
        self._engine = Engine(args.model, num_threads=args.threads)

    def can_do(self, name: str) -> bool:
        return True

    def generate(self, prompts: list[Any], max_tokens: list[int], schemas: list[Any]) -> list[int]:
        params = [
            SamplingParams(temperature=0, max_tokens=count, json_schema=schema)
            if schema is not None
            else SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
            for count, schema in zip(max_tokens, schemas or [None] * len(prompts), strict=True)
        ]
        lengths = []
        for result in self._engine.generate_batch(prompts, params):
            if isinstance(result, UmbelError):
                raise result
            lengths.append(len(result.token_ids))
        return lengths


if __name__ == "__main__":
    measure.main("umbel", UmbelAdapter)
