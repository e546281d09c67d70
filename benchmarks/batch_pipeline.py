"""A batch of 10,000 items that is killed three times: complete, exact, and in flat memory.

    python benchmarks/batch_pipeline.py [--items 10000] [--kills 3] [--seed 0]

The engine is real but for its model, which is simulated (tests/unit/runtime/simulated_engine.py),
so that what is measured is the pipeline. The output of the killed run is compared, byte for byte,
with that of a run that was left alone. Exits with 1 if they differ or if memory grew.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from unit.runtime.simulated_engine import LETTERS, rig

from umbel.frontend_dsl import State, gen, program
from umbel.frontend_dsl.batch.journal import Header, Journal
from umbel.frontend_dsl.batch.pipeline import BatchReport
from umbel.frontend_dsl.batch.sources import read_items

MAX_IN_FLIGHT = 32
WINDOW = 512
STATEMENT = "groups of items begin alike "


@program(temperature=0.0)
def answer(s: State, group: str, word: str) -> str:
    s += STATEMENT + f"{group} {word} "
    s += gen("kind", choices=["yes", "no"])
    if s["kind"] == "yes":
        s += gen("more", max_tokens=3)
        return f"{word} {s['more']}"
    return word


class Forgetful(list):
    """A log that nobody reads."""

    def append(self, _: object) -> None:
        pass

    def __iadd__(self, _: object) -> "Forgetful":
        return self


def work(source: Path, output: Path) -> None:
    """One process: goes on where the journal ends. Prints what it used, as JSON."""
    memory: list[int] = []
    start_s = time.perf_counter()

    def note(report: BatchReport) -> None:
        if report.num_done % 100 == 0:
            memory.append(resident_kib())

    with rig(num_blocks=4096, block_size=4) as made:
        made.sampler.rows, made.runner.steps = Forgetful(), Forgetful()  # tests look at them
        report = answer.run_batch(
            made.engine, read_items(source), checkpoint=journal_of(output), source=source.name,
            max_in_flight=MAX_IN_FLIGHT, window=WINDOW, on_progress=note,
        )  # fmt: skip
    with Journal(journal_of(output), Header(answer.identity, source.name)) as journal:
        journal.write_output(output)
    used = {
        "seconds": time.perf_counter() - start_s,
        "done_here": report.num_done - report.num_resumed,
        "failed": report.num_failed,
        "early_kib": memory[len(memory) // 10],
        "last_kib": memory[-1],
        "reused": report.costs.total.reused_share,
        "rows_per_step": report.costs.total.rows_per_step,
    }
    print(json.dumps(used))


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4


def journal_of(output: Path) -> Path:
    return output.with_name(output.name + ".journal")


def write_items(path: Path, num_items: int, rng: random.Random) -> None:
    def word(length: int) -> str:
        return "".join(rng.choices(LETTERS[:26], k=length))

    groups = [word(24) for _ in range(40)]
    with path.open("w") as file:
        for _ in range(num_items):
            file.write(json.dumps({"group": rng.choice(groups), "word": word(8)}) + "\n")


def start(source: Path, output: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, "--work", str(source), str(output)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def num_done(output: Path) -> int:
    path = journal_of(output)
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def kill_at(source: Path, output: Path, stop: int) -> None:
    """Run until so many items are done, then SIGKILL."""
    process = start(source, output)
    while process.poll() is None and num_done(output) < stop:
        time.sleep(0.01)
    if process.poll() is not None:
        sys.exit("the batch was over before it could be killed: give it more --items")
    process.kill()
    process.communicate()
    print(f"killed with {num_done(output):,} items done", flush=True)


def finish(source: Path, output: Path) -> dict[str, float]:
    out, _ = start(source, output).communicate()
    return dict(json.loads(out))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-growth-mib", type=int, default=16, metavar="MIB",
                        help="from a tenth of the items to the end")  # fmt: skip
    parser.add_argument("--work", nargs=2, type=Path, metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(*args.work)
        return 0
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        source, killed, alone = (Path(folder) / name for name in ("items.jsonl", "a", "b"))
        write_items(source, args.items, rng)
        for stop in sorted(rng.sample(range(args.items // 20, args.items * 19 // 20), args.kills)):
            kill_at(source, killed, stop)
        resumed = finish(source, killed)
        used = finish(source, alone)
        is_exact = killed.read_bytes() == alone.read_bytes()
        num_lines = alone.read_bytes().count(b"\n")
    growth_mib = max(one["last_kib"] - one["early_kib"] for one in (used, resumed)) / 1024
    print(
        f"{num_lines:,} of {args.items:,} items, {used['failed']} failed; killed "
        f"{args.kills} times: {'the same output' if is_exact else 'ANOTHER OUTPUT'}\n"
        f"left alone: {used['seconds']:.1f} s, {args.items / used['seconds']:,.0f} items/s, "
        f"{used['reused']:.0%} of the prompts reused, {used['rows_per_step']:.1f} rows per step\n"
        f"memory: {used['early_kib'] / 1024:.0f} MiB after a tenth of the items, "
        f"{used['last_kib'] / 1024:.0f} MiB at the end; of the run that went on after the last "
        f"kill ({resumed['done_here']:,} items): {resumed['early_kib'] / 1024:.0f} and "
        f"{resumed['last_kib'] / 1024:.0f} MiB"
    )
    is_right = is_exact and num_lines == args.items and used["failed"] == 0
    return 0 if is_right and growth_mib <= args.max_growth_mib else 1


if __name__ == "__main__":
    sys.exit(main())
