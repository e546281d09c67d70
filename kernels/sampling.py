"""Choosing tokens from logits: penalties, greedy choice, filters and the seeded draw. Called by
the sampler.

A draw is one uniform number put through the inverse of a row's cumulative distribution, so a row's
token depends on that row and its number alone, never on what else is in the batch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

# Tokens looked at first for top-p; up to about this many, selecting them costs the same.
NUM_CANDIDATES = 256
# How many more are looked at where these do not suffice: a flat distribution ends with a full sort.
CANDIDATE_GROWTH = 16
# Weights that are summed before their sums are accumulated, which is what costs most.
CDF_CHUNK = 256
# Elements of the rows that are worked on together, so that what is made of them stays in the cache.
MAX_ELEMENTS = 1 << 18

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Filter:
    """Which tokens may be drawn, applied in this order. top_k 0: all; top_p 1 and min_p 0: no
    filter."""

    top_k: int = 0  # the k most likely
    top_p: float = 1.0  # of these, the fewest whose probabilities reach top_p
    min_p: float = 0.0  # of these, those at least min_p times as likely as the most likely

    @property
    def needs_order(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0


def uniform(seed: int, index: int) -> float:
    """The `index`-th number in [0, 1) of a seed's stream, with 53 random bits.

    SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), entered at step `index` from a hashed seed: a
    counter-based generator, so a stream has no state that preemption or batching could disturb.
    """
    state = _mix64((seed + 0x9E3779B97F4A7C15) & _MASK64)
    bits = _mix64((state + (index + 1) * 0x9E3779B97F4A7C15) & _MASK64)
    return float((bits >> 11) * 2.0**-53)


def _mix64(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


def add_bias(row: Tensor, bias: Mapping[int, float]) -> None:
    """Add to the logits of single tokens, in place. row: [V] float32; ids beyond V are ignored."""
    ids = [i for i in bias if i < len(row)]
    row.index_add_(0, _ids(ids, row), torch.tensor([bias[i] for i in ids], device=row.device))


def ban(row: Tensor, token_ids: Sequence[int]) -> None:
    """Set the logits of single tokens to -inf, in place. row: [V] float32; ids beyond V are
    ignored."""
    row.index_fill_(0, _ids([i for i in token_ids if i < len(row)], row), -torch.inf)


def penalize_repetition(row: Tensor, token_ids: Sequence[int], penalty: float) -> None:
    """Make tokens that occurred less likely, in place: positive logits / penalty, others * penalty.

    The formula of CTRL (arXiv 1909.05858), as in transformers and vLLM. row: [V] float32.
    """
    ids = _ids(np.unique(_known(token_ids, row)), row)
    logits = row.index_select(0, ids)
    row.index_copy_(0, ids, torch.where(logits > 0, logits / penalty, logits * penalty))


def penalize_counts(
    row: Tensor, token_ids: Sequence[int], *, frequency: float, presence: float
) -> None:
    """Subtract `frequency` for each occurrence of a token and `presence` once, in place.

    The formula of the OpenAI API. row: [V] float32.
    """
    unique, counts = np.unique(_known(token_ids, row), return_counts=True)
    loss = torch.from_numpy(frequency * counts + presence).to(row)
    row.index_add_(0, _ids(unique, row), loss, alpha=-1)


def _known(token_ids: Sequence[int], row: Tensor) -> NDArray[np.int64]:
    ids = np.array(token_ids, dtype=np.int64)
    return ids[ids < len(row)]


def _ids(token_ids: Sequence[int] | NDArray[np.int64], row: Tensor) -> Tensor:
    return torch.as_tensor(token_ids, dtype=torch.int64, device=row.device)


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The highest logit of each row and its token; the lowest id among equals.

    logits: [B, V] float32 -> [B] float32, [B] int64. A row with a NaN has NaN as its highest.
    """
    if logits.device.type == "cpu":  # ten times as fast as torch's
        values = logits.numpy()
        found = values.argmax(1)
        return torch.from_numpy(values[np.arange(len(found)), found]), torch.from_numpy(found)
    ids = logits.argmax(1)
    return logits.gather(1, ids[:, None])[:, 0], ids


def draw(
    logits: Tensor, temperatures: Tensor, uniforms: Tensor, filters: Sequence[Filter]
) -> Tensor:
    """One token for each row, from the softmax of logits / temperature within the row's filter.

    logits: [B, V] float32, each with a finite highest value; temperatures: [B] float32, positive;
    uniforms: [B] float64 in [0, 1). Returns [B] int64.
    """
    tokens = torch.empty(len(filters), dtype=torch.int64, device=logits.device)
    groups: dict[int | None, list[int]] = {}  # by top_k, None: no order needed
    for row, row_filter in enumerate(filters):
        key = row_filter.top_k if row_filter.needs_order else None
        groups.setdefault(key, []).append(row)
    num_together = max(1, MAX_ELEMENTS // logits.shape[1])
    for top_k, rows in groups.items():
        for first in range(0, len(rows), num_together):
            part = rows[first : first + num_together]
            idxs = torch.tensor(part, device=logits.device)
            scaled = logits.index_select(0, idxs)
            # Shifted first: a tiny temperature must not turn all logits into infinities.
            scaled.sub_(scaled.amax(1, keepdim=True)).div_(temperatures[idxs, None])
            group = [filters[row] for row in part]
            if top_k is None:
                tokens[idxs] = _draw_unordered(scaled, uniforms[idxs], group)
            else:
                width = top_k or NUM_CANDIDATES
                tokens[idxs] = _draw_ordered(scaled, uniforms[idxs], group, width)
    return tokens


def _draw_unordered(scaled: Tensor, uniforms: Tensor, filters: Sequence[Filter]) -> Tensor:
    """Without top-k and top-p no token need know its rank. scaled: [B, V], at most 0."""
    if any(f.min_p > 0 for f in filters):
        scaled = scaled.where(scaled >= _min_p_floor(filters, scaled), -torch.inf)
    return _draw_weighted(scaled.softmax(1), uniforms)


def _draw_ordered(
    scaled: Tensor, uniforms: Tensor, filters: Sequence[Filter], width: int
) -> Tensor:
    """scaled: [B, V], at most 0. Of each row, `width` candidates are looked at: its top_k, which
    is the same in all rows, or else as many as usually suffice.
    """
    width = min(width, scaled.shape[1])
    values, ids = scaled.topk(width, dim=1)  # [B, K], descending
    has_top_k = filters[0].top_k > 0
    total = values.logsumexp(1, keepdim=True) if has_top_k else scaled.logsumexp(1, keepdim=True)
    probs = torch.exp(values - total).double()
    below = probs.cumsum(1) - probs  # the probability of all that is more likely
    shares = [f.top_p if f.top_p < 1.0 else math.inf for f in filters]
    top_p = torch.tensor(shares, dtype=torch.float64, device=scaled.device)
    kept = (below < top_p[:, None]) & (values >= _min_p_floor(filters, scaled))
    tokens = _invert(probs.where(kept, 0.0), uniforms)
    tokens = ids.gather(1, tokens[:, None])[:, 0]
    if has_top_k or width == scaled.shape[1]:
        return tokens
    short = (below[:, -1] + probs[:, -1] < top_p).nonzero()[:, 0]  # these need more candidates
    if len(short):
        again = [filters[row] for row in short.tolist()]
        tokens[short] = _draw_ordered(
            scaled[short], uniforms[short], again, width * CANDIDATE_GROWTH
        )
    return tokens


def _min_p_floor(filters: Sequence[Filter], scaled: Tensor) -> Tensor:
    floors = [math.log(f.min_p) if f.min_p > 0 else -math.inf for f in filters]
    return torch.tensor(floors, device=scaled.device)[:, None]


def _draw_weighted(weights: Tensor, uniforms: Tensor) -> Tensor:
    """weights: [B, V] float32, not negative -> [B] int64; in two levels, see `CDF_CHUNK`."""
    padded = functional.pad(weights, (0, -weights.shape[1] % CDF_CHUNK))
    chunks = padded.view(len(weights), -1, CDF_CHUNK)
    sums = chunks.sum(2).double()  # [B, C]
    chunk = _invert(sums, uniforms)
    rows = torch.arange(len(weights), device=weights.device)
    before = sums.cumsum(1)[rows, chunk] - sums[rows, chunk]
    rest = ((uniforms * sums.sum(1) - before) / sums[rows, chunk]).clamp(0.0, 1.0)
    return chunk * CDF_CHUNK + _invert(chunks[rows, chunk].double(), rest)


def _invert(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The index at which a row's cumulative weight first exceeds its share `uniforms`, and never
    one of no weight.

    weights: [B, K] float64, not negative, not all zero; uniforms: [B] float64 in [0, 1].
    """
    cumulative = weights.cumsum(1)
    idxs = torch.searchsorted(cumulative, (uniforms * cumulative[:, -1])[:, None], right=True)
    # Rounding can push a share to the very end; the last index with a weight is where the sum is
    # reached.
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(idxs, last)[:, 0]
