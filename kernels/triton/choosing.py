"""Choosing tokens from rows of logits: masks, temperature, top-k, top-p, min-p and a seeded draw.

A draw is one uniform number put through the inverse of the row's cumulative distribution in order
of token ids, so it depends on its row alone. Tokens with equal logits are kept or dropped together
by a filter. `logit_edits` has what changes single logits before.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from umbel.kernels.triton.backend import Backend, check_tensor, choose_backend

LOGITS = (torch.float32, torch.bfloat16, torch.float16)
TILE = 4096  # tokens of one program's pass: 16 KB of float32, all in flight at once


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceParams:
    """How each row chooses; all on the logits' device."""

    temperatures: Tensor  # [B] float32; 0: the most likely token, the lowest id among equals
    uniforms: Tensor  # [B] float32 in [0, 1)
    top_k: Tensor | None = None  # [B] int32; 0: all. None: no row has a filter
    top_p: Tensor | None = None  # [B] float32; of these, the fewest whose mass reaches it; 1: all
    min_p: Tensor | None = None  # [B] float32; of these, those at least so likely as a part of the
    # most likely; 0: all


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Packed masks: bit t % 32 of word t / 32 says whether token t is allowed."""

    words: Tensor  # [M, ceil(V / 32)] int32, dense rows
    rows: Tensor  # [B] int32: which mask a row of logits is under; -1: none


@dataclass(frozen=True, slots=True)
class Choices:
    """tokens: [B] int32; -1 where no allowed logit is finite, or one is NaN or infinite.
    thresholds: [B] float32: drawn rows chose among the allowed logits that are not below."""

    tokens: Tensor
    thresholds: Tensor


def choose_tokens(
    logits: Tensor,
    params: ChoiceParams,
    masks: TokenMasks | None = None,
    *,
    tile: int = TILE,
    backend: Backend | None = None,
) -> Choices:
    """One token for each row. logits: [B, V], dense rows; left as they are. tile: tokens of one
    program's pass, a power of two of at least 32."""
    _check(logits, params, masks, tile)
    num_rows, num_tokens = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    thresholds = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if num_rows == 0:
        return Choices(tokens, thresholds)
    if choose_backend(logits, backend) == "torch":
        _choose_torch(logits, params, masks, tokens, thresholds)
        return Choices(tokens, thresholds)
    from umbel.kernels.triton.choosing_jit import pick_tokens_kernel

    tiles = _tile_statistics(logits, params.temperatures, masks, tile)
    num_tiles = -(-num_tokens // tile)
    words, mask_rows = _mask_tensors(logits, masks)
    unused = params.temperatures
    pick_tokens_kernel[(num_rows,)](
        logits,
        words,
        mask_rows,
        params.temperatures,
        params.uniforms,
        unused if params.top_k is None else params.top_k,
        unused if params.top_p is None else params.top_p,
        unused if params.min_p is None else params.min_p,
        *tiles,
        tokens,
        thresholds,
        logits.stride(0),
        words.stride(0),
        num_tokens,
        num_tiles,
        WORDS=tile // 32,
        TILES=1 << (num_tiles - 1).bit_length(),
        HAS_FILTERS=params.top_k is not None,
        num_warps=8 if tile >= 2048 else 4,
    )
    return Choices(tokens, thresholds)


def log_sum_exp(logits: Tensor, *, tile: int = TILE, backend: Backend | None = None) -> Tensor:
    """logits: [B, V], dense rows -> [B] float32: a token's logit minus this is its
    log-probability. Infinite where a logit is, or is NaN."""
    _check_logits(logits, tile)
    if len(logits) == 0 or choose_backend(logits, backend) == "torch":
        total = logits.float().logsumexp(1)
        return total.masked_fill(total.isnan(), torch.inf)
    ones = torch.ones(len(logits), device=logits.device)
    largest, _, mass = _tile_statistics(logits, ones, None, tile)
    return torch.logsumexp(largest + mass.log(), dim=1)


def _tile_statistics(
    logits: Tensor, temperatures: Tensor, masks: TokenMasks | None, tile: int
) -> tuple[Tensor, Tensor, Tensor]:
    """[B, tiles] each: the largest logit, its token, the mass relative to it."""
    from umbel.kernels.triton.choosing_jit import tile_statistics_kernel

    num_rows, num_tokens = logits.shape
    shape = (num_rows, -(-num_tokens // tile))
    largest = torch.empty(shape, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(shape, dtype=torch.int32, device=logits.device)
    mass = torch.empty(shape, dtype=torch.float32, device=logits.device)
    words, mask_rows = _mask_tensors(logits, masks)
    tile_statistics_kernel[shape](
        logits,
        words,
        mask_rows,
        temperatures,
        largest,
        tokens,
        mass,
        logits.stride(0),
        words.stride(0),
        num_tokens,
        WORDS=tile // 32,
        num_warps=4,
    )
    return largest, tokens, mass


def _mask_tensors(logits: Tensor, masks: TokenMasks | None) -> tuple[Tensor, Tensor]:
    if masks is not None:
        return masks.words, masks.rows
    rows = torch.full((len(logits),), -1, dtype=torch.int32, device=logits.device)
    return rows[:, None], rows


def _choose_torch(
    logits: Tensor,
    params: ChoiceParams,
    masks: TokenMasks | None,
    tokens: Tensor,
    thresholds: Tensor,
) -> None:
    for row in range(len(logits)):
        x = logits[row].float()
        if masks is not None and int(masks.rows[row]) >= 0:
            x = x.masked_fill(~_allowed(masks.words[masks.rows[row]], len(x)), -torch.inf)
        best = x.max()
        thresholds[row] = torch.finfo(torch.float32).min
        temperature = float(params.temperatures[row])
        if not bool(best.isfinite()):
            tokens[row] = -1
        elif temperature <= 0:
            tokens[row] = (x == best).nonzero()[0, 0]
        else:
            scaled = (x - best) / temperature
            threshold = _threshold(scaled, row, params)
            if threshold is not None:
                thresholds[row] = x[scaled >= threshold].min()
                scaled = scaled.masked_fill(scaled < threshold, -torch.inf)
            cumulative = scaled.double().exp().cumsum(0)
            goal = params.uniforms[row].double() * cumulative[-1]
            drawn = torch.searchsorted(cumulative, goal, right=True)
            last = torch.searchsorted(cumulative, cumulative[-1])
            tokens[row] = torch.minimum(drawn, last)


def _threshold(scaled: Tensor, row: int, params: ChoiceParams) -> Tensor | None:
    """The least scaled logit that the row's filters keep. scaled: [V], at most 0."""
    if params.top_k is None or params.top_p is None or params.min_p is None:
        return None
    top_k, top_p = int(params.top_k[row]), float(params.top_p[row])
    min_p = params.min_p[row]
    ordered = scaled.sort(descending=True).values
    threshold = scaled.new_tensor(-torch.inf)
    if top_k > 0:
        threshold = ordered[min(top_k, len(ordered)) - 1]
        ordered = ordered[ordered >= threshold]
    if top_p < 1.0:
        cumulative = ordered.double().exp().cumsum(0)
        reached = torch.searchsorted(cumulative, cumulative[-1] * top_p)
        threshold = ordered[min(int(reached), len(ordered) - 1)]
    if float(min_p) > 0.0:
        threshold = torch.maximum(threshold, min_p.log())
    return threshold


def _allowed(words: Tensor, num_tokens: int) -> Tensor:
    """words: [ceil(V / 32)] int32 -> [V] bool."""
    bits = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[:, None] >> bits) & 1).view(-1)[:num_tokens].bool()


def _check_logits(logits: Tensor, tile: int) -> None:
    check_tensor("logits", logits, shape=(None, None), dtypes=LOGITS, device=logits.device)
    if logits.stride(1) != 1:
        raise ValueError(f"logits has strides {logits.stride()}; expected dense rows")
    if tile < 32 or tile & (tile - 1):
        raise ValueError(f"tile={tile} is not valid: expected a power of two of at least 32")


def _check(logits: Tensor, params: ChoiceParams, masks: TokenMasks | None, tile: int) -> None:
    _check_logits(logits, tile)
    num_rows, num_tokens = logits.shape
    device = logits.device
    filters = (params.top_k, params.top_p, params.min_p)
    if any(f is None for f in filters) and any(f is not None for f in filters):
        raise ValueError("expected top_k, top_p and min_p together, or none of them")
    columns = {
        "temperatures": (params.temperatures, torch.float32),
        "uniforms": (params.uniforms, torch.float32),
        "top_k": (params.top_k, torch.int32),
        "top_p": (params.top_p, torch.float32),
        "min_p": (params.min_p, torch.float32),
        "masks.rows": (None if masks is None else masks.rows, torch.int32),
    }
    for name, (column, dtype) in columns.items():
        if column is not None:
            check_tensor(name, column, shape=(num_rows,), dtypes=(dtype,), device=device)
    if masks is not None:
        shape = (None, -(-num_tokens // 32))
        check_tensor("masks.words", masks.words, shape=shape, dtypes=(torch.int32,), device=device)
        if masks.words.stride(1) != 1:
            raise ValueError(f"masks.words has strides {masks.words.stride()}; expected dense rows")
