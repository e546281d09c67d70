"""The one configuration object of the engine. Checks values; opens and downloads nothing."""

import math
from dataclasses import dataclass

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SPECULATE

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "bfloat16", "float32")
QUANTIZE = ("off", "int8")
LOAD_FORMATS = ("auto", "gguf", "safetensors", "dummy")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of an engine, fixed at start.

    Raises `InvalidRequest` for a value out of range.
    """

    model: str | None = None  # folder or .gguf file; None: the embedded model
    device: str = "auto"  # auto: cuda where there is one
    tensor_parallel: int = 1  # ranks that divide the model, each on a GPU; on a CPU for tests
    device_graphs: bool = True  # False: decode steps on a GPU are not captured (for comparison)
    steps_ahead: bool = True  # False: on a GPU no step is enqueued before the last is read
    load_format: str = "auto"  # dummy: random weights for the config found at `model`
    dtype: str = "auto"  # of weights, activations and KV; auto: bfloat16
    quantize: str = "off"  # int8: rows of products are rounded to 8 bits: faster, less exact
    context_len: int | None = None  # tokens; None: the model's own
    block_size: int = (
        16  # tokens; a COW copies less than this, a page table has context/this entries
    )
    num_blocks: int | None = None  # None: as many as fit into kv_cache_bytes
    kv_cache_bytes: int | None = None  # None: see kv_budget; on a GPU what all else leaves free
    max_running: int = 256  # requests that hold KV at the same time
    max_waiting: int = 20_000  # requests; above it submit() raises QueueFull
    max_step_tokens: int = 512  # rows of one step: decoding first, the rest is prefill
    target_step_ms: float | None = None  # prefill beside decoding rows is cut to this; None: is not
    prefix_cache: bool = True  # False: nothing is reused (for comparison)
    jump_forward: bool = True  # forced tokens ride along in one step
    speculate: str = "auto"  # guess ahead where it pays (see docs/speculation.md), or "off"
    share_attention: bool = (
        True  # False: every row reads its whole context by itself (for comparison)
    )
    num_threads: int | None = None  # None: torch's choice
    seed: int = 0  # of the seeds drawn for requests without one
    grammar_cache_size: int = 256  # compiled constraints kept
    gauge_device: str | None = None  # name or JSON file of its limits; None: this CPU, measured

    def __post_init__(self) -> None:
        self._one_of("device", DEVICES)
        self._one_of("dtype", DTYPES)
        self._one_of("quantize", QUANTIZE)
        self._one_of("load_format", LOAD_FORMATS)
        self._one_of("speculate", SPECULATE)
        for name in (
            "tensor_parallel",
            "block_size",
            "max_running",
            "max_waiting",
            "max_step_tokens",
            "grammar_cache_size",
        ):
            self._at_least_one(name)
        for name in ("context_len", "num_blocks", "kv_cache_bytes", "num_threads"):
            if getattr(self, name) is not None:
                self._at_least_one(name)
        if self.target_step_ms is not None:
            self._above_zero("target_step_ms")

    def _one_of(self, name: str, accepted: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in accepted:
            raise InvalidRequest(
                f"{name}={value!r} is not valid: expected one of {', '.join(accepted)}", param=name
            )

    def _at_least_one(self, name: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidRequest(
                f"{name}={value!r} is not valid: expected an integer of at least 1", param=name
            )

    def _above_zero(self, name: str) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value < math.inf:
            raise InvalidRequest(
                f"{name}={value!r} is not valid: expected a number above 0", param=name
            )
