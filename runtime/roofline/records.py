"""The plain records that the cost formulas work on: a model's shape, a device, a workload, a
step's work.

Beyond sums of their own parts the formulas are in `cost`. Values are checked once, at construction.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from umbel.runtime.errors import InvalidRequest

DTYPE_BYTES: Mapping[str, float] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8": 1.0,
    "int8": 1.0,
    "int4": 0.5,  # group scales not counted: a bound must not exceed the truth
}


def at_least(name: str, value: float, least: float) -> None:
    """Raises `InvalidRequest` unless `value >= least` (so NaN is refused too)."""
    if not value >= least:
        raise InvalidRequest(
            f"{name}={value!r} is not valid: expected at least {least:g}", param=name
        )


def above_zero(name: str, value: float) -> None:
    """Raises `InvalidRequest` unless `value > 0`."""
    if not value > 0:
        raise InvalidRequest(f"{name}={value!r} is not valid: expected more than 0", param=name)


def dtype_bytes(dtype: str) -> float:
    """Bytes of one element. Raises `InvalidRequest` for an unknown dtype."""
    if dtype not in DTYPE_BYTES:
        raise InvalidRequest(
            f"dtype {dtype!r} is not known: expected one of {', '.join(DTYPE_BYTES)}", param="dtype"
        )
    return DTYPE_BYTES[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder with grouped-query attention, as far as cost is concerned."""

    name: str
    num_parameters: int  # all of them: what memory must hold
    num_gathered_parameters: int = 0  # an input table apart from the head: looked up, not streamed
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_context: int | None = None  # tokens
    windows: tuple[int | None, ...] = ()  # of each layer's attention, in tokens; (): none has any

    def __post_init__(self) -> None:
        for name in (
            *("num_parameters", "num_layers", "num_q_heads", "num_kv_heads", "head_dim"),
            *("hidden_size", "intermediate_size", "vocab_size"),
        ):
            at_least(name, getattr(self, name), 1)
        if self.num_q_heads % self.num_kv_heads:
            raise InvalidRequest(
                f"{self.name}: {self.num_q_heads} query heads do not divide among "
                f"{self.num_kv_heads} KV heads; check the model's configuration"
            )
        if self.windows and len(self.windows) != self.num_layers:
            raise InvalidRequest(
                f"{self.name}: {len(self.windows)} attention windows for {self.num_layers} layers"
            )
        if not 0 <= self.num_gathered_parameters < self.num_parameters:
            raise InvalidRequest(
                f"{self.name}: num_gathered_parameters={self.num_gathered_parameters} "
                f"must be a part of num_parameters={self.num_parameters}"
            )

    @property
    def num_streamed_parameters(self) -> int:
        """Parameters that a step with wanted logits reads in full."""
        return self.num_parameters - self.num_gathered_parameters

    @property
    def num_head_parameters(self) -> int:
        """Parameters of the output projection: read only when logits are wanted."""
        return self.vocab_size * self.hidden_size

    @property
    def window_counts(self) -> Mapping[int | None, int]:
        """How many layers have each attention window (None: the whole context)."""
        return Counter(self.windows) if self.windows else {None: self.num_layers}

    @property
    def group_size(self) -> int:
        """Query heads per KV head."""
        return self.num_q_heads // self.num_kv_heads

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """The matrices of a layer and the head, as (inputs, outputs)."""
        attention_width = self.num_q_heads * self.head_dim
        kv_width = 2 * self.num_kv_heads * self.head_dim
        return {
            "qkv": (self.hidden_size, attention_width + kv_width),
            "attention out": (attention_width, self.hidden_size),
            "gate and up": (self.hidden_size, 2 * self.intermediate_size),
            "down": (self.intermediate_size, self.hidden_size),
            "head": (self.hidden_size, self.vocab_size),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator (or CPU). FLOP rates are dense: structured sparsity is never assumed."""

    name: str
    peak_flops: Mapping[str, float]  # dtype -> FLOP/s
    bandwidth: float  # bytes/s between memory and the cores
    memory_bytes: float
    interconnect_bandwidth: float | None = None  # bytes/s, one direction, to the other devices
    collective_latency_s: float = 0.0  # of one all-reduce, apart from its bytes
    host_link_bandwidth: float | None = None  # bytes/s, one direction, to host memory
    launch_s: float = 0.0  # host time to launch one kernel without graphs
    source: str = ""

    def __post_init__(self) -> None:
        if not self.peak_flops:
            raise InvalidRequest(f"{self.name}: peak_flops is empty; give FLOP/s of one dtype")
        for dtype, rate in self.peak_flops.items():
            dtype_bytes(dtype)
            above_zero(f"peak_flops[{dtype}]", rate)
        above_zero("bandwidth", self.bandwidth)
        above_zero("memory_bytes", self.memory_bytes)
        for name in ("interconnect_bandwidth", "host_link_bandwidth"):
            if getattr(self, name) is not None:
                above_zero(name, getattr(self, name))
        at_least("collective_latency_s", self.collective_latency_s, 0)
        at_least("launch_s", self.launch_s, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Decoding of `batch` rows, each over `context_len` tokens, of which a first part may be
    shared.

    Rows come in groups of `fan_out` that share their first `shared_prefix_len` tokens; None: all
    rows share one prefix. Each row has at least one token of its own.
    """

    batch: int = 1
    context_len: int = 0  # tokens of KV that each row sees, the shared ones included
    shared_prefix_len: int = 0
    fan_out: int | None = None
    dtype: str = "bfloat16"  # of weights and activations
    kv_dtype: str = "bfloat16"
    tensor_parallel: int = 1  # devices that split each matrix

    def __post_init__(self) -> None:
        for name in ("batch", "tensor_parallel"):
            at_least(name, getattr(self, name), 1)
        if self.fan_out is not None:
            at_least("fan_out", self.fan_out, 1)
        for name in ("context_len", "shared_prefix_len"):
            at_least(name, getattr(self, name), 0)
        dtype_bytes(self.dtype)
        dtype_bytes(self.kv_dtype)
        if self.shared_prefix_len and self.shared_prefix_len >= self.context_len:
            raise InvalidRequest(
                f"shared_prefix_len={self.shared_prefix_len} is not valid: expected less than "
                f"context_len={self.context_len}, which includes it and a token of each row's own",
                param="shared_prefix_len",
            )

    @property
    def own_len(self) -> int:
        """Tokens of each row that no other row shares."""
        return self.context_len - self.shared_prefix_len

    def within(self, window: int | None) -> "Workload":
        """What a layer with that attention window sees of this workload: the last tokens."""
        if window is None or self.context_len <= window:
            return self
        shared = max(0, window - self.own_len)
        return replace(self, context_len=window, shared_prefix_len=shared)

    @property
    def num_prefixes(self) -> int:
        """Groups of rows, each with its own shared prefix."""
        return 1 if self.fan_out is None else -(-self.batch // self.fan_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one step must do on one device, however well it is programmed."""

    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    linear_flops: float = 0.0
    attention_flops: float = 0.0
    collective_bytes: float = 0.0  # sent and received per direction
    num_collectives: int = 0

    @property
    def memory_bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes

    @property
    def flops(self) -> float:
        return self.linear_flops + self.attention_flops

    def __add__(self, other: "StepWork") -> "StepWork":
        return StepWork(
            weight_bytes=self.weight_bytes + other.weight_bytes,
            kv_bytes=self.kv_bytes + other.kv_bytes,
            linear_flops=self.linear_flops + other.linear_flops,
            attention_flops=self.attention_flops + other.attention_flops,
            collective_bytes=self.collective_bytes + other.collective_bytes,
            num_collectives=self.num_collectives + other.num_collectives,
        )

    def __sub__(self, earlier: "StepWork") -> "StepWork":
        return StepWork(
            weight_bytes=self.weight_bytes - earlier.weight_bytes,
            kv_bytes=self.kv_bytes - earlier.kv_bytes,
            linear_flops=self.linear_flops - earlier.linear_flops,
            attention_flops=self.attention_flops - earlier.attention_flops,
            collective_bytes=self.collective_bytes - earlier.collective_bytes,
            num_collectives=self.num_collectives - earlier.num_collectives,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBound:
    """Least time of a step, in seconds. Memory and arithmetic overlap; the rest does not."""

    weights_s: float = 0.0
    kv_s: float = 0.0
    flops_s: float = 0.0
    collectives_s: float = 0.0
    overhead_s: float = 0.0

    @property
    def memory_s(self) -> float:
        return self.weights_s + self.kv_s

    @property
    def total_s(self) -> float:
        return max(self.memory_s, self.flops_s) + self.collectives_s + self.overhead_s

    @property
    def binding(self) -> str:
        """The largest part: "weights", "kv", "compute", "collectives" or "overhead"."""
        parts = {"collectives": self.collectives_s, "overhead": self.overhead_s}
        if self.flops_s > self.memory_s:
            parts["compute"] = self.flops_s
        else:
            parts |= {"weights": self.weights_s, "kv": self.kv_s}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Drafting `draft_len` tokens, each accepted with probability `acceptance` given those before
    it.

    `draft_cost` is the time of drafting one token as a share of a plain step (0 for n-gram lookup).
    """

    draft_len: int
    acceptance: float
    draft_cost: float = 0.0

    def __post_init__(self) -> None:
        at_least("draft_len", self.draft_len, 1)
        at_least("draft_cost", self.draft_cost, 0)
        if not 0 <= self.acceptance <= 1:
            raise InvalidRequest(
                f"acceptance={self.acceptance!r} is not valid: expected a share from 0 to 1",
                param="acceptance",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptCost:
    """Seconds to bring a preempted request back, by either way; `swap_s` is None without a host
    link.
    """

    recompute_s: float
    swap_s: float | None = field(default=None)

    @property
    def cheaper(self) -> str:
        return "swap" if self.swap_s is not None and self.swap_s < self.recompute_s else "recompute"
