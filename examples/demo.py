"""The main job on the embedded model: four programs, live, then each one request at a time for
comparison.

`make demo` runs this. Every number on the screen was measured in that run. The same programs stand
beside
this file, each by itself.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from agent import QUESTIONS, agent
from classify import classify, load_reviews
from extract import TEXTS, extract
from tree_of_thought import think
from umbel import Engine
from umbel.frontend_dsl import Program, State, draw
from umbel.runtime.roofline.gauge import Reading
from umbel.runtime.stats import EngineStats

PROBLEM = "How can I sleep better at night?"


@dataclass(frozen=True)
class Part:
    """One program of the demo: its items, and how to judge an answer, if that can be judged."""

    title: str
    program: Program
    items: list[dict[str, Any]]
    is_right: Callable[[int, State], bool] | None = None


@dataclass(frozen=True)
class Measured:
    """One way of running a part."""

    states: list[State]
    wall_s: float
    computed: int
    reused: int
    forced: int
    generated: int
    steps: int
    rows_by_step: dict[int, int]  # rows of a step, rounded up to a power of two -> steps
    reading: Reading | None  # against the limits of this machine

    @property
    def rows_per_step(self) -> float:
        return self.computed / max(1, self.steps)


def parts() -> list[Part]:
    reviews = load_reviews()
    return [
        Part("Typed JSON from text", extract, [{"text": text} for text in TEXTS]),
        Part("Tree of thought: fork, score, vote", think, [{"problem": PROBLEM}]),
        Part(
            "Few-shot classification by select",
            classify,
            [{"review": review} for _, review in reviews],
            lambda idx, state: state.result == reviews[idx][0],
        ),
        Part("Agent that chooses tools", agent, [{"question": question} for question in QUESTIONS]),
    ]


class LiveView:
    """What a running part shows: items done, and the engine's counters at each refresh."""

    def __init__(self, engine: Engine, part: Part, mode: str) -> None:
        self._engine = engine
        self._start = engine.stats()
        self._start_s = time.perf_counter()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns)
        self._task = self._progress.add_task(mode, total=len(part.items))
        self._last = ""

    def note(self, index: int, state: State) -> None:
        self._progress.advance(self._task)
        self._last = str(state.result if state.error is None else state.error).replace("\n", " ")

    def __rich__(self) -> Group:
        now = self._engine.stats()
        seconds = max(1e-9, time.perf_counter() - self._start_s)
        generated = now.num_generated_tokens - self._start.num_generated_tokens
        line = (
            f"  running {now.num_running}  waiting {now.num_waiting}  "
            f"generated {generated} tokens  {generated / seconds:.0f} tok/s"
        )
        last = Text(f"  last: {self._last}", style="dim", no_wrap=True, overflow="ellipsis")
        return Group(self._progress, Text(line), last)


def measure(
    engine: Engine, part: Part, console: Console, mode: str, max_in_flight: int
) -> Measured:
    engine.reset_cache()
    before = engine.stats()
    view = LiveView(engine, part, mode)
    start_s = time.perf_counter()
    with Live(view, console=console, refresh_per_second=8, transient=True):
        states = part.program.run_batch(
            engine, part.items, max_in_flight=max_in_flight, on_done=view.note
        )
    wall_s = time.perf_counter() - start_s
    for state in states:
        if state.error is not None:
            raise state.error
    return _measured(states, wall_s, before, engine.stats(), engine.gauge_since(before))


def _measured(
    states: list[State],
    wall_s: float,
    before: EngineStats,
    after: EngineStats,
    reading: Reading | None,
) -> Measured:
    def grown(name: str) -> int:
        return int(getattr(after, name)) - int(getattr(before, name))

    rows = {
        size: count - before.rows_per_step.get(size, 0)
        for size, count in after.rows_per_step.items()
        if count > before.rows_per_step.get(size, 0)
    }
    return Measured(
        states=states,
        wall_s=wall_s,
        computed=grown("num_computed_tokens"),
        reused=grown("num_reused_tokens"),
        forced=grown("num_forced_tokens"),
        generated=grown("num_generated_tokens"),
        steps=grown("num_steps"),
        rows_by_step=rows,
        reading=reading,
    )


def comparison(ours: Measured, plain: Measured) -> Table:
    table = Table("", "together", "one at a time, no cache", "ratio", box=None)

    def row(name: str, show: str, get: Callable[[Measured], float], ratio: bool = True) -> None:
        mine, other = get(ours), get(plain)
        quotient = f"{other / mine:.1f}x" if ratio and mine else ""
        table.add_row(name, format(mine, show), format(other, show), quotient)

    row("token rows computed", ",d", lambda m: m.computed)
    row("tokens reused", ",d", lambda m: m.reused, ratio=False)
    row("tokens generated", ",d", lambda m: m.generated, ratio=False)
    row("  of them forced", ",d", lambda m: m.forced, ratio=False)
    row("steps", ",d", lambda m: m.steps)
    row("rows per step, mean", ".1f", lambda m: m.rows_per_step, ratio=False)
    row("generated tokens/s", ",.0f", lambda m: m.generated / m.wall_s, ratio=False)
    row("wall time, s", ".2f", lambda m: m.wall_s)
    return table


def rows_histogram(rows_by_step: Mapping[int, int]) -> Text:
    text = Text("rows per step:  ", style="dim")
    for size, count in sorted(rows_by_step.items()):
        text.append(f"≤{size}: {count} steps   ")
    return text


def gauge_line(reading: Reading | None) -> Text:
    """How close to the machine's limits the steps came, where their time went, what binds."""
    if reading is None:
        return Text("")
    split, seconds = reading.split, reading.split.total_s
    parts = {
        "weights": split.weights_s,
        "KV": split.kv_s,
        "arithmetic": split.compute_s,
        "rest of the forward pass": split.unexplained_s,
        "host": split.host_s,
    }
    shares = ", ".join(f"{name} {part / seconds:.0%}" for name, part in parts.items())
    return Text(
        f"{reading.bytes_per_s / 1e9:.1f} GB/s ({reading.bandwidth_share:.0%} of the limit), "
        f"{reading.flops_per_s / 1e9:.0f} GFLOP/s ({reading.flops_share:.0%}); time: {shares}\n"
        f"{reading.advice}",
        style="dim",
    )


def verdict(part: Part, ours: Measured, plain: Measured) -> str:
    same = sum(a.result == b.result for a, b in zip(ours.states, plain.states, strict=True))
    text = f"same answer both ways: {same} of {len(part.items)}"
    if part.is_right is not None:
        right = sum(part.is_right(idx, state) for idx, state in enumerate(ours.states))
        text += f"; right: {right} of {len(part.items)}"
    return text


def show_answers(part: Part, states: Iterable[State], console: Console) -> None:
    for item, state in list(zip(part.items, states, strict=True))[:4]:
        console.print(
            Text(f"  {next(iter(item.values()))}", style="dim", no_wrap=True, overflow="ellipsis")
        )
        for line in str(state.result).splitlines():
            console.print(Text(f"    {line}"))
    if len(part.items) > 4:
        console.print(Text(f"    ... and {len(part.items) - 4} more", style="dim"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--no-compare", action="store_true", help="skip the run one request at a time"
    )
    args = parser.parse_args()
    console = Console()
    start_s = time.perf_counter()
    engine = Engine()
    plain = Engine(prefix_cache=False, share_attention=False, jump_forward=False, max_running=1)
    for one in (engine, plain):
        one.generate("Hello", max_tokens=2)  # first use of every operator is not what we measure
    limits = engine.gauge().device  # measured now, while nothing runs
    ready_s = time.perf_counter() - start_s
    console.print(
        f"two engines ready in {ready_s:.1f} s: the embedded model, dtype {engine.config.dtype}"
    )
    console.print(
        f"limits of this CPU: {limits.bandwidth / 1e9:.1f} GB/s, "
        f"{limits.peak_flops['bfloat16'] / 1e9:.0f} GFLOP/s in bfloat16 ({limits.source})"
    )
    total_ours = total_plain = 0.0
    with engine, plain:
        for part in parts():
            console.print(Panel(Text(part.title, style="bold"), expand=False))
            ours = measure(engine, part, console, "together", max_in_flight=64)
            show_answers(part, ours.states, console)
            console.print(draw(ours.states[0], max_branches=6))
            console.print(rows_histogram(ours.rows_by_step))
            console.print(gauge_line(ours.reading))
            if args.no_compare:
                continue
            alone = measure(plain, part, console, "one request at a time", max_in_flight=1)
            console.print(comparison(ours, alone))
            console.print(verdict(part, ours, alone))
            total_ours, total_plain = total_ours + ours.wall_s, total_plain + alone.wall_s
    if total_ours:
        console.print(
            f"\nall programs: {total_ours:.1f} s together, {total_plain:.1f} s one request at a "
            f"time: [bold]{total_plain / total_ours:.1f}x[/bold]"
        )


if __name__ == "__main__":
    main()
