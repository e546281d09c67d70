"""From the logits of a step to one token per sample: fills the masks and asks the sampler. Called
by the engine.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from umbel.runtime.constraints import failure_while_running
from umbel.runtime.errors import UmbelError
from umbel.runtime.outputs import TokenLogprob
from umbel.runtime.sampler import Sampled, SamplingRow
from umbel.runtime.step import Sample, Scored, StepPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


class StepSampler(Protocol):
    """`Sampler`, or the one of another device."""

    def choose(
        self,
        logits: "Tensor",
        logits_rows: Sequence[int],
        rows: Sequence[SamplingRow],
        masks: "NDArray[np.uint32] | None",
        scored: Sequence[Scored],
    ) -> tuple[list[Sampled], list[TokenLogprob]]:
        """As `Sampler.choose`."""


class TokenChooser:
    """Belongs to the engine's thread; the mask buffer grows to the largest step and stays."""

    def __init__(self, sampler: StepSampler, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._sampler = sampler
        self._eos_ids = tuple(eos_ids)
        self._masks = np.empty((0, -(-vocab_size // 32)), dtype=np.uint32)

    def choose(self, plan: StepPlan, logits: "Tensor") -> tuple[list[Sampled], list[TokenLogprob]]:
        """Results for `plan.samples` and `plan.scored`. logits: [W, V] float32."""
        results: list[Sampled | None] = [None] * len(plan.samples)
        rows: list[SamplingRow] = []
        open_idxs: list[int] = []
        num_masks = 0
        self._reserve(sum(sample.request.matcher is not None for sample in plan.samples))
        for idx, sample in enumerate(plan.samples):
            row = self._row(sample)
            if sample.request.matcher is not None:
                error = self._fill_mask(sample, num_masks)
                if error is not None:
                    results[idx] = Sampled(-1, error=error)
                    continue
                row.mask_row = num_masks
                num_masks += 1
            rows.append(row)
            open_idxs.append(idx)
        masks = self._masks[:num_masks] if num_masks else None
        logits_rows = [plan.samples[idx].logits_row for idx in open_idxs]
        chosen, scores = self._sampler.choose(logits, logits_rows, rows, masks, plan.scored)
        for idx, result in zip(open_idxs, chosen, strict=True):
            results[idx] = result
        return [result for result in results if result is not None], scores

    def _row(self, sample: Sample) -> SamplingRow:
        request, offset = sample.request, sample.offset
        tokens: Sequence[int] = request.tokens
        params = request.params
        banned: list[int] = []
        if not request.may_end(offset):
            banned += params.stop_token_ids
            banned += () if params.ignore_eos else self._eos_ids
        if offset and sample.draft is not None and params.has_penalties:
            tokens = [*tokens, *sample.draft.tokens[:offset]]  # read for penalties only
        return SamplingRow(
            params=params,
            seed=request.seed,
            num_output=request.num_output + offset,
            tokens=tokens,
            num_prompt=request.num_prompt,
            banned_ids=banned,
        )

    def _fill_mask(self, sample: Sample, mask_row: int) -> UmbelError | None:
        """A fault of one constraint is the answer of its own request."""
        request, matcher = sample.request, sample.matcher
        assert matcher is not None
        try:
            matcher.fill_mask(self._masks[mask_row], budget=request.num_left - sample.offset)
        except Exception as exc:
            return failure_while_running(exc, request.params, request.request_id)
        return None

    def _reserve(self, num_masks: int) -> None:
        if len(self._masks) < num_masks:
            num_rows = 1 << (num_masks - 1).bit_length()
            self._masks = np.empty((num_rows, self._masks.shape[1]), dtype=np.uint32)
