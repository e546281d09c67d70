"""This machine's limits for the gauge, measured once a process, and only when somebody asks.

A limit is the highest rate ever seen, so what was measured beside a running engine (too low) is
measured again at the next question that finds it idle.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

from umbel.runtime import heap
from umbel.runtime.roofline.devices import measure_cpu
from umbel.runtime.roofline.records import Device


class MeasuredLimits:
    """A device whose rates are measured with `measure`. Thread-safe."""

    def __init__(self, measure: Callable[[], Device]) -> None:
        self._measure = measure
        self._lock = threading.Lock()
        self._device: Device | None = None
        self._was_quiet = False

    def get(self, *, is_busy: Callable[[], bool]) -> Device:
        """The device; takes as long as the measurement the first time. `is_busy` tells whether
        something of ours uses the cores: it is asked before and after.
        """
        with self._lock:
            if self._device is None or not (self._was_quiet or is_busy()):
                is_quiet = not is_busy()
                new = self._measure()
                self._device = new if self._device is None else _faster(self._device, new)
                self._was_quiet = is_quiet and not is_busy()
            return self._device


def _faster(old: Device, new: Device) -> Device:
    peaks = {
        dtype: max(rate, old.peak_flops.get(dtype, 0.0)) for dtype, rate in new.peak_flops.items()
    }
    return replace(new, peak_flops=peaks, bandwidth=max(old.bandwidth, new.bandwidth))


def _measure_apart() -> Device:
    """Without workers that stay, which would slow the engine's down, nor memory that does."""
    from umbel.kernels.native.threads import call_apart  # torch takes a second to import

    try:
        return call_apart(measure_cpu)
    finally:
        heap.give_back()


CPU_LIMITS = MeasuredLimits(_measure_apart)  # a fact of the process, as the number of threads is
