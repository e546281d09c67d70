"""Runs a batch over a JSON-lines file in a process of its own, to be killed: see test_batch.py.

Prints the growth of the peak memory, in KiB, from a tenth of the items to the end.
"""

import resource
import sys
from pathlib import Path

from unit.frontend_dsl.fake_client import FakeClient

from umbel.frontend_dsl import State, gen, program
from umbel.frontend_dsl.batch.pipeline import BatchReport
from umbel.frontend_dsl.batch.sources import read_items

MAX_IN_FLIGHT = 16


@program
def shout(s: State, group: str, word: str) -> str:
    s += f"{group}: {word}"
    s += gen("answer", choices=["yes", "no"])
    if s["answer"] == "yes":
        s += gen("more", max_tokens=2)
        return f"{word}+{s['more']}"
    return word


def main() -> None:
    items, checkpoint = Path(sys.argv[1]), Path(sys.argv[2])
    num_items = int(sys.argv[3])
    early: list[int] = []

    def note(report: BatchReport) -> None:
        if not early and report.num_done >= num_items // 10:
            early.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    with FakeClient() as client:
        client.calls, client.pins = _Forgetful(), _Forgetful()
        shout.run_batch(
            client, read_items(items), checkpoint=checkpoint, source="test",
            max_in_flight=MAX_IN_FLIGHT, window=256, on_progress=note,
        )  # fmt: skip
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early[0])


class _Forgetful(list):  # type: ignore[type-arg]  # the fake client keeps all calls otherwise
    def append(self, _: object) -> None:
        pass


if __name__ == "__main__":
    main()
