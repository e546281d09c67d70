"""What an engine is made of, and how it comes from a configuration. Called once, at start."""

import gc
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from umbel.kernels.kv_cache import block_size_bytes
from umbel.kernels.linear import bound_shape_caches
from umbel.kernels.native.threads import arithmetic, call_apart, is_available, use_threads
from umbel.radix_cache.plan import CutCost
from umbel.radix_cache.tree import Namespace
from umbel.runtime import heap
from umbel.runtime.chat import ChatTemplate
from umbel.runtime.choosing import StepSampler
from umbel.runtime.config import EngineConfig
from umbel.runtime.constraints import ConstraintCompiler, make_vocabulary
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.kv_budget import default_kv_bytes
from umbel.runtime.loading.load import load_model
from umbel.runtime.loading.quantize import check_quantize
from umbel.runtime.loading.source import ModelSource, find_model
from umbel.runtime.roofline.devices import DEVICES
from umbel.runtime.roofline.model_costs import ModelCosts
from umbel.runtime.roofline.pacing import ChunkPacer
from umbel.runtime.roofline.shapes import shape_from_config
from umbel.runtime.runner import ModelRunner, num_blocks_for
from umbel.runtime.sampler import Sampler
from umbel.runtime.step import StepPlan
from umbel.runtime.submission import Limits
from umbel.runtime.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from umbel.runtime.device.decoder import DeviceDecoder
    from umbel.runtime.device.load import OnDevice
    from umbel.runtime.models.config import ModelConfig
    from umbel.runtime.models.decoder import Decoder

logger = logging.getLogger(__name__)

# Without instructions for bfloat16 the arithmetic of attention binds, not reading: to read a token
# once for all saves less than half of it for each other reader. So prices are high
# (benchmarks/attention_costs.py on two cores with AVX2; three KV heads of 64).
_FLOATS_CUT = CutCost(row_tokens=120.0, segment_tokens=600.0)
_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class Runner(Protocol):
    """`ModelRunner`, `DeviceRunner`, or the simulated one of the tests."""

    def execute(self, plan: StepPlan) -> "Tensor":
        """Logits of the wanted rows, in the form that the sampler of the same device takes:
        [W, V].
        """


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class EngineParts:
    """All that an engine uses but does not make itself. `close` it."""

    runner: Runner
    sampler: StepSampler
    tokenizer: Tokenizer
    chat: ChatTemplate
    compiler: ConstraintCompiler
    limits: Limits
    namespace: Namespace
    costs: ModelCosts
    close_runner: Callable[[], None] = _nothing
    gauge_device: str | None = None  # what steps are compared with if the configuration is silent

    def close(self) -> None:
        """End what has threads or processes."""
        self.compiler.close()
        self.close_runner()


def make_config(
    model: str | None, config: EngineConfig | None, options: dict[str, Any]
) -> EngineConfig:
    """`config` with `model` and `options` on top. Raises `InvalidRequest` for unknown names."""
    known = [field.name for field in fields(EngineConfig)]
    for name in options:
        if name not in known:
            raise InvalidRequest(
                f"unknown engine option {name!r}; accepted are {', '.join(known)}", param=name
            )
    if model is not None:
        options = {**options, "model": str(model)}
    return replace(config or EngineConfig(), **options)


def load_apart(config: EngineConfig) -> EngineParts:
    """`load_parts` for an engine that stays. Apart: the workers of the thread that loads would be
    one thread too many for the cores. Nothing that was loaded is looked at by the garbage
    collector again: a full collection in the middle of a step took 0.2 s with it.
    """
    parts = call_apart(partial(load_parts, config))
    gc.collect()
    gc.freeze()
    heap.give_back()
    return parts


def load_parts(config: EngineConfig) -> EngineParts:
    """Load the model and make all that is needed to run it.

    Raises `ModelError` for what cannot be loaded, `InvalidRequest` for settings that do not fit the
    model.
    """
    bound_shape_caches()
    if config.num_threads is not None:
        use_threads(config.num_threads)
    source = find_model(config.model)
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" or config.tensor_parallel > 1:
        check_quantize(config.quantize, torch.bfloat16, "cuda or with tensor_parallel")
        from umbel.runtime.device.load import load_on_device  # only where it is needed

        loaded = load_on_device(config, source, device)
        return device_parts(config, source, loaded, gauge_device=gauge_device(config, device))
    dtype = _DTYPES[config.dtype]
    # The tokenizer meanwhile: what takes long with weights is done without the interpreter's lock.
    with ThreadPoolExecutor(1, thread_name_prefix="umbel-tokenizer") as executor:
        tokenizer = executor.submit(load_tokenizer, source)
        model = load_model(
            source,
            dtype=dtype,
            load_format=config.load_format,
            seed=config.seed,
            quantize=config.quantize,
        )
        num_blocks = config.num_blocks or _num_blocks(config, model.config, dtype)
        runner = ModelRunner(
            model, num_blocks=num_blocks, block_size=config.block_size, dtype=dtype
        )
    sampler = Sampler(model.config.vocab_size)
    parts = _assemble(config, source, tokenizer.result(), model, runner, sampler, num_blocks)
    if dtype == torch.bfloat16 and is_available() and arithmetic() == "floats":
        return replace(parts, costs=replace(parts.costs, measured_cut=_FLOATS_CUT))
    return parts


def _num_blocks(config: EngineConfig, model: "ModelConfig", dtype: torch.dtype) -> int:
    size_bytes = config.kv_cache_bytes
    if size_bytes is None:
        token_bytes = block_size_bytes(
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            block_size=1,
            dtype=dtype,
        )
        size_bytes = default_kv_bytes(token_bytes, config.context_len or model.context_len)
    return num_blocks_for(size_bytes, model, block_size=config.block_size, dtype=dtype)


def device_parts(
    config: EngineConfig,
    source: ModelSource,
    loaded: "OnDevice",
    *,
    gauge_device: str | None = None,
) -> EngineParts:
    """The parts of an engine over a model that was loaded to a device."""
    parts = _assemble(
        config, source, load_tokenizer(source), loaded.decoder, loaded.runner, loaded.sampler,
        loaded.num_blocks,
    )  # fmt: skip
    return replace(parts, close_runner=loaded.close, gauge_device=gauge_device)


def _assemble(
    config: EngineConfig,
    source: ModelSource,
    tokenizer: Tokenizer,
    model: "Decoder | DeviceDecoder",
    runner: Runner,
    sampler: StepSampler,
    num_blocks: int,
) -> EngineParts:
    vocabulary = make_vocabulary(tokenizer, model.config.vocab_size)
    parts = EngineParts(
        runner=runner,
        sampler=sampler,
        tokenizer=tokenizer,
        chat=ChatTemplate.of(tokenizer),
        compiler=ConstraintCompiler(vocabulary, cache_size=config.grammar_cache_size, warm_up=True),
        limits=Limits(
            context_len=_context_len(config.context_len, model.config.context_len),
            vocab_size=model.config.vocab_size,
            num_blocks=num_blocks,
            block_size=config.block_size,
        ),
        namespace=Namespace(source.name),
        costs=costs_of(source.name, model),
    )
    logger.info(
        "%s: context of %d tokens, KV pool of %d blocks of %d tokens",
        source.name, parts.limits.context_len, num_blocks, config.block_size,
    )  # fmt: skip
    return parts


def costs_of(name: str, model: "Decoder | DeviceDecoder") -> ModelCosts:
    """What the steps of a loaded model cost; keys and values have its dtype."""
    dtype = str(model.dtype).removeprefix("torch.")
    return ModelCosts(shape_from_config(name, model.config), dtype, dtype)


def gauge_device(config: EngineConfig, device: str) -> str | None:
    """The GPU's name in the table of devices, if it is in there and alone; None otherwise."""
    if device != "cuda" or config.tensor_parallel > 1:
        return None
    name = torch.cuda.get_device_name(0).lower()
    return next((known for known in DEVICES if known in name), None)


def make_pacer(config: EngineConfig, costs: ModelCosts) -> ChunkPacer | None:
    """What sizes prefill chunks for the configured target; None: there is no target."""
    if config.target_step_ms is None:
        return None
    return ChunkPacer(costs.shape, config.target_step_ms / 1e3)


def _context_len(wanted: int | None, of_model: int) -> int:
    if wanted is not None and wanted > of_model:
        raise InvalidRequest(
            f"context_len={wanted} is not valid: the model was made for at most {of_model} tokens",
            param="context_len",
        )
    return wanted or of_model
