"""What an engine did so far: counts, cache, and where the time of its steps went.

The engine's thread writes, anybody reads: a snapshot is replaced as a whole.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from umbel.radix_cache.tree import CacheStats, RadixCache
from umbel.runtime.roofline.devices import find_device
from umbel.runtime.roofline.gauge import (
    Gauge,
    GaugeRecorder,
    GaugeStats,
    Reading,
    read_between,
    read_gauge,
    round_up,
)
from umbel.runtime.roofline.limits import CPU_LIMITS
from umbel.runtime.roofline.model_costs import ModelCosts
from umbel.runtime.roofline.pacing import ChunkPacer
from umbel.runtime.roofline.records import Device
from umbel.runtime.roofline.times import StepTimes
from umbel.runtime.scheduler import Scheduler, SchedulerCounts
from umbel.runtime.speculation.drafter import Drafter
from umbel.runtime.step import StepPlan


class StepClock:
    """Measures the phases of one step: each `lap_s` returns the seconds since the one before."""

    def __init__(self) -> None:
        self._last_s = time.perf_counter()

    def lap_s(self) -> float:
        now_s = time.perf_counter()
        lap_s, self._last_s = now_s - self._last_s, now_s
        return lap_s


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot, taken between two steps. Counts are tokens unless the name says
    otherwise.
    """

    num_waiting: int  # requests
    num_running: int  # requests
    num_requests: int
    num_steps: int
    num_failed_steps: int
    num_computed_tokens: int  # rows fed to the model
    num_reused_tokens: int  # context that was found in the cache or in the same step
    num_generated_tokens: int  # sampled and forced
    num_forced_tokens: int
    num_drafted_tokens: int  # guessed and fed
    num_confirmed_tokens: int  # of these, so many came true
    num_preemptions: int
    rows_per_step: Mapping[int, int]  # rows, rounded up to a power of two -> steps
    cache: CacheStats
    last_step: StepTimes
    all_steps: StepTimes
    gauge: GaugeStats  # work and time of the steps that went well

    @property
    def mean_rows_per_step(self) -> float:
        return self.num_computed_tokens / self.num_steps if self.num_steps else 0.0


class StatsRecorder:
    """Belongs to the engine's thread, all but `snapshot`."""

    def __init__(
        self,
        scheduler: Scheduler,
        cache: RadixCache,
        costs: ModelCosts,
        pacer: ChunkPacer | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._pacer = pacer
        self._drafter = drafter
        self._gauge = GaugeRecorder(costs)
        self._rows_per_step: Counter[int] = Counter()
        self._last_step = StepTimes()
        self._all_steps = StepTimes()
        self._num_failed_steps = 0
        self._delivery_s = 0.0
        self.snapshot = self._take()

    def record(self, plan: StepPlan, times: StepTimes, *, is_failed: bool) -> None:
        """A step that was committed or failed."""
        times.deliver_s, self._delivery_s = self._delivery_s, 0.0
        self._rows_per_step[round_up(plan.num_tokens)] += 1
        self._num_failed_steps += is_failed
        self._last_step = times
        self._all_steps += times
        if is_failed:
            return
        step = self._gauge.record(plan, times)
        if self._drafter is not None:
            self._drafter.learn(plan, times.total_s)
        if self._pacer is not None:
            self._pacer.learn(step.rows, step.work.flops, times.total_s)

    def record_delivery(self, seconds: float) -> None:
        """Handing out a step's answers counts in the next step, since they include the stats."""
        self._delivery_s += seconds

    def refresh(self) -> None:
        """Make a new snapshot of what was recorded and counted."""
        self.snapshot = self._take()

    def _take(self) -> EngineStats:
        counts: SchedulerCounts = self._scheduler.counts
        return EngineStats(
            num_waiting=self._scheduler.num_waiting,
            num_running=self._scheduler.num_running,
            num_requests=counts.num_requests,
            num_steps=counts.num_steps,
            num_failed_steps=self._num_failed_steps,
            num_computed_tokens=counts.num_computed,
            num_reused_tokens=counts.num_reused,
            num_generated_tokens=counts.num_sampled + counts.num_forced,
            num_forced_tokens=counts.num_forced,
            num_drafted_tokens=counts.num_drafted,
            num_confirmed_tokens=counts.num_confirmed,
            num_preemptions=counts.num_preemptions,
            rows_per_step=dict(sorted(self._rows_per_step.items())),
            cache=self._cache.stats(),
            last_step=self._last_step,
            all_steps=self._all_steps,
            gauge=self._gauge.stats(),
        )


class GaugeReader:
    """Holds what was measured against a device's limits. Used by any thread."""

    def __init__(self, device_name: str | None, dtype: str) -> None:
        """Raises `InvalidRequest` for a device that is not known. None: this CPU."""
        self._device = None if device_name is None else find_device(device_name)
        self._dtype = dtype

    def read(self, stats: Callable[[], EngineStats]) -> Gauge:
        return read_gauge(stats().gauge, self._limits(stats), self._dtype)

    def read_since(self, before: EngineStats, stats: Callable[[], EngineStats]) -> Reading | None:
        now = stats().gauge
        return read_between(before.gauge, now, self._limits(stats), self._dtype)

    def _limits(self, stats: Callable[[], EngineStats]) -> Device:
        if self._device is not None:
            return self._device
        return CPU_LIMITS.get(is_busy=lambda: stats().num_running > 0)
