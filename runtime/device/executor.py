"""One rank's share of every step: the pool of keys and values, and a step's numbers on the device.

Everything a step reads lies at fixed addresses, so that a captured step can be replayed.
"""

import torch
from torch import Tensor

from umbel.kernels.triton.backend import Backend
from umbel.kernels.triton.slot_copy import copy_slots
from umbel.kernels.triton.staged import StagedInts
from umbel.kernels.triton.work_list import WorkList
from umbel.kernels.triton.work_tensors import (
    LaunchShape,
    WorkCapacity,
    WorkTensors,
    round_up,
)
from umbel.runtime.device.decoder import DeviceDecoder
from umbel.runtime.device.graphs import StepGraphs, StepShape
from umbel.runtime.device.machine import Machine
from umbel.runtime.device.step_input import NOT_WRITTEN, Ints, StepInput

_FIRST_PAGES = 1 << 12


class StepExecutor:
    """Belongs to the thread that computes."""

    def __init__(
        self,
        decoder: DeviceDecoder,
        machine: Machine,
        *,
        num_blocks: int,
        block_size: int,
        max_rows: int,
        use_graphs: bool = True,
        backend: Backend | None = None,
    ) -> None:
        """max_rows: of one step. use_graphs: whether decode steps are captured and replayed."""
        config, heads, device = decoder.config, decoder.heads, decoder.device
        self.pool = torch.empty(
            (2, config.num_layers, num_blocks * block_size, heads.num_kv_heads, heads.head_dim),
            dtype=decoder.dtype,
            device=device,
        )  # token-major: what is written of a token is one run of memory
        self.graphs = StepGraphs(machine, max_rows) if use_graphs else None
        self._decoder = decoder
        self._backend = backend
        self._max_rows = max_rows
        self._columns = StagedInts(4 * max_rows, device)
        self._copied = StagedInts(64 * block_size, device)
        rows = round_up(max_rows)
        first = WorkCapacity(
            num_rows=max_rows,
            num_narrow=2 * rows,
            num_wide=64,
            num_listed_rows=2 * rows,
            num_pages=_FIRST_PAGES,
            num_partials=rows,
        )
        self._works = [self._work_tensors(first) for _ in decoder.windows]

    def execute(self, step: StepInput, tokens: Tensor | None = None) -> Tensor:
        """Enqueue a step; the logits of its wanted rows, [W, V], valid until the next step. W may
        be 0.

        tokens: [n] int32 on the device: then `step.token_ids` are indices into it.
        """
        assert step.num_rows <= self._max_rows, "the step has more rows than the largest step"
        with torch.inference_mode():
            for source, target in step.copies:
                self._copy(source, target)
            if step.num_rows == 0:
                return self._no_logits()
            self._make_room(step.works)
            num_rows = self._bucket(step)
            if self.graphs is None or num_rows is None:
                launches = [LaunchShape.of(work) for work in step.works]
                self._load(step, step.num_rows, launches, tokens)
                return self._compute(step.num_rows, len(step.wanted))
            launches = [LaunchShape.rounded(work) for work in step.works]
            self._load(step, num_rows, launches, tokens)
            shape = StepShape(num_rows, tuple(launches))
            logits = self.graphs.run(shape, lambda: self._compute(num_rows, None))
            return logits[: step.num_rows]

    def _bucket(self, step: StepInput) -> int | None:
        """To how many rows the step is padded for a graph; None: it is none for a graph."""
        if self.graphs is None or not step.is_decode or any(len(w.wide) for w in step.works):
            return None
        return self.graphs.bucket(step.num_rows)

    def _compute(self, num_rows: int, num_wanted: int | None) -> Tensor:
        """num_wanted None: all rows, in order."""
        token_ids, positions, slots, wanted = self._columns.device.view(4, -1)
        hidden = self._decoder.forward(
            token_ids[:num_rows], positions[:num_rows], slots[:num_rows], self.pool, self._works
        )
        if num_wanted == 0:
            return self._no_logits()
        if num_wanted is not None:
            hidden = hidden.index_select(0, wanted[:num_wanted])
        return self._decoder.logits(hidden)

    def _load(
        self,
        step: StepInput,
        num_rows: int,
        launches: list[LaunchShape],
        tokens: Tensor | None,
    ) -> None:
        """Rows beyond the step's own are padding: they write nothing and see no key."""
        columns = self._columns.host().reshape(4, -1)
        columns[0, : step.num_rows] = step.token_ids
        columns[1, : step.num_rows] = step.positions
        columns[2, : step.num_rows] = step.slots
        columns[:2, step.num_rows : num_rows] = 0
        columns[2, step.num_rows : num_rows] = NOT_WRITTEN
        columns[3, : len(step.wanted)] = step.wanted
        self._columns.copy()
        if tokens is not None:
            fed = self._columns.device[: step.num_rows]
            # One that could not be chosen is -1: its request ends, and its row is of no use.
            fed.copy_(tokens.index_select(0, fed).clamp_min_(0))
        for tensors, work, launch in zip(self._works, step.works, launches, strict=True):
            tensors.load(work, launch)

    def _make_room(self, works: list[WorkList]) -> None:
        for idx, work in enumerate(works):
            capacity = self._works[idx].capacity
            if not capacity.holds(work):
                self._works[idx] = self._work_tensors(capacity.grown(work))
                if self.graphs is not None:
                    self.graphs.clear()

    def _work_tensors(self, capacity: WorkCapacity) -> WorkTensors:
        heads = self._decoder.heads
        return WorkTensors(
            capacity,
            num_heads=heads.num_kv_heads * heads.group,
            head_dim=heads.head_dim,
            device=self._decoder.device,
        )

    def _copy(self, source: Ints, target: Ints) -> None:
        count = len(source)
        if 2 * count > len(self._copied):
            self._copied = StagedInts(4 * count, self._decoder.device)
        host = self._copied.host()
        host[:count], host[count : 2 * count] = source, target
        self._copied.copy(2 * count)
        slots = self._copied.device
        copy_slots(
            self.pool.flatten(0, 1), slots[:count], slots[count : 2 * count], backend=self._backend
        )

    def _no_logits(self) -> Tensor:
        decoder = self._decoder
        return torch.empty(0, decoder.config.vocab_size, dtype=decoder.dtype, device=decoder.device)
