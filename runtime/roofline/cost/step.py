"""The work of one step and the least time it takes: the heart of the planner and of the gauge."""

from collections.abc import Callable, Iterable

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline.cost.sharing import tree_kv_tokens
from umbel.runtime.roofline.cost.weights import (
    effective_flops,
    kv_bytes_per_token,
    streamed_weight_bytes,
)
from umbel.runtime.roofline.records import (
    Device,
    ModelShape,
    StepBound,
    StepWork,
    Workload,
    above_zero,
    at_least,
    dtype_bytes,
)


def attention_flops(shape: ModelShape, num_pairs: float) -> float:
    """FLOPs of scores and weighted sums for `num_pairs` (row, visible token) pairs.

    Formula: FLOP_attn = 4 n_l n_q D pairs
    """
    at_least("num_pairs", num_pairs, 0)
    return 4.0 * shape.num_layers * shape.num_q_heads * shape.head_dim * num_pairs


def linear_flops(shape: ModelShape, rows: float, logits_rows: float) -> float:
    """FLOPs of all projections; the head only for rows whose logits are wanted.

    Formula: FLOP_lin = 2 (P_step - P_head) rows + 2 P_head logits_rows
    """
    at_least("rows", rows, 0)
    at_least("logits_rows", logits_rows, 0)
    body = shape.num_streamed_parameters - shape.num_head_parameters
    return 2.0 * (body * rows + shape.num_head_parameters * logits_rows)


def causal_pairs(start: int, num_tokens: int, *, window: int | None = None) -> float:
    """(row, visible token) pairs of a run whose first row is at position `start`, in a layer that
    sees at most `window` tokens back, the row's own included.

    Formula: pairs = n start + n (n + 1) / 2; rows past a window see only that
    """
    at_least("start", start, 0)
    at_least("num_tokens", num_tokens, 0)
    if window is not None:
        growing = min(num_tokens, max(0, window - start))
        return _all_pairs(start, growing) + (num_tokens - growing) * window
    return _all_pairs(start, num_tokens)


def _all_pairs(start: int, num_tokens: int) -> float:
    return num_tokens * start + num_tokens * (num_tokens + 1) / 2


def mean_pairs(shape: ModelShape, start: int, num_tokens: int) -> float:
    """`causal_pairs`, averaged over the layers' windows.

    Formula: sum over layers of causal pairs / n_l
    """
    return _layer_mean(shape, lambda window: causal_pairs(start, num_tokens, window=window))


def total_pairs(shape: ModelShape, runs: Iterable[tuple[int, int]]) -> float:
    """`mean_pairs` of all runs of a step, each given as (start, rows).

    Formula: sum over runs of mean pairs
    """
    if not shape.windows:  # once a step for each run, so the usual case is short
        return sum([_all_pairs(start, num_tokens) for start, num_tokens in runs])
    return sum([mean_pairs(shape, start, num_tokens) for start, num_tokens in runs])


def total_kv_tokens(shape: ModelShape, stretches: Iterable[tuple[int, int, int]]) -> float:
    """Tokens of KV in the stretches of an attention plan, averaged over the layers' windows. Each
    is given as (position, tokens, position of the first row that reads it); a layer with a window
    needs of it only what that row still sees.

    Formula: sum over stretches and layers of tokens after (first row - window) / n_l
    """
    if not shape.windows:
        return sum([num_tokens for _, num_tokens, _ in stretches])
    return sum([_layer_mean(shape, _visible(*stretch)) for stretch in stretches])


def _visible(position: int, num_tokens: int, first_row: int) -> Callable[[int | None], float]:
    def visible(window: int | None) -> float:
        if window is None:
            return num_tokens
        return min(num_tokens, max(0, position + num_tokens - 1 - (first_row - window)))

    return visible


def mean_kv_tokens(shape: ModelShape, workload: Workload) -> float:
    """Tokens of KV that a step reads, averaged over the layers' windows.

    Formula: (ceil(B / fan_out) L_s + B L_u), each layer within its window
    """
    return _layer_mean(shape, lambda window: tree_kv_tokens(workload.within(window)))


def mean_context(shape: ModelShape, workload: Workload) -> float:
    """Tokens that a row sees, averaged over the layers' windows.

    Formula: sum over layers of min(L, window) / n_l
    """
    return _layer_mean(shape, lambda window: workload.within(window).context_len)


def _layer_mean(shape: ModelShape, of_window: Callable[[int | None], float]) -> float:
    counts = shape.window_counts
    return sum(of_window(window) * count for window, count in counts.items()) / shape.num_layers


def step_work(
    shape: ModelShape,
    *,
    rows: int,
    logits_rows: int,
    kv_tokens: float,
    num_pairs: float,
    dtype: str,
    kv_dtype: str,
    tensor_parallel: int = 1,
) -> StepWork:
    """Work of one step on one of `tensor_parallel` devices: the gauge's numerator.

    `kv_tokens`: tokens whose KV is read or written, a stretch read once for many rows counting
    once; `num_pairs`: (row, visible token) pairs. KV heads are duplicated when there are fewer
    than devices.

    Formula: per device W_step / t, kappa kv_tokens / min(t, n_kv), FLOP / t, all-reduce bytes
    """
    at_least("kv_tokens", kv_tokens, 0)
    at_least("tensor_parallel", tensor_parallel, 1)
    if rows == 0:
        return StepWork()
    streamed = streamed_weight_bytes(shape, dtype, with_head=logits_rows > 0)
    kv_bytes = kappa_share(shape, kv_dtype, tensor_parallel) * kv_tokens
    return StepWork(
        weight_bytes=streamed / tensor_parallel,
        kv_bytes=kv_bytes,
        linear_flops=linear_flops(shape, rows, logits_rows) / tensor_parallel,
        attention_flops=attention_flops(shape, num_pairs) / tensor_parallel,
        collective_bytes=collective_bytes(shape, rows, dtype, tensor_parallel),
        num_collectives=2 * shape.num_layers if tensor_parallel > 1 else 0,
    )


def kappa_share(shape: ModelShape, kv_dtype: str, tensor_parallel: int) -> float:
    """KV bytes per token on one device.

    Formula: kappa / min(t, n_kv)
    """
    return kv_bytes_per_token(shape, kv_dtype) / min(tensor_parallel, shape.num_kv_heads)


def collective_bytes(shape: ModelShape, rows: int, dtype: str, tensor_parallel: int) -> float:
    """Bytes that each device sends for the two all-reduces of every layer (activations of at
    least 16 bits).

    Formula: 2 n_l B d b_act 2 (t - 1) / t
    """
    at_least("tensor_parallel", tensor_parallel, 1)
    activation_bytes = max(dtype_bytes(dtype), dtype_bytes("bfloat16"))
    share = 2 * (tensor_parallel - 1) / tensor_parallel
    return 2 * shape.num_layers * rows * shape.hidden_size * activation_bytes * share


def step_bound(
    work: StepWork,
    device: Device,
    dtype: str,
    *,
    efficiency: float = 1.0,
    overhead_s: float = 0.0,
) -> StepBound:
    """Least time of a step with `work`, its arithmetic at `efficiency` of the peak. Raises for
    collectives on a device without an interconnect.

    Formula: t = max((W_step + KV) / BW, FLOP / F) + collectives / BW_link + t0
    """
    at_least("overhead_s", overhead_s, 0)
    collectives_s = work.num_collectives * device.collective_latency_s
    if work.collective_bytes:
        if device.interconnect_bandwidth is None:
            raise InvalidRequest(
                f"device {device.name!r} has no interconnect: expected tensor-parallel width 1, "
                "or a device file with interconnect_bandwidth",
                param="tp",
            )
        collectives_s += work.collective_bytes / device.interconnect_bandwidth
    return StepBound(
        weights_s=work.weight_bytes / device.bandwidth,
        kv_s=work.kv_bytes / device.bandwidth,
        flops_s=work.flops / effective_flops(device, dtype, efficiency),
        collectives_s=collectives_s,
        overhead_s=overhead_s,
    )


def decode_work(shape: ModelShape, workload: Workload, *, rows_per_branch: int = 1) -> StepWork:
    """Work of a decode step; `rows_per_branch` above one is the verification of a draft.

    Formula: KV tokens = shared-prefix sum; pairs = B L rows_per_branch
    """
    rows = workload.batch * rows_per_branch
    return step_work(
        shape,
        rows=rows,
        logits_rows=rows,
        kv_tokens=mean_kv_tokens(shape, workload),
        num_pairs=rows * mean_context(shape, workload),
        dtype=workload.dtype,
        kv_dtype=workload.kv_dtype,
        tensor_parallel=workload.tensor_parallel,
    )


def mixed_work(
    shape: ModelShape, workload: Workload, *, chunk: int, chunk_pairs: float
) -> StepWork:
    """Work of a decode step that also carries `chunk` rows of prompts, with `chunk_pairs` (row,
    visible token) pairs. The KV that they read is not counted: it may be the shared prefix. One of
    them wants logits.

    Formula: rows = B + c; KV tokens = shared-prefix sum; pairs = B L + pairs of the chunk
    """
    return step_work(
        shape,
        rows=workload.batch + chunk,
        logits_rows=workload.batch + min(chunk, 1),
        kv_tokens=mean_kv_tokens(shape, workload),
        num_pairs=workload.batch * mean_context(shape, workload) + chunk_pairs,
        dtype=workload.dtype,
        kv_dtype=workload.kv_dtype,
        tensor_parallel=workload.tensor_parallel,
    )


def decode_bound(
    shape: ModelShape, workload: Workload, device: Device, *, overhead_s: float = 0.0
) -> StepBound:
    """Least time of a decode step: one new token for each of the batch's rows.

    Formula: t = max((W_step + kappa sum L) / BW, (2 P B + 4 n_l n_q D sum L) / F) + links + t0
    """
    work = decode_work(shape, workload)
    return step_bound(work, device, workload.dtype, overhead_s=overhead_s)


def tokens_per_s(batch: int, step_s: float) -> float:
    """Output tokens per second. Raises for a step of no time.

    Formula: tok/s = B / t
    """
    above_zero("step_s", step_s)
    return batch / step_s


def launch_floor_s(num_kernels: int, launch_s: float) -> float:
    """Least host time of a step whose kernels are launched one by one, without graphs.

    Formula: t0 >= kernels t_launch
    """
    return num_kernels * launch_s


def half_fixed_rows(fixed_s: float, marginal_s: float) -> float:
    """Rows at which a measured step t(n) = fixed + marginal n is half fixed cost.

    Formula: n = t_fixed / t_marginal
    """
    above_zero("marginal_s", marginal_s)
    return fixed_s / marginal_s
