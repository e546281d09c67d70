"""What an engine did so far: counts, cache, and where the time of its steps went.

The engine's thread writes, anybody reads: a snapshot is replaced as a whole.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from umbel.radix_cache.tree import CacheStats, RadixCache
from umbel.runtime.scheduler import Scheduler, SchedulerCounts
from umbel.runtime.step import StepPlan


@dataclass(slots=True)
class StepTimes:
    """Seconds by phase, of one step or of all."""

    plan_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.plan_s + self.forward_s + self.sample_s + self.commit_s

    def add(self, other: "StepTimes") -> None:
        self.plan_s += other.plan_s
        self.forward_s += other.forward_s
        self.sample_s += other.sample_s
        self.commit_s += other.commit_s


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
    num_preemptions: int
    rows_per_step: Mapping[int, int]  # rows, rounded up to a power of two -> steps
    cache: CacheStats
    last_step: StepTimes
    all_steps: StepTimes

    @property
    def mean_rows_per_step(self) -> float:
        return self.num_computed_tokens / self.num_steps if self.num_steps else 0.0


class StatsRecorder:
    """Belongs to the engine's thread, all but `snapshot`."""

    def __init__(self, scheduler: Scheduler, cache: RadixCache) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._rows_per_step: Counter[int] = Counter()
        self._last_step = StepTimes()
        self._all_steps = StepTimes()
        self._num_failed_steps = 0
        self.snapshot = self._take()

    def record(self, plan: StepPlan, times: StepTimes, *, is_failed: bool) -> None:
        self._rows_per_step[_round_up(plan.num_tokens)] += 1
        self._num_failed_steps += is_failed
        self._last_step = times
        self._all_steps.add(times)

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
            num_preemptions=counts.num_preemptions,
            rows_per_step=dict(sorted(self._rows_per_step.items())),
            cache=self._cache.stats(),
            last_step=self._last_step,
            all_steps=replace(self._all_steps),
        )


def _round_up(num_rows: int) -> int:
    return 1 << (num_rows - 1).bit_length() if num_rows else 0
