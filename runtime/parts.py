"""What an engine is made of, and how it comes from a configuration. Called once, at start."""

import logging
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from umbel.kernels.linear import bound_shape_caches
from umbel.kernels.native.threads import use_threads
from umbel.radix_cache.tree import Namespace
from umbel.runtime.chat import ChatTemplate
from umbel.runtime.config import EngineConfig
from umbel.runtime.constraints import ConstraintCompiler, make_vocabulary
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.loading.load import load_model
from umbel.runtime.loading.source import find_model
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

    from umbel.runtime.models.decoder import Decoder

logger = logging.getLogger(__name__)

_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class Runner(Protocol):
    """`ModelRunner`, or the simulated one of the tests."""

    def execute(self, plan: StepPlan) -> "Tensor":
        """Logits of the wanted rows: [W, V] float32."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """All that an engine uses but does not make itself. It owns `compiler` and closes it."""

    runner: Runner
    sampler: Sampler
    tokenizer: Tokenizer
    chat: ChatTemplate
    compiler: ConstraintCompiler
    limits: Limits
    namespace: Namespace
    costs: ModelCosts


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


def load_parts(config: EngineConfig) -> EngineParts:
    """Load the model and make all that is needed to run it.

    Raises `ModelError` for what cannot be loaded, `InvalidRequest` for settings that do not fit the
    model.
    """
    bound_shape_caches()
    if config.num_threads is not None:
        use_threads(config.num_threads)
    source = find_model(config.model)
    dtype = _DTYPES[config.dtype]
    tokenizer = load_tokenizer(source)
    model = load_model(source, dtype=dtype, load_format=config.load_format, seed=config.seed)
    num_blocks = config.num_blocks or num_blocks_for(
        config.kv_cache_bytes, model.config, block_size=config.block_size, dtype=dtype
    )
    vocabulary = make_vocabulary(tokenizer, model.config.vocab_size)
    parts = EngineParts(
        runner=ModelRunner(model, num_blocks=num_blocks, block_size=config.block_size, dtype=dtype),
        sampler=Sampler(model.config.vocab_size),
        tokenizer=tokenizer,
        chat=ChatTemplate.of(tokenizer),
        compiler=ConstraintCompiler(vocabulary, cache_size=config.grammar_cache_size),
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


def costs_of(name: str, model: "Decoder") -> ModelCosts:
    """What the steps of a loaded model cost; keys and values have its dtype."""
    dtype = str(model.dtype).removeprefix("torch.")
    return ModelCosts(shape_from_config(name, model.config), dtype, dtype)


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
