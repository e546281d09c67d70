"""What the dashboard is drawn from: one sample of the engine for all viewers, at most one a second.

A sample of the tree is copied between two steps; a tree that takes long to copy is sampled less
often, so that watching costs the engine at most a fiftieth of its time.
"""

import asyncio
import itertools
import time
from collections import deque
from dataclasses import dataclass, field

import msgspec

from umbel.radix_cache.tree import NodeView
from umbel.runtime.engine import Engine
from umbel.runtime.roofline.gauge import Reading
from umbel.runtime.stats import EngineStats
from umbel.server.trace import Trace, Tracer

INTERVAL_S = 1.0
HISTORY = 120  # samples
_COST_RATIO = 50
_RECENT_S = 60.0  # latencies of requests that were there in the last minute


class Moment(msgspec.Struct, kw_only=True):
    """One point of the curves. Rates are over the time in which steps ran; None without steps."""

    time: float  # Unix time
    tokens_per_s: float | None
    limit_tokens_per_s: float | None  # if each step took its bound only
    rows_per_step: float | None
    running: int
    waiting: int
    hit_rate: float | None


class Quantiles(msgspec.Struct, kw_only=True):
    """Seconds."""

    p50: float | None
    p95: float | None
    count: int


@dataclass(slots=True, kw_only=True)
class Sample:
    """The engine at one moment, and since the sample before."""

    time_s: float  # of `time.perf_counter`
    stats: EngineStats
    nodes: list[NodeView]
    traces: list[Trace]
    device: str
    reading: Reading | None  # None: no steps since the sample before
    first_token: Quantiles
    inter_token: Quantiles
    history: list[Moment] = field(default_factory=list)


class Sampler:
    """Takes samples when somebody looks. On the loop; the work is done in a thread."""

    def __init__(self, engine: Engine, tracer: Tracer) -> None:
        self._engine = engine
        self._tracer = tracer
        self._history: deque[Moment] = deque(maxlen=HISTORY)
        self._lock = asyncio.Lock()
        self._last: Sample | None = None
        self._due_s = 0.0

    async def sample(self) -> Sample:
        """The last sample, or a new one when that is due."""
        async with self._lock:
            if self._last is None or time.perf_counter() >= self._due_s:
                self._last = await asyncio.to_thread(self._take, self._last)
            return self._last

    def _take(self, before: Sample | None) -> Sample:
        device = self._engine.gauge().device.name
        started_s = time.perf_counter()
        nodes = self._engine.cache_nodes()
        copied_s = time.perf_counter() - started_s
        stats = self._engine.stats()
        traces = self._tracer.recent()
        reading = None if before is None else self._engine.gauge_since(before.stats)
        sample = Sample(
            time_s=time.perf_counter(),
            stats=stats,
            nodes=nodes,
            traces=traces,
            device=device,
            reading=reading,
            first_token=_first_token(traces),
            inter_token=_inter_token(traces),
        )
        if before is not None:
            self._history.append(_moment(before.stats, stats, reading))
        sample.history = list(self._history)
        self._due_s = sample.time_s + max(INTERVAL_S, _COST_RATIO * copied_s)
        return sample


def _moment(before: EngineStats, stats: EngineStats, reading: Reading | None) -> Moment:
    num_tokens = stats.num_generated_tokens - before.num_generated_tokens
    num_steps = stats.num_steps - before.num_steps
    num_rows = stats.num_computed_tokens - before.num_computed_tokens
    rate = limit = None
    if reading is not None and num_tokens > 0:
        rate = num_tokens / reading.seconds
        limit = num_tokens / reading.split.bound_s if reading.split.bound_s else None
    return Moment(
        time=time.time(),
        tokens_per_s=rate,
        limit_tokens_per_s=limit,
        rows_per_step=num_rows / num_steps if num_steps else None,
        running=stats.num_running,
        waiting=stats.num_waiting,
        hit_rate=hit_rate(stats, before),
    )


def hit_rate(stats: EngineStats, before: EngineStats | None = None) -> float | None:
    """The share of context that was found in the cache; None if nothing was looked for."""
    num_reused = stats.num_reused_tokens - (before.num_reused_tokens if before else 0)
    num_computed = stats.num_computed_tokens - (before.num_computed_tokens if before else 0)
    total = num_reused + num_computed
    return num_reused / total if total else None


def _first_token(traces: list[Trace]) -> Quantiles:
    oldest_s = time.perf_counter() - _RECENT_S
    return _quantiles(
        [
            track.first_token_s - track.submitted_s
            for trace in traces
            for track in list(trace.tracks)
            if track.first_token_s is not None and track.first_token_s > oldest_s
        ]
    )


def _inter_token(traces: list[Trace]) -> Quantiles:
    oldest_s = time.perf_counter() - _RECENT_S
    gaps: list[float] = []
    for trace in traces:
        for track in list(trace.tracks):
            times_s = track.step_s[-256:]
            gaps += [
                after - before for before, after in itertools.pairwise(times_s) if before > oldest_s
            ]
    return _quantiles(gaps)


def _quantiles(values: list[float]) -> Quantiles:
    values.sort()
    if not values:
        return Quantiles(p50=None, p95=None, count=0)
    last = len(values) - 1
    return Quantiles(
        p50=values[round(0.5 * last)], p95=values[round(0.95 * last)], count=len(values)
    )
