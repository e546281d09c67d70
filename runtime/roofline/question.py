"""What a plan is asked for: a model, a device, a workload and targets; checked together."""

from dataclasses import dataclass

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline.records import (
    Device,
    ModelShape,
    Speculation,
    Workload,
    above_zero,
    at_least,
)

ASSUMED_SPECULATION = Speculation(draft_len=4, acceptance=0.7, draft_cost=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Raises `InvalidRequest` for values that cannot be meant, alone or together."""

    shape: ModelShape
    device: Device
    workload: Workload
    prompt_len: int = 512  # tokens, a shared prefix included
    output_len: int = 128  # tokens
    speculation: Speculation = ASSUMED_SPECULATION
    ttft_s: float | None = None  # target for the first token
    itl_s: float | None = None  # target between two tokens
    price_per_hour: float | None = None  # of one device
    rate_per_s: float | None = None  # requests that arrive per second
    efficiency: float = 0.5  # share of the FLOP rate that prefill reaches
    memory_use: float = 0.9  # share of the memory that may be filled
    reserved_bytes: float = 0.0  # of each device, for activations and the runtime itself

    def __post_init__(self) -> None:
        at_least("prompt", self.prompt_len, 1)
        at_least("output", self.output_len, 1)
        at_least("context", self.workload.context_len, 1)
        at_least("reserved_bytes", self.reserved_bytes, 0)
        for name in ("ttft_s", "itl_s", "rate_per_s"):
            if getattr(self, name) is not None:
                above_zero(name, getattr(self, name))
        if self.price_per_hour is not None:
            at_least("price_per_hour", self.price_per_hour, 0)
        for name in ("efficiency", "memory_use"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidRequest(
                    f"{name}={getattr(self, name)!r} is not valid: expected a share above 0, "
                    "up to 1",
                    param=name,
                )
        self._check_lengths()
        self._check_tensor_parallel()

    def _check_lengths(self) -> None:
        longest = self.shape.max_context
        if longest is None:
            return
        if self.workload.context_len > longest:
            raise InvalidRequest(
                f"context={self.workload.context_len} is above the model's: {self.shape.name} "
                f"accepts 1 to {longest} tokens, prompt ({self.prompt_len}) and output "
                f"({self.output_len}) included",
                param="context",
            )
        if self.prompt_len + self.output_len > longest:
            raise InvalidRequest(
                f"prompt={self.prompt_len} and output={self.output_len} are together above the "
                f"model's context: {self.shape.name} accepts {longest} tokens",
                param="prompt",
            )

    def _check_tensor_parallel(self) -> None:
        width, heads = self.workload.tensor_parallel, self.shape.num_q_heads
        if heads % width:
            accepted = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
            raise InvalidRequest(
                f"tp={width} does not divide the {heads} query heads of {self.shape.name}: "
                f"expected one of {accepted}",
                param="tp",
            )

    @property
    def cached_len(self) -> int:
        """Tokens of the prompt that a shared prefix has computed already."""
        return min(self.workload.shared_prefix_len, self.prompt_len - 1)

    @property
    def uncached_len(self) -> int:
        """Tokens of the prompt that each request must compute."""
        return self.prompt_len - self.cached_len
