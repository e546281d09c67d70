"""Turns rows of logits into tokens: log-probabilities, edits, the choice. Called by the engine.

Order: log-probabilities of the model's own distribution; then logit bias, repetition, frequency
and presence penalties, banned tokens, the constraint's mask; then the most likely token, or
temperature, top-k, top-p, min-p and a draw that is keyed by (seed, number of output tokens). A
row that has nothing to choose from fails alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umbel.kernels.masks import forbid_unmasked, is_allowed, most_likely_allowed
from umbel.kernels.sampling import (
    Filter,
    add_bias,
    ban,
    draw,
    most_likely,
    penalize_counts,
    penalize_repetition,
    uniform,
)
from umbel.runtime.errors import EngineError, UmbelError
from umbel.runtime.outputs import TokenLogprob
from umbel.runtime.params import SamplingParams
from umbel.runtime.step import Scored

# Rows whose log-probabilities are computed at a time: bounds the memory of a scored prompt.
LOGPROB_ROWS = 64


@dataclass(slots=True)
class SamplingRow:
    """One token to choose. `mask_row` is the row of the step's masks that applies, if one does."""

    params: SamplingParams
    seed: int
    num_output: int  # tokens generated so far: which number of the seed's stream is used
    tokens: Sequence[int] = ()  # prompt, then output; read only for penalties
    num_prompt: int = 0
    banned_ids: Sequence[int] = field(default_factory=list)
    mask_row: int | None = None

    @property
    def is_edited(self) -> bool:
        """Whether the choice is made from other logits than the model's."""
        return bool(
            self.mask_row is not None
            or self.banned_ids
            or self.params.logit_bias
            or self.params.has_penalties
        )

    @property
    def is_only_masked(self) -> bool:
        """Whether the most likely token of those that a mask allows is the choice."""
        return (
            self.mask_row is not None
            and self.params.is_greedy
            and not (self.banned_ids or self.params.logit_bias or self.params.has_penalties)
        )


@dataclass(slots=True)
class Sampled:
    """The choice for one row. With an `error` there is none: `token_id` is -1."""

    token_id: int
    logprob: TokenLogprob | None = None
    error: UmbelError | None = None


class Sampler:
    """Chooses tokens for all rows of a step at once. Has no state: a choice depends on its row
    alone."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def choose(
        self,
        logits: Tensor,
        logits_rows: Sequence[int],
        rows: Sequence[SamplingRow],
        masks: NDArray[np.uint32] | None,
        scored: Sequence[Scored],
    ) -> tuple[list[Sampled], list[TokenLogprob]]:
        """Everything that is asked of a step's logits: `sample`, and `score` for `scored`."""
        sampled = self.sample(logits, logits_rows, rows, masks)
        if not scored:
            return sampled, []
        return sampled, self.score(
            logits,
            [wanted.logits_row for wanted in scored],
            [wanted.token_id for wanted in scored],
            [wanted.num_top for wanted in scored],
        )

    def sample(
        self,
        logits: Tensor,
        logits_rows: Sequence[int],
        rows: Sequence[SamplingRow],
        masks: NDArray[np.uint32] | None = None,
    ) -> list[Sampled]:
        """Choose one token for each of `rows`; row i chooses from `logits[logits_rows[i]]`.

        logits: [W, V] float32, left as it is; several rows may name the same one. masks: [M,
        ceil(V / 32)] uint32, see `SamplingRow.mask_row`. A row whose best logit is not finite
        gets an `EngineError` as its answer.
        """
        assert logits.shape[1] == self._vocab_size, "the logits are of another vocabulary"
        if not rows:
            return []
        with torch.inference_mode():
            edited = self._edited(logits, logits_rows, rows, masks)  # [B, V]
            best, tokens = most_likely(edited)
            peaks, token_ids = best.tolist(), tokens.tolist()
            drawn = [
                i
                for i, row in enumerate(rows)
                if not row.params.is_greedy and math.isfinite(peaks[i])
            ]
            if drawn:
                chosen = _draw(edited, [rows[i] for i in drawn], drawn).tolist()
                for i, token_id in zip(drawn, chosen, strict=True):
                    token_ids[i] = token_id
            for i, row in enumerate(rows):
                if row.is_only_masked:
                    peaks[i], token_ids[i] = _best_allowed(
                        edited[i], _mask_of(row, masks), peaks[i], token_ids[i]
                    )
            results = [
                Sampled(token_id)
                if math.isfinite(peak)
                else Sampled(-1, error=_no_choice(peak, row))
                for token_id, peak, row in zip(token_ids, peaks, rows, strict=True)
            ]
            self._add_logprobs(logits, logits_rows, rows, results)
            return results

    def score(
        self,
        logits: Tensor,
        logits_rows: Sequence[int],
        token_ids: Sequence[int],
        num_top: Sequence[int],
    ) -> list[TokenLogprob]:
        """Log-probability of `token_ids[i]` in row `logits_rows[i]`, with the `num_top[i]` most
        likely tokens.

        logits: [W, V] float32: the model's own distribution. A row with a NaN has NaN
        log-probabilities.
        """
        scores: list[TokenLogprob] = []
        with torch.inference_mode():
            for first in range(0, len(token_ids), LOGPROB_ROWS):
                part = slice(first, first + LOGPROB_ROWS)
                chosen = torch.tensor(token_ids[part], device=logits.device)
                idxs = torch.tensor(logits_rows[part], device=logits.device)
                scores += _logprobs(logits.index_select(0, idxs), chosen, num_top[part])
        return scores

    def _edited(
        self,
        logits: Tensor,
        logits_rows: Sequence[int],
        rows: Sequence[SamplingRow],
        masks: NDArray[np.uint32] | None,
    ) -> Tensor:
        """[B, V], what the rows choose from, those apart that are only masked; `logits` itself if
        that is the same.
        """
        is_edited = any(row.is_edited and not row.is_only_masked for row in rows)
        if not is_edited and list(logits_rows) == list(range(len(logits))):
            return logits
        edited = logits.index_select(0, torch.tensor(logits_rows, device=logits.device))
        if is_edited:
            for i, row in enumerate(rows):
                _edit(edited[i], row)
            masked = [
                i
                for i, row in enumerate(rows)
                if row.mask_row is not None and not row.is_only_masked
            ]
            if masked:
                packed = np.stack([_mask_of(rows[i], masks) for i in masked])
                forbid_unmasked(edited, masked, packed)
        return edited

    def _add_logprobs(
        self,
        logits: Tensor,
        logits_rows: Sequence[int],
        rows: Sequence[SamplingRow],
        results: list[Sampled],
    ) -> None:
        wanted = [
            (i, row.params.logprobs)
            for i, row in enumerate(rows)
            if row.params.logprobs is not None and results[i].error is None
        ]
        if not wanted:
            return
        scores = self.score(
            logits,
            [logits_rows[i] for i, _ in wanted],
            [results[i].token_id for i, _ in wanted],
            [num_top for _, num_top in wanted],
        )
        for (i, _), score in zip(wanted, scores, strict=True):
            results[i].logprob = score


def _mask_of(row: SamplingRow, masks: NDArray[np.uint32] | None) -> NDArray[np.uint32]:
    assert masks is not None, "a row names a mask, but the step has none"
    packed: NDArray[np.uint32] = masks[row.mask_row]
    return packed


def _best_allowed(
    logits: Tensor, packed: NDArray[np.uint32], peak: float, token_id: int
) -> tuple[float, int]:
    """The highest allowed logit and its token; `peak` and `token_id` are those of all, which mostly
    are the same. logits: [V].
    """
    if math.isfinite(peak) and is_allowed(packed, token_id):
        return peak, token_id
    return most_likely_allowed(logits.cpu().numpy(), packed)


def _edit(logits: Tensor, row: SamplingRow) -> None:
    """All edits of one row but the mask, in place. logits: [V]."""
    params = row.params
    if params.logit_bias:
        add_bias(logits, params.logit_bias)
    if params.repetition_penalty != 1.0:
        penalize_repetition(logits, row.tokens, params.repetition_penalty)
    if params.frequency_penalty or params.presence_penalty:
        penalize_counts(
            logits,
            row.tokens[row.num_prompt :],
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
        )
    if row.banned_ids:
        ban(logits, row.banned_ids)


def _draw(logits: Tensor, rows: Sequence[SamplingRow], idxs: list[int]) -> Tensor:
    """One token for each of `rows`, which are the rows `idxs` of logits: [B, V]."""
    device = logits.device
    if len(idxs) < len(logits):
        logits = logits.index_select(0, torch.tensor(idxs, device=device))
    return draw(
        logits,
        torch.tensor([row.params.temperature for row in rows], device=device),
        torch.tensor(
            [uniform(row.seed, row.num_output) for row in rows], dtype=torch.float64, device=device
        ),
        [Filter(row.params.top_k, row.params.top_p, row.params.min_p) for row in rows],
    )


def _logprobs(logits: Tensor, token_ids: Tensor, num_top: Sequence[int]) -> Iterator[TokenLogprob]:
    """logits: [B, V]; token_ids: [B]."""
    total = logits.logsumexp(1, keepdim=True)
    chosen = (logits.gather(1, token_ids[:, None]) - total)[:, 0].tolist()
    values, ids = logits.topk(min(max(num_top), logits.shape[1]), dim=1)
    top_logprobs, top_ids = (values - total).tolist(), ids.tolist()
    for i, token_id in enumerate(token_ids.tolist()):
        top = zip(top_ids[i][: num_top[i]], top_logprobs[i], strict=False)
        yield TokenLogprob(token_id, chosen[i], tuple(top))


def _no_choice(peak: float, row: SamplingRow) -> EngineError:
    if peak == -np.inf:
        why = "its constraint, bans and biases leave no token" if row.is_edited else "all are -inf"
    else:
        why = f"the highest is {peak}: the model or its weights are at fault"
    return EngineError(
        f"no token can be chosen from the logits of output token {row.num_output}: {why}"
    )
