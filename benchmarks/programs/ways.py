"""Whether all ways of running a program give the same: with all passes and none, eager, as a stored
graph, on a server of ours, and one request at a time on an engine without cache.

In float32 outputs must be the same to the character. In bfloat16 tokens of nearly equal probability
may change places when a sum has another shape: such ties are counted, and how wide the gap was.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from benchmarks.programs.measure import Outcome, outcome, timed
from benchmarks.programs.optimum import Fed, Recorder
from benchmarks.programs.ties import widest_gap
from benchmarks.programs.workload import Workload
from rich import box
from rich.table import Table

from umbel.frontend_dsl import GraphProgram, Program, Tool, connect
from umbel.frontend_dsl.graph.serial import from_json, to_json
from umbel.frontend_dsl.passes.pipeline import NAMES
from umbel.runtime.engine import Engine
from umbel.server.app import make_app
from umbel.server.serving import make_server

WAYS = ("compiled", "no passes", "eager", "stored", "served", "alone")


@dataclass(frozen=True)
class Agreement:
    """Per way how many cases came out as the compiled program's.

    `widest_gap`: the largest difference of the log-probabilities of two tokens where greedy
    generations with the same prompt part; None: none parts, or only what a server ran.
    """

    workload: Workload
    num_same: dict[str, int]
    widest_gap: float | None

    @property
    def num_ties(self) -> int:
        """Cases that came out differently, over all ways."""
        cases = len(self.workload.cases)
        return sum(cases - same for same in self.num_same.values())

    @property
    def summary(self) -> str:
        if self.num_ties == 0:
            return f"{self.workload.name}: all {len(WAYS)} ways give the same"
        counts = ", ".join(f"{way} {same}" for way, same in self.num_same.items())
        return f"{self.workload.name}: of {len(self.workload.cases)} cases the same: {counts}"


def agreement(engine: Engine, plain: Engine, url: str, workload: Workload) -> Agreement:
    """Each way once. Raises the error of the first case that fails."""
    program = workload.program
    runs: dict[str, Callable[[], tuple[list[Outcome], Sequence[Fed]]]] = {
        "compiled": lambda: _recorded(engine, workload, program),
        "no passes": lambda: _recorded(engine, workload, program.with_passes(())),
        "eager": lambda: _recorded(engine, workload, program.eager()),
        "stored": lambda: (_stored(engine, workload), ()),
        "served": lambda: (_served(url, workload), ()),
        "alone": lambda: _recorded(plain, workload, program.eager(), max_in_flight=1),
    }
    found: dict[str, list[Outcome]] = {}
    requests: dict[str, Sequence[Fed]] = {}
    for way, run in runs.items():
        engine.reset_cache()
        found[way], requests[way] = run()
    gaps = [widest_gap(engine, requests["compiled"], other) for other in requests.values()]
    return Agreement(
        workload,
        {way: _num_same(found["compiled"], outcomes) for way, outcomes in found.items()},
        max((gap for gap in gaps if gap is not None), default=None),
    )


def table(agreements: Sequence[Agreement]) -> Table:
    """Markdown when it is printed wide enough."""
    made = Table("program", "cases", *WAYS, "widest gap", box=box.MARKDOWN)
    for one in agreements:
        cases = len(one.workload.cases)
        gap = "" if one.widest_gap is None else f"{one.widest_gap:.3f}"
        made.add_row(one.workload.name, f"{cases}",
                     *(f"{one.num_same[way]}/{cases}" for way in WAYS), gap)  # fmt: skip
    return made


@contextmanager
def served_here(engine: Engine, tools: Collection[Tool]) -> Iterator[str]:
    """The address of a server over `engine` in this process."""
    is_ready = threading.Event()
    app = make_app(engine, tools=tools)
    server = make_server(app, host="127.0.0.1", port=0, on_ready=lambda _: is_ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="server")
    thread.start()
    try:
        if not is_ready.wait(60):
            raise SystemExit("the server did not start")
        yield server.address
    finally:
        server.drain()
        thread.join(60)


def tools_of(workloads: Sequence[Workload]) -> list[Tool]:
    """The tools that their programs call."""
    tools: dict[str, Tool] = {}
    for workload in workloads:
        traced = _fresh(workload.program).compile(**workload.items[0]).traced
        if traced is not None:
            tools.update(traced.tools)
    return list(tools.values())


def _recorded(
    engine: Engine, workload: Workload, program: Program, max_in_flight: int | None = None
) -> tuple[list[Outcome], Sequence[Fed]]:
    recorder = Recorder(engine)
    states, _ = timed(recorder, workload, program, max_in_flight or len(workload.cases))
    return [outcome(state) for state in states], recorder.requests


def _stored(engine: Engine, workload: Workload) -> list[Outcome]:
    """Each case by a graph of its own, written and read again."""
    outcomes = []
    for item in workload.items:
        compiled = _fresh(workload.program).compile(**item)
        if compiled.graph is None or compiled.traced is None:
            raise SystemExit(f"{workload.name} has no graph: it {compiled}")
        graph = from_json(to_json(compiled.graph))
        alone = GraphProgram(graph, tools=list(compiled.traced.tools.values()))
        outcomes.append(outcome(alone.run(engine, **item)))
    return outcomes


def _served(url: str, workload: Workload) -> list[Outcome]:
    states = workload.program.run_batch(connect(url), workload.items)
    for state in states:
        if state.error is not None:
            raise state.error
    return [outcome(state) for state in states]


def _fresh(program: Program) -> Program:
    """The same without the graphs that it has, which are bounded in number."""
    return program.with_passes(NAMES)


def _num_same(expected: list[Outcome], found: list[Outcome]) -> int:
    pairs = zip(expected, found, strict=True)
    return sum(_as_data(one) == _as_data(other) for one, other in pairs)


def _as_data(value: Outcome) -> Any:
    """As JSON has it: a stored graph knows no Python types, and a server sends no tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))
