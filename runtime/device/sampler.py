"""Turns logits on a device into tokens there, and brings all that is asked for to the host at once.

The same choices as `runtime.sampler`, by kernels: packed masks and single edits go to the device
beside the forward pass, and the tokens come back with their log-probabilities in one copy.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from umbel.kernels.sampling import uniform
from umbel.kernels.triton.backend import Backend
from umbel.kernels.triton.choosing import ChoiceParams, TokenMasks, choose_tokens, log_sum_exp
from umbel.kernels.triton.logit_edits import (
    EditLists,
    LogitEdits,
    RowEdits,
    edit_logits,
    list_edits,
)
from umbel.kernels.triton.staged import StagedInts
from umbel.runtime.device.machine import Ints, Machine
from umbel.runtime.errors import EngineError
from umbel.runtime.outputs import TokenLogprob
from umbel.runtime.sampler import LOGPROB_ROWS, Sampled, SamplingRow
from umbel.runtime.step import Scored

_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
_FIRST_SIZE = 1 << 12
_Columns = dict[str, NDArray[np.generic]]


class Beside(Protocol):
    """What the host does for the next step while the device computes this one."""

    def before_wait(self, tokens: Tensor | None) -> None: ...

    def after_wait(self, tokens: list[int]) -> None: ...


class DeviceSampler:
    """Belongs to the engine's thread. A choice depends on its row alone."""

    def __init__(
        self,
        machine: Machine,
        *,
        beside: Beside | None = None,
        backend: Backend | None = None,
    ) -> None:
        """beside: told of the tokens of each step, on the device and when they are read."""
        self._machine = machine
        self._beside = beside
        self._backend = backend
        self._upload = _Upload(machine)

    def choose(
        self,
        logits: Tensor,
        logits_rows: Sequence[int],
        rows: Sequence[SamplingRow],
        masks: NDArray[np.uint32] | None,
        scored: Sequence[Scored],
    ) -> tuple[list[Sampled], list[TokenLogprob]]:
        """As `Sampler.choose`; logits: [W, V] on the device, of any floating-point dtype."""
        asked = [idx for idx, row in enumerate(rows) if row.params.logprobs is not None]
        num_top = [rows[idx].params.logprobs or 0 for idx in asked] + [s.num_top for s in scored]
        num_top = [min(count, logits.shape[1]) for count in num_top]
        columns: _Columns = {}
        if rows:
            columns |= _choice_columns(logits_rows, rows, masks, len(logits))
        if num_top:
            columns |= {
                "asked": _ints(asked),
                "scored_rows": _ints(
                    [logits_rows[idx] for idx in asked] + [s.logits_row for s in scored]
                ),
                "given_tokens": _ints([s.token_id for s in scored]),
            }
        with torch.inference_mode():
            on_device = self._upload(columns)
            results: list[Tensor] = []
            if rows:
                results.append(self._tokens(logits, on_device, len(rows)))
            if num_top:
                sampled = results[0] if rows else on_device["asked"]
                results += self._logprobs(logits, on_device, sampled, num_top)
            if not results:
                return [], []
            values = torch.cat([_bits(part) for part in results])
            fetched = self._machine.fetch(values, partial(self._before_wait, results, len(rows)))
        tokens: list[int] = fetched[: len(rows)].tolist()
        if self._beside is not None:
            self._beside.after_wait(tokens)
        logprobs = list(_read_logprobs(fetched[len(rows) :], num_top))
        of_row = dict(zip(asked, logprobs, strict=False))
        choices = [
            Sampled(token, of_row.get(idx)) if token >= 0 else _no_choice(rows[idx])
            for idx, token in enumerate(tokens)
        ]
        return choices, logprobs[len(asked) :]

    def _before_wait(self, results: list[Tensor], num_rows: int) -> None:
        if self._beside is not None:
            self._beside.before_wait(results[0] if num_rows else None)

    def _tokens(self, logits: Tensor, columns: Mapping[str, Tensor], num_rows: int) -> Tensor:
        """[B] int32; -1 where nothing can be chosen."""
        if "logits_rows" in columns:
            logits = logits.index_select(0, columns["logits_rows"])
        edits = {item.name: columns.get(item.name) for item in fields(LogitEdits)}
        if edits["row_begin"] is not None:
            edit_logits(logits, LogitEdits(**edits), backend=self._backend)  # type: ignore[arg-type]  # all are there
        params = ChoiceParams(
            temperatures=columns["temperatures"],
            uniforms=columns["uniforms"],
            top_k=columns.get("top_k"),
            top_p=columns.get("top_p"),
            min_p=columns.get("min_p"),
        )
        masks = None
        if "mask_words" in columns:
            words = columns["mask_words"].view(-1, -(-logits.shape[1] // 32))
            masks = TokenMasks(words, columns["mask_rows"])
        return choose_tokens(logits, params, masks, backend=self._backend).tokens

    def _logprobs(
        self,
        logits: Tensor,
        columns: Mapping[str, Tensor],
        sampled: Tensor,
        num_top: Sequence[int],
    ) -> Iterator[Tensor]:
        """For each part of the rows: the token, its log-probability, the most likely tokens and
        theirs. Of the model's own distribution."""
        chosen = sampled.index_select(0, columns["asked"]).clamp_min(0)
        tokens = torch.cat((chosen, columns["given_tokens"]))
        for begin, end in _parts(len(num_top)):
            part = logits.index_select(0, columns["scored_rows"][begin:end])
            total = log_sum_exp(part, backend=self._backend)[:, None]  # [n, 1]
            ids = tokens[begin:end]
            yield ids
            yield part.gather(1, ids[:, None].long()).float() - total
            if most := max(num_top[begin:end]):
                values, top = part.float().topk(most, dim=1)
                yield top.int()
                yield values - total


class _Upload:
    """Columns of numbers, by one copy that runs beside the forward pass. They last one step."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._make(_FIRST_SIZE)

    def _make(self, size: int) -> None:
        self._staged = StagedInts(size, self._machine.device)
        # Clearing it is enqueued like any work, so the first copy must not overtake that.
        self._is_new = True

    def __call__(self, columns: _Columns) -> dict[str, Tensor]:
        """Each column, flat, of 4 bytes an element -> on the device as int32 or float32."""
        places: dict[str, slice] = {}
        end = 0
        for name, column in columns.items():
            places[name] = slice(end, end + column.size)
            end += -(-column.size // 8) * 8  # so that each begins at a multiple of 32 bytes
        if end > len(self._staged):
            self._make(2 * end)
        host = self._staged.host()
        for name, column in columns.items():
            host[places[name]] = column.reshape(-1).view(np.int32)
        with nullcontext() if self._is_new else self._machine.beside():
            self._staged.copy(end)
        self._is_new = False
        on_device = {name: self._staged.device[place] for name, place in places.items()}
        return {
            name: column.view(torch.float32) if columns[name].dtype == np.float32 else column
            for name, column in on_device.items()
        }


def _choice_columns(
    logits_rows: Sequence[int],
    rows: Sequence[SamplingRow],
    masks: NDArray[np.uint32] | None,
    num_logits: int,
) -> _Columns:
    """All that the choice of `rows` depends on."""
    params = [row.params for row in rows]
    drawn = [0.0 if row.params.is_greedy else uniform(row.seed, row.num_output) for row in rows]
    columns: _Columns = {
        "temperatures": _floats([0.0 if p.is_greedy else p.temperature for p in params]),
        "uniforms": np.minimum(_floats(drawn), _BELOW_ONE),
    }
    edits = _edits(rows)
    if edits is not None:
        columns |= {item.name: getattr(edits, item.name) for item in fields(EditLists)}
    if edits is not None or list(logits_rows) != list(range(num_logits)):
        columns["logits_rows"] = _ints(logits_rows)  # a copy: the logits stay the model's own
    if any(p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0 for p in params):
        columns |= {
            "top_k": _ints([p.top_k for p in params]),
            "top_p": _floats([p.top_p for p in params]),
            "min_p": _floats([p.min_p for p in params]),
        }
    if any(row.mask_row is not None for row in rows):
        assert masks is not None, "a row names a mask, but the step has none"
        columns |= {
            "mask_words": masks,
            "mask_rows": _ints([-1 if row.mask_row is None else row.mask_row for row in rows]),
        }
    return columns


def _edits(rows: Sequence[SamplingRow]) -> EditLists | None:
    """None if no row's logits are edited."""
    if not any(row.banned_ids or row.params.logit_bias or row.params.has_penalties for row in rows):
        return None
    return list_edits(
        [
            RowEdits(
                bias=row.params.logit_bias,
                tokens=row.tokens,
                output=row.tokens[row.num_prompt :] if row.params.has_penalties else (),
                banned=row.banned_ids,
                repetition=row.params.repetition_penalty,
                frequency=row.params.frequency_penalty,
                presence=row.params.presence_penalty,
            )
            for row in rows
        ]
    )


def _read_logprobs(fetched: Ints, num_top: Sequence[int]) -> Iterator[TokenLogprob]:
    """What `DeviceSampler._logprobs` made."""
    at = 0

    def take(count: int) -> Ints:
        nonlocal at
        at += count
        return fetched[at - count : at]

    for begin, end in _parts(len(num_top)):
        count, most = end - begin, max(num_top[begin:end])
        ids = take(count).tolist()
        values = take(count).view(np.float32).tolist()
        top_ids = take(count * most).reshape(count, most).tolist()
        top_values = take(count * most).view(np.float32).reshape(count, most).tolist()
        for i in range(count):
            top = zip(top_ids[i][: num_top[begin + i]], top_values[i], strict=False)
            yield TokenLogprob(ids[i], values[i], tuple(top))


def _parts(count: int) -> list[tuple[int, int]]:
    """Rows whose log-probabilities are computed together: bounds the memory of a scored prompt."""
    return [(at, min(at + LOGPROB_ROWS, count)) for at in range(0, count, LOGPROB_ROWS)]


def _bits(values: Tensor) -> Tensor:
    return values.reshape(-1).view(torch.int32)


def _ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def _floats(values: Sequence[float]) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def _no_choice(row: SamplingRow) -> Sampled:
    why = "its constraint, bans and biases leave no token, or a logit is not finite"
    if not row.is_edited:
        why = "one is not finite: the model or its weights are at fault"
    error = EngineError(
        f"no token can be chosen from the logits of output token {row.num_output}: {why}"
    )
    return Sampled(-1, error=error)
