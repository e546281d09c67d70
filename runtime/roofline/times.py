"""Where the time of measured steps went: by the engine's phases, and by what they had to do."""

from dataclasses import dataclass


@dataclass(slots=True)
class StepTimes:
    """Seconds by phase, of one step or of several. Made once a step, so it is not frozen."""

    plan_s: float = 0.0  # admitting what came in, and planning
    forward_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0
    deliver_s: float = 0.0  # handing out the answers of the step before

    @property
    def host_s(self) -> float:
        """All but the forward pass."""
        return self.plan_s + self.sample_s + self.commit_s + self.deliver_s

    @property
    def total_s(self) -> float:
        return self.forward_s + self.host_s

    def __add__(self, other: "StepTimes") -> "StepTimes":
        return StepTimes(
            self.plan_s + other.plan_s,
            self.forward_s + other.forward_s,
            self.sample_s + other.sample_s,
            self.commit_s + other.commit_s,
            self.deliver_s + other.deliver_s,
        )

    def __sub__(self, earlier: "StepTimes") -> "StepTimes":
        return StepTimes(
            self.plan_s - earlier.plan_s,
            self.forward_s - earlier.forward_s,
            self.sample_s - earlier.sample_s,
            self.commit_s - earlier.commit_s,
            self.deliver_s - earlier.deliver_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Where the time of measured steps went, in seconds that add up to it. Of each step's bound
    either the bytes (weights, KV) or the arithmetic count: whichever took longer hid the other.
    """

    weights_s: float = 0.0
    kv_s: float = 0.0
    compute_s: float = 0.0
    unexplained_s: float = 0.0  # of the forward pass: launches, imperfect kernels, activations
    plan_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0
    deliver_s: float = 0.0

    @property
    def bound_s(self) -> float:
        return self.weights_s + self.kv_s + self.compute_s

    @property
    def host_s(self) -> float:
        return self.plan_s + self.sample_s + self.commit_s + self.deliver_s

    @property
    def total_s(self) -> float:
        return self.bound_s + self.unexplained_s + self.host_s

    @property
    def binding(self) -> str:
        """The largest part: "weights", "kv", "compute", "overhead" or "host"."""
        parts = self._device_parts | {"overhead": self.unexplained_s, "host": self.host_s}
        return max(parts, key=lambda name: parts[name])

    @property
    def device_binding(self) -> str:
        """The largest part of the bound alone: "weights", "kv" or "compute"."""
        parts = self._device_parts
        return max(parts, key=lambda name: parts[name])

    @property
    def _device_parts(self) -> dict[str, float]:
        return {"weights": self.weights_s, "kv": self.kv_s, "compute": self.compute_s}

    def __add__(self, other: "TimeSplit") -> "TimeSplit":
        return TimeSplit(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        )
