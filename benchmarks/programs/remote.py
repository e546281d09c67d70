"""The same programs, call by call, on a server with OpenAI's protocol: vLLM, SGLang, `umbel serve`.

python -m benchmarks.programs --remote http://127.0.0.1:8000 --model NAME [--against FILE]
"""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from benchmarks.programs.measure import num_calls, num_right, timed
from benchmarks.programs.workload import Workload
from rich import box
from rich.table import Table

from umbel.frontend_dsl import Client, ProgramError, Remote
from umbel.frontend_dsl.connection import Connection

_FLUSH = ("/flush_cache", "/reset_prefix_cache")  # Umbel's and SGLang's; vLLM's


@dataclass(frozen=True)
class RemoteRun:
    """All cases of a workload at the same time. `right`: None where there is no right answer.
    `error`: why the server could not do it.
    """

    workload: Workload
    wall_s: float = 0.0
    num_calls: int = 0
    num_right: int | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.workload.name,
            "cases": len(self.workload.cases),
            "calls": self.num_calls,
            "wall_s": self.wall_s,
            "right": self.num_right,
            "error": self.error,
        }


@dataclass(frozen=True)
class Abilities:
    """What a server can be asked for: see `Remote`."""

    structured_outputs: bool | Literal["gbnf"] = True
    scores: bool = True


def run_remotely(
    url: str,
    workloads: Sequence[Workload],
    *,
    model: str | None,
    template: str,
    repeats: int,
    abilities: Abilities = Abilities(),
    empty: Callable[[], object] | None = None,
) -> list[RemoteRun]:
    """The fastest of `repeats` for each, with a cache that `empty` emptied; None: the server is
    asked to, if it can be.

    `model` None: the first that the server has. What the server cannot do is noted as an error.
    """
    empty = empty or partial(flush, url)
    with Remote(
        url, model=model or first_model(url), structured_outputs=abilities.structured_outputs,
        scores=abilities.scores, template=template,
    ) as remote:  # fmt: skip
        return [run_on(remote, workload, repeats, empty) for workload in workloads]


def run_on(
    client: Client | Connection, workload: Workload, repeats: int, empty: Callable[[], object]
) -> RemoteRun:
    """The fastest of `repeats` for one workload: call by call, or (on a `Connection`) each case as
    one graph. `empty` empties the cache.
    """
    tries = []
    try:
        timed(client, workload.first(1), workload.program, 1)  # grammars are compiled, too
        for _ in range(repeats):
            empty()
            states, wall_s = timed(client, workload, workload.program, len(workload.cases))
            right = num_right(workload, [state.result for state in states])
            tries.append(RemoteRun(workload, wall_s, num_calls(states), right))
    except (ProgramError, AssertionError) as error:
        print(f"{workload.name}: {error}", file=sys.stderr, flush=True)
        return RemoteRun(workload, error=str(error))
    best = min(tries, key=lambda run: run.wall_s)
    print(f"{workload.name}: {best.wall_s:.2f} s", file=sys.stderr, flush=True)
    return best


def first_model(url: str) -> str:
    with urllib.request.urlopen(url.rstrip("/") + "/v1/models", timeout=60) as answer:
        return str(json.loads(answer.read())["data"][0]["id"])


def flush(url: str) -> None:
    """Empty the server's prefix cache; a server that has no route for it keeps it."""
    for path in _FLUSH:
        request = urllib.request.Request(url.rstrip("/") + path, b"", method="POST")
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError as error:
            error.close()
        else:
            time.sleep(0.1)
            return


def table(runs: Sequence[RemoteRun], against: Path | None) -> Table:
    """Side by side with the numbers that `--json` of a run in process wrote to `against`."""
    columns = ["program", "cases", "calls", "server", "right"]
    ours: Mapping[str, Any] = {}
    if against is not None:
        ours = {one["name"]: one for one in json.loads(against.read_text(encoding="utf-8"))}
        columns += ["in process", "ratio", "right"]
    made = Table(*columns, box=box.MARKDOWN)
    for run in runs:
        cases = len(run.workload.cases)
        seconds = f"{run.wall_s:.2f} s" if run.error is None else "failed"
        row = [run.workload.name, f"{cases}", f"{run.num_calls}", seconds]
        row.append(_share(run.num_right, cases))
        one = ours.get(run.workload.name)
        if one is not None and run.error is None:
            wall_s = one["compiled"]["wall_s"]
            row += [f"{wall_s:.2f} s", f"{run.wall_s / wall_s:.1f}x", _share(one["right"], cases)]
        made.add_row(*row)
    return made


def _share(right: int | None, cases: int) -> str:
    return "" if right is None else f"{right}/{cases}"
