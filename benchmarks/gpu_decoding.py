"""Whole decode steps of a Llama with random weights on a GPU, all from the Triton kernels.

The step is what an engine captures as a CUDA graph: embedding, layers, head and choice, with all
that changes from step to step in tensors at fixed addresses. Its greedy tokens are compared with
those of the torch twins; its time with the least that the measured rates allow.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch
from gpu_timing import Check, Session, capture, elapsed_s, measured_device
from torch import Tensor
from torch.nn import functional

from umbel.kernels.attention_parts import KeyStretch, QueryRun
from umbel.kernels.triton.attention import attend
from umbel.kernels.triton.backend import Backend
from umbel.kernels.triton.choosing import ChoiceParams, TokenMasks, choose_tokens
from umbel.kernels.triton.elementwise import add_rms_norm, gated_activation, rotate_and_write
from umbel.kernels.triton.work_list import WorkList, plan_work
from umbel.kernels.triton.work_split import DeviceRates, HeadShape
from umbel.kernels.triton.work_tensors import WorkCapacity, WorkTensors
from umbel.runtime.roofline.cost.step import decode_bound
from umbel.runtime.roofline.records import ModelShape, Workload

HALF = torch.bfloat16
BLOCK = 16
ROOM = 64  # tokens that a branch may grow by


def _llama(name: str, layers: int, hidden: int, mlp: int, heads: int, dim: int) -> ModelShape:
    vocab, kv_heads = 128256, 8
    layer = hidden * (2 * heads + 2 * kv_heads) * dim + 3 * hidden * mlp + 2 * hidden
    return ModelShape(
        name=name,
        num_parameters=layers * layer + hidden + 2 * vocab * hidden,
        num_gathered_parameters=vocab * hidden,
        num_layers=layers,
        num_q_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        hidden_size=hidden,
        intermediate_size=mlp,
        vocab_size=vocab,
    )


LLAMA_1B = _llama("1B", 16, 2048, 8192, 32, 64)
LLAMA_8B = _llama("8B", 32, 4096, 14336, 32, 128)
TINY = ModelShape(
    name="tiny",
    num_parameters=1,
    num_layers=2,
    num_q_heads=4,
    num_kv_heads=1,
    head_dim=32,
    hidden_size=64,
    intermediate_size=96,
    vocab_size=300,
)


@dataclass(slots=True)
class _Layer:
    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor
    attention_norm: Tensor
    mlp_norm: Tensor


class DummyLlama:
    """A decoder with random weights and a pool of its own; not a model anyone would talk to."""

    def __init__(self, shape: ModelShape, num_slots: int, device: torch.device) -> None:
        self.shape = shape
        self.heads = HeadShape(
            num_kv_heads=shape.num_kv_heads,
            group=shape.group_size,
            head_dim=shape.head_dim,
            element_bytes=2,
        )
        width = shape.num_q_heads * shape.head_dim
        kv_width = shape.num_kv_heads * shape.head_dim
        hidden, mlp = shape.hidden_size, shape.intermediate_size

        def weight(rows: int, columns: int) -> Tensor:
            # So that rows keep their size through a layer.
            return torch.empty(rows, columns, dtype=HALF, device=device).normal_(0, columns**-0.5)

        ones = torch.ones(hidden, device=device)
        self._embedding = weight(shape.vocab_size, hidden)
        self._layers = [
            _Layer(
                weight(width + 2 * kv_width, hidden),
                weight(hidden, width),
                weight(2 * mlp, hidden),
                weight(hidden, mlp),
                ones,
                ones,
            )
            for _ in range(shape.num_layers)
        ]
        self._norm = ones
        self._head = weight(shape.vocab_size, hidden)
        pool = (2, shape.num_layers, num_slots, shape.num_kv_heads, shape.head_dim)
        self.pool = torch.empty(pool, dtype=HALF, device=device).normal_()
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        angles = torch.arange(1 << 14, dtype=torch.float64)[:, None] * 500000.0**-exponents
        self._table = torch.cat((angles.cos(), angles.sin()), dim=1).float().to(device)

    def logits(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        work: WorkTensors,
        backend: Backend,
    ) -> Tensor:
        """token_ids, positions, slots: [T] int32 -> [T, V] bfloat16."""
        x = functional.embedding(token_ids, self._embedding)
        residual = torch.zeros_like(x)
        for idx, layer in enumerate(self._layers):
            normed = add_rms_norm(x, residual, layer.attention_norm, 1e-5, backend=backend)
            qkv = functional.linear(normed, layer.qkv)
            k_pool, v_pool = self.pool[0, idx], self.pool[1, idx]
            q = rotate_and_write(
                qkv,
                slots,
                k_pool,
                v_pool,
                table=self._table,
                positions=positions,
                backend=backend,
            )
            out = attend(q, k_pool, v_pool, work, scale=self.heads.head_dim**-0.5, backend=backend)
            x = functional.linear(out.flatten(1), layer.output)
            normed = add_rms_norm(x, residual, layer.mlp_norm, 1e-5, backend=backend)
            gated = gated_activation(functional.linear(normed, layer.gate_up), backend=backend)
            x = functional.linear(gated, layer.down)
        normed = add_rms_norm(x, residual, self._norm, 1e-5, backend=backend)
        return functional.linear(normed, self._head)


class DecodeBatch:
    """`batch` branches of `length` cached tokens, of which the first `prefix` may be shared."""

    def __init__(
        self, model: DummyLlama, batch: int, length: int, *, prefix: int = 0, share: bool = True
    ) -> None:
        device = model.pool.device
        self.model = model
        self._own = -(-(length - prefix + ROOM) // BLOCK)  # blocks
        self._num_prefix = prefix // BLOCK
        self._share = share and prefix > 0
        self.lengths = [length] * batch
        self.token_ids = torch.zeros(batch, dtype=torch.int32, device=device)
        self.positions = torch.zeros(batch, dtype=torch.int32, device=device)
        self.slots = torch.zeros(batch, dtype=torch.int32, device=device)
        self._staging = torch.zeros(2, batch, dtype=torch.int32, pin_memory=device.type == "cuda")
        shape = model.shape
        self.work = WorkTensors(
            self._capacity(),
            num_heads=shape.num_q_heads,
            head_dim=shape.head_dim,
            device=device,
        )
        self.params = ChoiceParams(
            temperatures=torch.zeros(batch, device=device),
            uniforms=torch.zeros(batch, device=device),
        )
        self.load(self.plan())

    @staticmethod
    def num_slots(batch: int, length: int, prefix: int = 0) -> int:
        return (prefix // BLOCK + batch * -(-(length - prefix + ROOM) // BLOCK)) * BLOCK

    def plan(self) -> WorkList:
        prefix = self._num_prefix * BLOCK
        runs = [QueryRun(length, 1) for length in self.lengths]
        shared, tails = [], []
        if self._share:
            shared = [KeyStretch(0, [(0, prefix)], list(range(len(runs))))]
        for idx, length in enumerate(self.lengths):
            own = (self._first_slot(idx), length + 1 - prefix)
            ranges = [own] if self._share or not prefix else [(0, prefix), own]
            tails.append(KeyStretch(prefix if self._share else 0, ranges))
        return plan_work(
            runs, shared, tails, heads=self.model.heads, block_size=BLOCK, rates=DeviceRates()
        )

    def _capacity(self) -> WorkCapacity:
        """For all steps until the branches have no more room."""
        now = WorkCapacity.of(self.plan())
        lengths = self.lengths
        self.lengths = [length + ROOM - 1 for length in lengths]
        later = WorkCapacity.of(self.plan())
        self.lengths = lengths
        names = WorkCapacity.__dataclass_fields__
        return WorkCapacity(
            **{name: max(getattr(now, name), getattr(later, name)) for name in names}
        )

    def load(self, work: WorkList) -> None:
        """Everything that a step needs from the host: two copies from pinned memory."""
        staged = self._staging.numpy()
        prefix = self._num_prefix * BLOCK
        staged[0] = self.lengths
        staged[1] = [
            self._first_slot(idx) + length - prefix for idx, length in enumerate(self.lengths)
        ]
        self.positions.copy_(self._staging[0], non_blocking=True)
        self.slots.copy_(self._staging[1], non_blocking=True)
        self.work.load(work)

    def step(self, backend: Backend = "triton", masks: TokenMasks | None = None) -> Tensor:
        """The logits; the tokens go to `token_ids`, ready for the next step."""
        logits = self.model.logits(self.token_ids, self.positions, self.slots, self.work, backend)
        self.token_ids.copy_(choose_tokens(logits, self.params, masks, backend=backend).tokens)
        return logits

    def _first_slot(self, idx: int) -> int:
        return (self._num_prefix + idx * self._own) * BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSizes:
    """What is measured, on a GPU and, to try the script, on a CPU."""

    shape: ModelShape
    batches: tuple[int, ...]
    length: int  # tokens of context
    branches: tuple[int, ...]
    prefix: int  # tokens that branches share

    @classmethod
    def of(cls, session: Session) -> "DecodeSizes":
        if not session.is_timed:
            return cls(shape=TINY, batches=(1, 2), length=20, branches=(4, 8), prefix=32)
        sizes = (1, 8, 64, 256)
        return cls(shape=LLAMA_8B, batches=sizes, length=1024, branches=(64, 256), prefix=4096)


def check_greedy(session: Session) -> None:
    """Several steps by kernels and by the torch twins, fed the same tokens."""
    shape = LLAMA_1B if session.is_timed else TINY
    batch, length, num_steps = (8, 300, 16) if session.is_timed else (3, 20, 2)
    slots = DecodeBatch.num_slots(batch, length, 0)
    model = DummyLlama(shape, slots, session.device)
    runs = [DecodeBatch(model, batch, length) for _ in range(2)]
    pool = model.pool.clone()
    worst, disagreed = 0.0, 0
    for _ in range(num_steps):
        tokens = runs[0].token_ids.clone()
        results = []
        for run, backend in zip(runs, ("triton", "torch"), strict=True):
            run.token_ids.copy_(tokens)
            run.load(run.plan())
            model.pool.copy_(pool)
            results.append((run.step(backend).float(), run.token_ids.clone()))
            run.lengths = [length + 1 for length in run.lengths]
        pool.copy_(model.pool)
        (logits, chosen), (expected, others) = results
        error = (logits - expected).abs().amax(1)
        worst = max(worst, float((error / expected.abs().amax(1)).max()))
        top = expected.topk(2, dim=1).values
        is_clear = top[:, 0] - top[:, 1] > 2 * error
        disagreed += int(((chosen != others) & is_clear).sum())
    session.add(
        Check(
            name=f"greedy decoding of {shape.name}, {num_steps} steps of {batch}",
            error=worst if disagreed == 0 else float("nan"),
            tolerance=3e-2,
            note=f"{disagreed} clear choices differ",
        )
    )


def measure_decoding(session: Session) -> None:
    """Tokens per second of 8B beside the bound; then branches over one prefix, and masks."""
    sizes = DecodeSizes.of(session)
    device = measured_device(session)
    num_slots = max(
        DecodeBatch.num_slots(max(sizes.batches), sizes.length),
        DecodeBatch.num_slots(max(sizes.branches), sizes.prefix + 64, sizes.prefix),
    )
    model = DummyLlama(sizes.shape, num_slots, session.device)
    for batch in sizes.batches:
        run = DecodeBatch(model, batch, sizes.length)
        step_s, host_s = _time_step(session, run)
        load = Workload(batch=batch, context_len=sizes.length)
        bound_s = decode_bound(sizes.shape, load, device).total_s
        session.add_row(
            f"decode {sizes.shape.name}, {sizes.length} tokens of context",
            batch=batch,
            step_ms=step_s * 1e3,
            tokens_per_s=batch / step_s,
            bound_ms=bound_s * 1e3,
            share_of_bound=bound_s / step_s,
            host_ms=host_s * 1e3,
            host_share=host_s / step_s,
        )
    for batch in sizes.branches:
        _measure_sharing(session, model, batch, sizes.prefix)
    _measure_masks(session, model, max(sizes.branches) // 4, sizes.length)


def _measure_sharing(session: Session, model: DummyLlama, batch: int, prefix: int) -> None:
    times = [
        _time_step(session, DecodeBatch(model, batch, prefix + 64, prefix=prefix, share=share))[0]
        for share in (True, False)
    ]
    session.add_row(
        f"branches of {model.shape.name} over {prefix} tokens",
        branches=batch,
        shared_ms=times[0] * 1e3,
        apart_ms=times[1] * 1e3,
        gain=times[1] / times[0],
    )


def _time_step(
    session: Session, run: DecodeBatch, masks: TokenMasks | None = None
) -> tuple[float, float]:
    """Seconds of a step on the device, and of the host's part: plan, load, launch."""
    backend: Backend = "triton" if session.is_timed else "torch"
    replays, loads = (12, 5) if session.is_timed else (1, 1)
    graph = capture(lambda: run.step(backend, masks))
    times = sorted(elapsed_s(graph.replay) for _ in range(replays))
    begin = time.perf_counter()
    for _ in range(loads):
        run.load(run.plan())
        graph.replay()
    host_s = (time.perf_counter() - begin) / loads
    session.synchronize()
    return times[len(times) // 2], min(host_s, _host_alone_s(session, run))


def _host_alone_s(session: Session, run: DecodeBatch) -> float:
    """The host's part without a launch, which may wait for the device."""
    session.synchronize()
    begin = time.perf_counter()
    run.load(run.plan())
    return time.perf_counter() - begin


def _measure_masks(session: Session, model: DummyLlama, batch: int, length: int) -> None:
    vocab = model.shape.vocab_size
    run = DecodeBatch(model, batch, length)
    rng = np.random.default_rng(0)
    words = rng.integers(-(1 << 31), 1 << 31, (batch, -(-vocab // 32)), dtype=np.int32)
    pinned = torch.from_numpy(words)
    pinned = pinned.pin_memory() if session.is_timed else pinned
    on_device = pinned.to(session.device)
    rows = torch.arange(batch, device=session.device).int()
    plain_s, _ = _time_step(session, run)
    masked_s, _ = _time_step(session, run, TokenMasks(on_device, rows))
    copy_s = min(elapsed_s(lambda: on_device.copy_(pinned, non_blocking=True)) for _ in range(5))
    session.add_row(
        f"masks of {model.shape.name}, {batch} rows",
        step_ms=plain_s * 1e3,
        masked_step_ms=masked_s * 1e3,
        extra=masked_s / plain_s - 1,
        copy_us=copy_s * 1e6,
    )
