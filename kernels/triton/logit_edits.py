"""Changes of single logits before a token is chosen: biases, penalties and bans.

The host packs them as one short list per row, so only the logits that change are touched. Order
and formulas are those of `kernels.sampling`: bias, repetition, frequency and presence, bans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umbel.kernels.triton.backend import Backend, check_tensor, choose_backend
from umbel.kernels.triton.choosing import LOGITS

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
_SEEN, _BANNED = 1, 2
_BLOCK = 1024  # edits a turn


@dataclass(slots=True, kw_only=True)
class RowEdits:
    """What changes in one row; token ids that the vocabulary does not have are ignored."""

    bias: Mapping[int, float] = field(default_factory=dict)
    tokens: Sequence[int] = ()  # prompt and output, for the repetition penalty
    output: Sequence[int] = ()  # counted for frequency and presence
    banned: Sequence[int] = ()
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0


@dataclass(frozen=True, slots=True)
class EditLists:
    """Row b's edits are the entries row_begin[b] .. row_begin[b + 1] - 1; distinct tokens each."""

    row_begin: Ints  # [B + 1] int32
    tokens: Ints  # [n] int32
    biases: Floats  # [n] float32
    counts: Ints  # [n] int32, occurrences in the output
    flags: Ints  # [n] int32: 1 seen before, 2 banned
    repetition: Floats  # [B] float32
    frequency: Floats  # [B] float32
    presence: Floats  # [B] float32


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """`EditLists` on a device."""

    row_begin: Tensor
    tokens: Tensor
    biases: Tensor
    counts: Tensor
    flags: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


def list_edits(rows: Sequence[RowEdits]) -> EditLists:
    """One list for all rows."""
    begins, tokens, biases, counts, flags = [0], [], [], [], []
    for row in rows:
        output, output_counts = np.unique(np.array(row.output, dtype=np.int64), return_counts=True)
        seen = np.unique(np.array(row.tokens if row.repetition != 1.0 else (), dtype=np.int64))
        biased = np.array(list(row.bias), dtype=np.int64)
        banned = np.unique(np.array(row.banned, dtype=np.int64))
        ids = np.unique(np.concatenate((output, seen, biased, banned)))
        row_biases, row_counts = np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32)
        row_biases[np.searchsorted(ids, biased)] = list(row.bias.values())
        row_counts[np.searchsorted(ids, output)] = output_counts
        row_flags = np.zeros(len(ids), np.int32)
        row_flags[np.searchsorted(ids, seen)] |= _SEEN
        row_flags[np.searchsorted(ids, banned)] |= _BANNED
        begins.append(begins[-1] + len(ids))
        tokens.append(ids.astype(np.int32))
        biases.append(row_biases)
        counts.append(row_counts)
        flags.append(row_flags)
    no_ints, no_floats = np.zeros(0, np.int32), np.zeros(0, np.float32)
    return EditLists(
        np.array(begins, dtype=np.int32),
        np.concatenate([no_ints, *tokens]),
        np.concatenate([no_floats, *biases]),
        np.concatenate([no_ints, *counts]),
        np.concatenate([no_ints, *flags]),
        np.array([row.repetition for row in rows], dtype=np.float32),
        np.array([row.frequency for row in rows], dtype=np.float32),
        np.array([row.presence for row in rows], dtype=np.float32),
    )


def pack_edits(rows: Sequence[RowEdits], device: torch.device) -> LogitEdits:
    """One list for all rows, on the device."""
    lists = list_edits(rows)
    columns = (getattr(lists, item.name) for item in fields(EditLists))
    return LogitEdits(*(torch.from_numpy(column).to(device) for column in columns))


def edit_logits(logits: Tensor, edits: LogitEdits, *, backend: Backend | None = None) -> None:
    """Apply each row's edits, in place. logits: [B, V], dense rows."""
    num_rows, num_tokens = logits.shape
    check_tensor("logits", logits, shape=(None, None), dtypes=LOGITS, device=logits.device)
    shape = (num_rows + 1,)
    check_tensor(
        "edits.row_begin", edits.row_begin, shape=shape, dtypes=(torch.int32,), device=logits.device
    )
    if logits.stride(1) != 1:
        raise ValueError(f"logits has strides {logits.stride()}; expected dense rows")
    if len(edits.tokens) == 0:
        return
    if choose_backend(logits, backend) == "torch":
        _edit_torch(logits, edits)
        return
    from umbel.kernels.triton.choosing_jit import edit_logits_kernel

    edit_logits_kernel[(num_rows,)](
        logits,
        edits.row_begin,
        edits.tokens,
        edits.biases,
        edits.counts,
        edits.flags,
        edits.repetition,
        edits.frequency,
        edits.presence,
        logits.stride(0),
        num_tokens,
        BLOCK=_BLOCK,
        num_warps=4,
    )


def _edit_torch(logits: Tensor, edits: LogitEdits) -> None:
    begins = edits.row_begin.tolist()
    for row, logits_row in enumerate(logits):
        entries = torch.arange(begins[row], begins[row + 1], device=logits.device)
        entries = entries[edits.tokens[entries] < len(logits_row)]
        ids = edits.tokens[entries].long()
        x = logits_row[ids].float() + edits.biases[entries]
        repetition = edits.repetition[row]
        repeated = torch.where(x > 0, x / repetition, x * repetition)
        x = torch.where((edits.flags[entries] & _SEEN) != 0, repeated, x)
        counts = edits.counts[entries]
        loss = counts * edits.frequency[row] + edits.presence[row]
        x = x - torch.where(counts > 0, loss, 0.0)
        x = x.masked_fill((edits.flags[entries] & _BANNED) != 0, -torch.inf)
        logits_row[ids] = x.to(logits.dtype)
