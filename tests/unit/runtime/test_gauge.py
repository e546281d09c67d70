"""What the engine says of its steps against a device's limits."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.runtime.simulated_engine import SHAPE, EngineRig, rig

from umbel.runtime.errors import EngineError, InvalidRequest
from umbel.runtime.params import SamplingParams
from umbel.runtime.roofline import cost
from umbel.runtime.roofline.advice import BINDS, HELPS
from umbel.runtime.roofline.gauge import (
    RECENT_STEPS,
    GaugeStats,
    MeasuredSteps,
    read_between,
    read_steps,
)
from umbel.runtime.roofline.limits import MeasuredLimits
from umbel.runtime.roofline.records import Device, StepWork
from umbel.runtime.roofline.times import StepTimes
from umbel.runtime.step import StepPlan

PROMPT = [1, 2, 3, 4, 5]
GREEDY = SamplingParams(max_tokens=5, temperature=0.0)
DEVICE = Device(name="test", peak_flops={"float32": 1000.0}, bandwidth=100.0, memory_bytes=1e6)

seconds = st.floats(1e-6, 100.0)


def measured(work: StepWork, forward_s: float, host_s: float = 0.0) -> MeasuredSteps:
    return MeasuredSteps(1, work, StepTimes(forward_s=forward_s, plan_s=host_s), rows=1)


def device_file(tmp_path: Path) -> str:
    path = tmp_path / "fast.json"
    path.write_text('{"peak_flops": {"float32": 1e9}, "bandwidth": 1e8, "memory_bytes": 1e9}')
    return str(path)


def test_the_stats_of_an_engine_hold_the_work_of_its_plans() -> None:
    with rig() as made:
        made.engine.generate_batch([PROMPT, [*PROMPT, 6], [7]], GREEDY)
        stats = made.engine.stats()
        plans = list(made.runner.steps)

    total = stats.gauge.since_start
    kv_tokens = sum(part.num_tokens for plan in plans for part in _parts(plan))
    rows = [run.start + at for plan in plans for run in plan.runs for at in range(len(run.tokens))]
    assert total.num_steps == stats.num_steps == len(plans)
    assert total.rows == stats.num_computed_tokens == len(rows)
    assert total.work.kv_bytes == cost.kv_bytes_per_token(SHAPE, "float32") * kv_tokens
    assert total.work.attention_flops == cost.attention_flops(SHAPE, sum(rows) + len(rows))
    assert total.work.weight_bytes == len(plans) * SHAPE.num_streamed_parameters * 4
    assert total.times.total_s == pytest.approx(stats.all_steps.total_s)
    assert stats.gauge.last == stats.gauge.recent[-1]


def _parts(plan: StepPlan) -> list[object]:
    assert plan.attention is not None
    return [*plan.attention.segments, *plan.attention.tails]


def test_only_recent_steps_are_kept_one_by_one() -> None:
    long = SamplingParams(max_tokens=RECENT_STEPS + 20, temperature=0.0)
    with rig() as made:
        made.engine.generate(PROMPT, long)
        gauge = made.engine.stats().gauge

    assert len(gauge.recent) == RECENT_STEPS
    assert gauge.since_start.num_steps == RECENT_STEPS + 20


def test_a_step_that_failed_is_not_in_the_gauge() -> None:
    def fail(plan: StepPlan) -> None:
        raise MemoryError("no memory for this step")

    with rig() as made:
        made.runner.before_step = fail
        with pytest.raises(EngineError):
            made.engine.generate(PROMPT, GREEDY)
        stats = made.engine.stats()

    assert stats.num_failed_steps == 1
    assert stats.gauge.since_start.num_steps == 0
    assert stats.gauge.last is None


def test_an_engine_reads_its_gauge_against_the_device_of_its_configuration(
    tmp_path: Path,
) -> None:
    with rig(gauge_device=device_file(tmp_path)) as made:
        assert made.engine.gauge().since_start is None
        made.engine.generate(PROMPT, GREEDY)
        gauge, stats = made.engine.gauge(), made.engine.stats()

    reading = gauge.since_start
    assert reading is not None
    assert gauge.last is not None
    assert gauge.device.name == "fast"
    assert reading.num_steps == stats.num_steps
    assert reading.bandwidth_share == pytest.approx(reading.bytes_per_s / 1e8)
    assert reading.flops_share == pytest.approx(reading.flops_per_s / 1e9)
    assert reading.seconds == pytest.approx(stats.all_steps.total_s)


def test_the_gauge_since_a_moment_holds_the_steps_after_it(tmp_path: Path) -> None:
    with rig(gauge_device=device_file(tmp_path)) as made:
        made.engine.generate(PROMPT, GREEDY)
        before = made.engine.stats()
        nothing = made.engine.gauge_since(before)
        made.engine.generate(PROMPT, GREEDY)
        after = made.engine.stats()
        reading = made.engine.gauge_since(before)

    assert nothing is None
    assert reading is not None
    assert reading.num_steps == after.num_steps - before.num_steps
    assert reading.seconds == pytest.approx(after.all_steps.total_s - before.all_steps.total_s)


def test_without_a_device_an_engine_is_compared_with_this_cpu() -> None:
    with rig() as made:
        made.engine.generate(PROMPT, GREEDY)
        first, second = made.engine.gauge(), made.engine.gauge()

    assert first.device.name == "cpu"
    assert first.device == second.device
    assert first.last is not None
    assert 0 < first.last.bandwidth_share < 1


def test_an_unknown_gauge_device_is_refused_with_what_is_accepted() -> None:
    with pytest.raises(InvalidRequest, match="expected one of h100"):
        EngineRig(gauge_device="abacus")


@given(
    weights=st.floats(0, 1e3),
    kv=st.floats(0, 1e3),
    flops=st.floats(0, 1e4),
    forward_s=seconds,
    host_s=seconds,
)
@settings(deadline=None, max_examples=100)
def test_the_split_adds_up_to_the_time_unless_a_step_beat_its_bound(
    weights: float, kv: float, flops: float, forward_s: float, host_s: float
) -> None:
    work = StepWork(weight_bytes=weights, kv_bytes=kv, linear_flops=flops)
    bound_s = cost.step_bound(work, DEVICE, "float32").total_s

    reading = read_steps([measured(work, forward_s, host_s)], DEVICE, "float32")

    assert reading is not None
    assert reading.split.bound_s == pytest.approx(bound_s)
    assert reading.split.host_s == host_s
    assert reading.split.total_s == pytest.approx(max(forward_s, bound_s) + host_s)


@given(kv=st.floats(1, 1e3), more=st.floats(1, 1e3), forward_s=seconds)
@settings(deadline=None, max_examples=50)
def test_more_bytes_in_the_same_time_are_a_larger_share_and_more_time_a_smaller_one(
    kv: float, more: float, forward_s: float
) -> None:
    def share(kv_bytes: float, forward_s: float) -> float:
        work = StepWork(kv_bytes=kv_bytes, attention_flops=2 * kv_bytes)
        reading = read_steps([measured(work, forward_s)], DEVICE, "float32")
        assert reading is not None
        assert reading.flops_share == pytest.approx(reading.bandwidth_share / 5)
        return reading.bandwidth_share

    assert share(kv + more, forward_s) > share(kv, forward_s)
    assert share(kv, forward_s + more) < share(kv, forward_s)


@pytest.mark.parametrize(
    ("work", "forward_s", "host_s", "binding"),
    [
        (StepWork(weight_bytes=100, kv_bytes=10), 1.2, 0.1, "weights"),
        (StepWork(weight_bytes=10, kv_bytes=100), 1.2, 0.1, "kv"),
        (StepWork(weight_bytes=10, linear_flops=1000), 1.2, 0.1, "compute"),
        (StepWork(weight_bytes=10), 1.2, 0.1, "overhead"),
        (StepWork(weight_bytes=10), 0.2, 1.0, "host"),
    ],
)
def test_the_largest_part_binds(
    work: StepWork, forward_s: float, host_s: float, binding: str
) -> None:
    reading = read_steps([measured(work, forward_s, host_s)], DEVICE, "float32")

    assert reading is not None
    assert reading.binding == binding
    assert BINDS[binding] in reading.advice
    assert HELPS[reading.split.device_binding] in reading.advice


def test_a_wide_step_does_not_hide_what_bound_the_narrow_ones() -> None:
    narrow = measured(StepWork(weight_bytes=100, linear_flops=1), 1.0)
    wide = measured(StepWork(weight_bytes=1, linear_flops=1000), 1.0)

    reading = read_steps([narrow, wide], DEVICE, "float32")

    assert reading is not None
    assert reading.split.weights_s == 1.0
    assert reading.split.compute_s == 1.0
    assert reading.split.unexplained_s == 0.0


def test_nothing_is_read_between_two_equal_moments() -> None:
    stats = GaugeStats(None, (), {1: measured(StepWork(weight_bytes=1), 1.0)})

    assert read_between(stats, stats, DEVICE, "float32") is None


def measuring(*rates: float) -> Callable[[], Device]:
    left = list(rates)

    def measure() -> Device:
        rate = left.pop(0)
        return Device(name="m", peak_flops={"float32": rate}, bandwidth=rate, memory_bytes=1)

    return measure


def test_limits_are_measured_once_when_nothing_runs() -> None:
    limits = MeasuredLimits(measuring(5.0))

    assert limits.get(is_busy=lambda: False).bandwidth == 5.0
    assert limits.get(is_busy=lambda: False).bandwidth == 5.0
    assert limits.get(is_busy=lambda: True).bandwidth == 5.0


def test_limits_measured_beside_work_are_measured_again_and_the_highest_counts() -> None:
    limits = MeasuredLimits(measuring(5.0, 4.0))

    assert limits.get(is_busy=lambda: True).bandwidth == 5.0
    assert limits.get(is_busy=lambda: True).bandwidth == 5.0
    assert limits.get(is_busy=lambda: False).bandwidth == 5.0
    assert limits.get(is_busy=lambda: False).peak_flops == {"float32": 5.0}
