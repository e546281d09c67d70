"""Executes the plan of a step: the only code that touches the device. Called by the engine.

Runs become rows, leases become slots of the KV pool, the attention plan becomes an
`AttentionStep`; then the decoder computes all rows, and the head only those whose logits are
wanted.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from umbel.kernels.attention import AttentionStep
from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.kv_cache import KVCache, block_size_bytes
from umbel.radix_cache.plan import AttentionPlan, SlotRange
from umbel.radix_cache.tree import BlockCopy
from umbel.runtime.errors import InvalidRequest, ModelError
from umbel.runtime.models.config import ModelConfig
from umbel.runtime.models.decoder import Decoder
from umbel.runtime.recorded import record_layers
from umbel.runtime.step import Run, StepPlan
from umbel.runtime.step_context import StepContext


def num_blocks_for(
    size_bytes: int, config: ModelConfig, *, block_size: int, dtype: torch.dtype
) -> int:
    """How many blocks of `block_size` tokens fit into `size_bytes`. Raises `InvalidRequest` if
    none does."""
    one = block_size_bytes(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
        dtype=dtype,
    )
    if size_bytes < one:
        raise InvalidRequest(
            f"kv_cache_bytes={size_bytes} holds no block: one block of {block_size} tokens of this "
            f"model takes {one} bytes; raise kv_cache_bytes",
            param="kv_cache_bytes",
        )
    return size_bytes // one


class ModelRunner:
    """A decoder with its KV pool.

    Raises `ModelError` if `dtype`, that of keys and values, is not the decoder's.
    """

    def __init__(
        self, model: Decoder, *, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> None:
        if dtype != model.dtype:
            raise ModelError(
                f"a KV cache of {dtype} does not go with a model of {model.dtype}: "
                f"expected the same dtype"
            )
        config = model.config
        self.model = model
        self._block_size = block_size
        self.cache = KVCache(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            num_slots=num_blocks * block_size,
            head_dim=config.head_dim,
            dtype=dtype,
        )
        self._recorded = record_layers(model, self.cache)
        self._token_ids = _IntColumn()
        self._positions = _IntColumn()
        self._slots = _IntColumn()
        self._written_rows = _IntColumn()
        self._wanted_rows = _IntColumn()

    def execute(self, plan: StepPlan) -> Tensor:
        """Compute a step.

        Returns the logits of the wanted rows, in the plan's order: [W, V] float32; W may be 0.
        """
        with torch.inference_mode():
            for copies in independent_copies(plan.copies):
                self._copy(copies)
            if not plan.runs:
                return self._no_logits()
            assert plan.attention is not None, "a plan with runs has an attention plan"
            token_ids = self._token_ids.filled([t for run in plan.runs for t in run.tokens])
            positions = self._positions.filled(
                [p for run in plan.runs for p in range(run.start, run.start + len(run.tokens))]
            )
            context = self._context(plan.runs, plan.attention)
            hidden = self._hidden(token_ids, positions, context)  # [T, E]
            if plan.num_logits_rows == 0:
                return self._no_logits()
            wanted = self._wanted_rows.filled(_wanted_rows(plan.runs))
            return self.model.logits(hidden.index_select(0, wanted))

    def _hidden(self, token_ids: Tensor, positions: Tensor, context: StepContext) -> Tensor:
        recorded = self._recorded
        if recorded is None or len(token_ids) > recorded.max_rows:
            return self.model.forward(token_ids, positions, context)
        model = self.model
        rotations = model.rotations(positions)
        x = model.embed(token_ids)
        terms = recorded.run(x, rotations, context.step, context.written_rows, context.slots)
        return model.add_last(*terms)

    def _no_logits(self) -> Tensor:
        return torch.empty(0, self.model.config.vocab_size)

    def _copy(self, copies: list[BlockCopy]) -> None:
        size = self._block_size
        src = [s for c in copies for s in range(c.src * size, c.src * size + c.num_tokens)]
        dst = [s for c in copies for s in range(c.dst * size, c.dst * size + c.num_tokens)]
        self.cache.copy_blocks(torch.tensor(src), torch.tensor(dst))

    def _context(self, runs: list[Run], attention: AttentionPlan) -> StepContext:
        rows: list[int] = []
        slots: list[int] = []
        first_row = 0
        for run in runs:
            stop = run.start + len(run.tokens)
            begin = min(max(run.write_from, run.start), stop)
            slots += run.lease.slots(begin, stop)
            rows += range(first_row + begin - run.start, first_row + len(run.tokens))
            first_row += len(run.tokens)
        written = None if len(rows) == first_row else self._written_rows.filled(rows)
        return StepContext(
            self.cache, _attention_step(runs, attention), written, self._slots.filled(slots)
        )


class _IntColumn:
    """A column of int64 that lasts from step to step and grows when it must."""

    def __init__(self) -> None:
        self._tensor = torch.empty(64, dtype=torch.int64)
        self._column = self._tensor[:0]
        self._values = self._column.numpy()

    def filled(self, values: Sequence[int]) -> Tensor:
        """[n] int64 with these values; valid until the next call."""
        if len(values) != len(self._values):  # mostly it is as before: a view costs as much as 16
            if len(values) > len(self._tensor):
                self._tensor = torch.empty(2 * len(values), dtype=torch.int64)
            self._column = self._tensor[: len(values)]
            self._values = self._column.numpy()
        self._values[:] = values
        return self._column


def _wanted_rows(runs: list[Run]) -> list[int]:
    rows: list[int] = []
    first_row = 0
    for run in runs:
        rows += [first_row + position - run.start for position in run.logits_positions]
        first_row += len(run.tokens)
    return rows


def _attention_step(runs: list[Run], plan: AttentionPlan) -> AttentionStep:
    shared = [KeyStretch(s.position, _pairs(s.ranges), s.run_idxs) for s in plan.segments]
    tails = [KeyStretch(tail.position, _pairs(tail.ranges)) for tail in plan.tails]
    return AttentionStep([QueryRun(run.start, len(run.tokens)) for run in runs], shared, tails)


def _pairs(ranges: Iterable[SlotRange]) -> list[tuple[int, int]]:
    return [(piece.start, piece.length) for piece in ranges]


def independent_copies(copies: Iterable[BlockCopy]) -> list[list[BlockCopy]]:
    """The copies in batches: none reads or writes a block that an earlier one of its batch
    wrote."""
    batches: list[list[BlockCopy]] = []
    written: set[int] = set()
    for copy in copies:
        if not batches or copy.src in written or copy.dst in written:
            batches.append([])
            written = set()
        batches[-1].append(copy)
        written.add(copy.dst)
    return batches
