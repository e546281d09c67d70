"""How far from the device's limits the running engine is: work and time of its steps, as records.

The engine's `StatsRecorder` feeds a `GaugeRecorder` once a step; anybody reads the records. Steps
are summed by their number of rows, since the same resource binds steps of about the same width:
bounds of such sums are close to sums of bounds.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from umbel.runtime.roofline import cost
from umbel.runtime.roofline.advice import advice
from umbel.runtime.roofline.model_costs import ModelCosts, StepCounts
from umbel.runtime.roofline.records import Device, StepWork
from umbel.runtime.roofline.times import StepTimes, TimeSplit
from umbel.runtime.step import StepPlan

RECENT_STEPS = 128  # a few seconds of decoding


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Sums over some steps."""

    num_steps: int = 0
    work: StepWork = field(default_factory=StepWork)
    times: StepTimes = field(default_factory=StepTimes)  # never changed once it is here
    rows: int = 0
    read_kv_tokens: float = 0.0
    written_kv_tokens: int = 0

    @property
    def bytes_per_s(self) -> float:
        """Bytes that had to move, over all of the time; 0 without steps."""
        return self.work.memory_bytes / self.times.total_s if self.num_steps else 0.0

    @property
    def flops_per_s(self) -> float:
        return self.work.flops / self.times.total_s if self.num_steps else 0.0

    def __add__(self, other: "MeasuredSteps") -> "MeasuredSteps":
        return MeasuredSteps(
            self.num_steps + other.num_steps,
            self.work + other.work,
            self.times + other.times,
            self.rows + other.rows,
            self.read_kv_tokens + other.read_kv_tokens,
            self.written_kv_tokens + other.written_kv_tokens,
        )

    def __sub__(self, earlier: "MeasuredSteps") -> "MeasuredSteps":
        """What was added to a sum since an earlier state of it."""
        return MeasuredSteps(
            self.num_steps - earlier.num_steps,
            self.work - earlier.work,
            self.times - earlier.times,
            self.rows - earlier.rows,
            self.read_kv_tokens - earlier.read_kv_tokens,
            self.written_kv_tokens - earlier.written_kv_tokens,
        )


@dataclass(frozen=True, slots=True)
class GaugeStats:
    """What was measured, without a device to compare it with. Failed steps are not in it."""

    last: MeasuredSteps | None  # the last step
    recent: tuple[MeasuredSteps, ...]  # at most `RECENT_STEPS`, the last one last
    by_rows: Mapping[int, MeasuredSteps]  # since the start; rows, rounded up to a power of two

    @property
    def since_start(self) -> MeasuredSteps:
        return _sum(self.by_rows.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Measured steps against the limits of a device. Rates are over all of the time, the host's
    included, and count only what could not be avoided.
    """

    num_steps: int
    seconds: float
    bytes_per_s: float
    flops_per_s: float
    bandwidth_share: float  # of the device's limit; above 1 if that is too low
    flops_share: float
    split: TimeSplit

    @property
    def binding(self) -> str:
        return self.split.binding

    @property
    def advice(self) -> str:
        """What binds, and what would help, in a sentence or two."""
        first, beneath = self.binding, self.split.device_binding
        return advice(first) if first == beneath else f"{advice(first)}. Next: {advice(beneath)}"


@dataclass(frozen=True, slots=True)
class Gauge:
    """The engine against the limits of its device. None where no step was measured."""

    device: Device
    last: Reading | None
    recent: Reading | None
    since_start: Reading | None


class GaugeRecorder:
    """Collects steps; used by one thread. The records that `stats` returns stay as they are."""

    def __init__(self, costs: ModelCosts) -> None:
        self._costs = costs
        self._recent: deque[MeasuredSteps] = deque(maxlen=RECENT_STEPS)
        self._by_rows: dict[int, MeasuredSteps] = {}
        self._stats: GaugeStats | None = None  # asked for more often than there are steps

    def record(self, plan: StepPlan, times: StepTimes) -> MeasuredSteps:
        """Add a step that went well; the record of it alone."""
        counts: StepCounts = self._costs.count(plan)
        step = MeasuredSteps(
            1,
            self._costs.work(counts),
            times,
            counts.rows,
            counts.read_kv_tokens,
            counts.written_kv_tokens,
        )
        self._recent.append(step)
        size = round_up(counts.rows)
        before = self._by_rows.get(size)
        self._by_rows[size] = step if before is None else before + step
        self._stats = None
        return step

    def stats(self) -> GaugeStats:
        if self._stats is None:
            self._stats = GaugeStats(
                last=self._recent[-1] if self._recent else None,
                recent=tuple(self._recent),
                by_rows=dict(sorted(self._by_rows.items())),
            )
        return self._stats


def read_gauge(stats: GaugeStats, device: Device, dtype: str) -> Gauge:
    """`stats` against `device`, whose arithmetic is done in `dtype`."""
    return Gauge(
        device=device,
        last=None if stats.last is None else read_steps([stats.last], device, dtype),
        recent=read_steps(stats.recent, device, dtype),
        since_start=read_steps(stats.by_rows.values(), device, dtype),
    )


def read_between(
    before: GaugeStats, after: GaugeStats, device: Device, dtype: str
) -> Reading | None:
    """The steps that ran between two records of one engine; None if there was none."""
    grown = [
        steps - before.by_rows.get(size, MeasuredSteps()) for size, steps in after.by_rows.items()
    ]
    return read_steps([steps for steps in grown if steps.num_steps], device, dtype)


def read_steps(groups: Iterable[MeasuredSteps], device: Device, dtype: str) -> Reading | None:
    """Steps against a device; the bound of each group counts by itself. None without steps."""
    groups = list(groups)
    total, split = _sum(groups), TimeSplit()
    if not total.num_steps:
        return None
    for steps in groups:
        split += cost.split_time(steps.work, steps.times, device, dtype)
    seconds = total.times.total_s
    return Reading(
        num_steps=total.num_steps,
        seconds=seconds,
        bytes_per_s=total.bytes_per_s,
        flops_per_s=total.flops_per_s,
        bandwidth_share=cost.bandwidth_share(total.work, seconds, device),
        flops_share=cost.flops_share(total.work, seconds, device, dtype),
        split=split,
    )


def round_up(num_rows: int) -> int:
    """The power of two that is at least `num_rows`; 0 for 0."""
    return 1 << (num_rows - 1).bit_length() if num_rows else 0


def _sum(parts: Iterable[MeasuredSteps]) -> MeasuredSteps:
    return sum(parts, start=MeasuredSteps())
