"""Lookup speculation on and off, in turns: where it helps, and what it costs where it does not.

    python benchmarks/speculation.py [--rows 1,4,16] [--kinds quote,edit,extract,again,free,sampled]

Tokens per second of the same requests with `speculate="off"` and `"auto"`, medians over alternating
runs of one engine with an empty cache (`again`: with the answers of an earlier run in the tree);
the ratio; how many guesses were fed and how many of them came true, per generated token.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from umbel.runtime.engine import Engine
from umbel.runtime.errors import UmbelError
from umbel.runtime.params import SamplingParams

PLACES = ("Oslo", "Lima", "Cairo", "Hanoi", "Quito", "Delhi", "Tunis", "Sofia")
PEOPLE = ("Maria Lopez", "Jonas Berg", "Amina Diallo", "Kenji Sato", "Nora Weiss", "Ivan Petrov")
RECORD = {
    "type": "object",
    "properties": {
        name: {"type": "string"} for name in ("name", "office", "address", "task", "deadline")
    },
    "required": ["name", "office", "address", "task", "deadline"],
    "additionalProperties": False,
}


def document(number: int) -> str:
    person, place = PEOPLE[number % len(PEOPLE)], PLACES[number % len(PLACES)]
    return (
        f"{person} works in the {place} office at {number + 11} Harbour Street, third floor. Until "
        f"the {number % 28 + 1}th of March the whole archive of the department has to be moved to "
        f"the new building next to the railway station. Boxes with contracts from 19{number + 60} "
        f"to 19{number + 70} stay where they are, because the auditors still need them."
    )


def code(number: int) -> str:
    return (
        f"def total_price_{number}(items, discount):\n    total = 0\n    for item in items:\n"
        "        price = item.price * item.quantity\n        if item.is_reduced:\n"
        "            price = price * (1 - discount)\n        total = total + price\n"
        "    return total\n"
    )


def make_prompt(kind: str, number: int) -> str:
    text = document(number)
    return {
        "quote": f"Repeat this text word for word:\n{text}",
        "edit": f"Rename the variable `price` to `cost` in this code and print all of it:\n"
        f"{code(number)}",
        "extract": f"Fill in a record with what the text says.\n{text}",
        "again": f"Explain in simple words what this text says.\n{text}",
    }.get(kind, f"Tell a story about a lighthouse near {PLACES[number % len(PLACES)]}, {number}.")


def make_params(kind: str, max_tokens: int) -> SamplingParams:
    if kind == "extract":
        return SamplingParams(temperature=0, max_tokens=max_tokens, json_schema=RECORD)
    if kind == "sampled":
        return SamplingParams(temperature=0.9, max_tokens=max_tokens, ignore_eos=True)
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


KINDS = ("quote", "edit", "extract", "again", "free", "sampled")


def run_case(engine: Engine, kind: str, rows: int, args: argparse.Namespace) -> dict[str, Any]:
    """One line of the table."""
    rates: dict[str, list[float]] = {"off": [], "auto": []}
    fed = confirmed = generated = 0
    for repetition in range(args.repeats + 1):  # the first meets every number of rows
        prompts = [
            engine.encode_chat(
                [{"role": "user", "content": make_prompt(kind, rows * repetition + i)}]
            )
            for i in range(rows)
        ]
        for mode in rates if repetition % 2 else reversed(rates):
            params = make_params(kind, args.tokens).with_options(speculate=mode)
            engine.reset_cache()
            if kind == "again":
                generate(engine, prompts, params)
            before = engine.stats()
            wall_s, num_tokens = timed(lambda p=prompts, q=params: generate(engine, p, q))
            after = engine.stats()
            if repetition:
                rates[mode].append(num_tokens / wall_s)
            if repetition and mode == "auto":
                fed += after.num_drafted_tokens - before.num_drafted_tokens
                confirmed += after.num_confirmed_tokens - before.num_confirmed_tokens
                generated += num_tokens
    off, auto = (statistics.median(rates[mode]) for mode in ("off", "auto"))
    pairs = [a / b for a, b in zip(rates["auto"], rates["off"], strict=True)]
    return {
        "kind": kind, "rows": rows, "off_tok_s": off, "auto_tok_s": auto,
        "ratio": statistics.median(pairs), "worst_ratio": min(pairs),
        "fed_per_token": fed / generated, "confirmed_per_token": confirmed / generated,
    }  # fmt: skip


def generate(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> int:
    total = 0
    for result in engine.generate_batch(prompts, params):
        if isinstance(result, UmbelError):
            raise result
        total += len(result.token_ids)
    return total


def timed(work: Callable[[], int]) -> tuple[float, int]:
    begin_s = time.perf_counter()
    result = work()
    return time.perf_counter() - begin_s, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,4,16")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lines = []
    with Engine(num_threads=args.threads) as engine:
        print(f"{'kind':10}{'rows':>6}{'off tok/s':>12}{'auto tok/s':>12}{'ratio':>8}{'worst':>8}"
              f"{'fed':>8}{'right':>8}")  # fmt: skip
        for kind in args.kinds.split(","):
            for rows in map(int, args.rows.split(",")):
                line = run_case(engine, kind, rows, args)
                lines.append(line)
                print(f"{kind:10}{rows:6}{line['off_tok_s']:12.1f}{line['auto_tok_s']:12.1f}"
                      f"{line['ratio']:8.2f}{line['worst_ratio']:8.2f}{line['fed_per_token']:8.2f}"
                      f"{line['confirmed_per_token']:8.2f}", flush=True)  # fmt: skip
    if args.json is not None:
        args.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
