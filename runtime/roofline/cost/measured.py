"""A measured step against its bound: shares of the device's limits, and what the rest was."""

from umbel.runtime.roofline.cost.step import step_bound
from umbel.runtime.roofline.cost.weights import peak_flops
from umbel.runtime.roofline.records import Device, StepBound, StepWork, above_zero


def bandwidth_share(work: StepWork, measured_s: float, device: Device) -> float:
    """Share of the memory bandwidth that the unavoidable bytes of a measured step used.

    Formula: (W_step + KV) / (t BW)
    """
    above_zero("measured_s", measured_s)
    return work.memory_bytes / (measured_s * device.bandwidth)


def flops_share(work: StepWork, measured_s: float, device: Device, dtype: str) -> float:
    """Share of the dense peak that the unavoidable arithmetic of a measured step used.

    Formula: FLOP / (t F)
    """
    above_zero("measured_s", measured_s)
    return work.flops / (measured_s * peak_flops(device, dtype))


def explained_step(work: StepWork, measured_s: float, device: Device, dtype: str) -> StepBound:
    """The bound of a measured step, with what it leaves unexplained as overhead; `binding` then
    names what the step was limited by, "overhead" for host time and inefficiency. A step faster
    than its bound (the device's rates are too low) has no overhead.

    Formula: t0 = max(0, t - bound)
    """
    above_zero("measured_s", measured_s)
    bound = step_bound(work, device, dtype)
    return step_bound(work, device, dtype, overhead_s=max(0.0, measured_s - bound.total_s))
