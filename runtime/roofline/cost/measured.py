"""A measured step against its bound: shares of the device's limits, and what the rest was."""

from umbel.runtime.roofline.cost.step import step_bound
from umbel.runtime.roofline.cost.weights import peak_flops
from umbel.runtime.roofline.records import Device, StepBound, StepWork, above_zero
from umbel.runtime.roofline.times import StepTimes, TimeSplit


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


def serial_step_s(work: StepWork, device: Device, dtype: str) -> float:
    """Least time of a step whose products and attention run one after the other, as they do where
    nothing overlaps the arithmetic of one with the reading of the other.

    Formula: t = max(W_step / BW, FLOP_lin / F) + max(KV / BW, FLOP_attn / F)
    """
    rate = peak_flops(device, dtype)
    products_s = max(work.weight_bytes / device.bandwidth, work.linear_flops / rate)
    attention_s = max(work.kv_bytes / device.bandwidth, work.attention_flops / rate)
    return products_s + attention_s


def split_time(work: StepWork, times: StepTimes, device: Device, dtype: str) -> TimeSplit:
    """Where the time of a measured step went: its bound, by what sets it, then the rest of the
    forward pass, then the host. A forward pass faster than its bound has no rest.

    Formula: t = bound + (t_forward - bound) + t_plan + t_sample + t_commit + t_deliver
    """
    bound = step_bound(work, device, dtype)
    is_compute = bound.flops_s > bound.memory_s
    return TimeSplit(
        weights_s=0.0 if is_compute else bound.weights_s,
        kv_s=0.0 if is_compute else bound.kv_s,
        compute_s=bound.flops_s if is_compute else 0.0,
        unexplained_s=max(0.0, times.forward_s - bound.total_s),
        plan_s=times.plan_s,
        sample_s=times.sample_s,
        commit_s=times.commit_s,
        deliver_s=times.deliver_s,
    )
