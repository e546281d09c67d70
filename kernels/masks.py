"""Packed token masks: bit t of a row, little-endian in 32-bit words, says whether token t is
allowed."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def unpack_masks(packed: NDArray[np.uint32], vocab_size: int) -> NDArray[np.bool_]:
    """packed: [B, ceil(V / 32)] uint32 -> [B, V] bool. Bits beyond V are ignored."""
    octets = np.ascontiguousarray(packed, dtype="<u4").view(np.uint8)
    bits = np.unpackbits(octets, axis=1, count=vocab_size, bitorder="little")
    return bits.view(np.bool_)


def forbid_unmasked(logits: Tensor, rows: list[int], packed: NDArray[np.uint32]) -> None:
    """Set the logits of tokens that are not allowed to -inf, whatever they were, NaN included; in
    place.

    logits: [B, V] float32; rows: the row of logits that each mask is for; packed: [len(rows),
    ceil(V / 32)] uint32. Raises `ValueError` for masks of another width.
    """
    num_words = -(-logits.shape[1] // 32)
    if packed.shape != (len(rows), num_words):
        raise ValueError(
            f"got masks of shape {packed.shape} for {len(rows)} rows of {logits.shape[1]} logits; "
            f"expected ({len(rows)}, {num_words})"
        )
    allowed = np.ones(logits.shape, dtype=np.bool_)
    allowed[rows] = unpack_masks(packed, logits.shape[1])
    forbidden_logit = torch.tensor(-torch.inf, device=logits.device)
    # Once for all rows: threads that meet for each of them cost more than the work. `where` takes a
    # third of the time of `masked_fill_` with the mask negated.
    torch.where(torch.from_numpy(allowed).to(logits.device), logits, forbidden_logit, out=logits)


def is_allowed(packed: NDArray[np.uint32], token_id: int) -> bool:
    """Whether a mask allows a token. packed: [ceil(V / 32)] uint32."""
    return bool(int(packed[token_id >> 5]) >> (token_id & 31) & 1)


def most_likely_allowed(
    logits: NDArray[np.float32], packed: NDArray[np.uint32]
) -> tuple[float, int]:
    """The highest logit of the allowed tokens and its token, the lowest id among equals; NaN if an
    allowed logit is; (-inf, 0) if no token is allowed.

    logits: [V] float32; packed: [ceil(V / 32)] uint32.
    """
    ids = np.flatnonzero(unpack_masks(packed[None], len(logits))[0])
    if not len(ids):
        return -np.inf, 0
    best = int(ids[logits[ids].argmax()])
    return float(logits[best]), best
