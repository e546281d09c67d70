"""Prefill, chunks that keep a latency target, rows in flight, price."""

import math
from collections.abc import Callable

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline.cost.step import attention_flops, linear_flops, mean_pairs
from umbel.runtime.roofline.cost.weights import effective_flops, kv_bytes_per_token
from umbel.runtime.roofline.records import Device, ModelShape, PreemptCost, above_zero, at_least

MAX_FIXED_POINT_ROUNDS = 10_000
TOO_MANY_ROWS = 1e12  # an iteration past this has no fixed point


def prefill_flops(
    shape: ModelShape, num_tokens: int, *, cached: int = 0, logits_rows: int | None = None
) -> float:
    """FLOPs to compute a prompt whose first `cached` tokens are there already.

    `logits_rows=None`: the head is computed for every token (the usual estimate).
    Formula: FLOP = 2 P S + 2 n_l n_q D S^2 (head for wanted rows only; less the cached part)
    """
    if not 0 <= cached <= num_tokens:
        raise InvalidRequest(
            f"cached={cached} is not valid: expected 0 to num_tokens={num_tokens}", param="cached"
        )
    rows = num_tokens - cached
    logits = rows if logits_rows is None else min(logits_rows, rows)
    return linear_flops(shape, rows, logits) + attention_flops(
        shape, mean_pairs(shape, cached, rows)
    )


def prefill_s(
    flops: float, device: Device, dtype: str, *, efficiency: float = 1.0, devices: int = 1
) -> float:
    """Seconds for `flops` at `efficiency` of the peak of `devices` devices.

    Formula: T_prefill = FLOP / (e F devices)
    """
    return flops / (effective_flops(device, dtype, efficiency) * devices)


def linear_equals_attention_len(shape: ModelShape) -> float:
    """Prompt length at which causal attention costs as many FLOPs as the projections.

    Formula: S = P / (n_l n_q D)
    """
    return shape.num_streamed_parameters / (shape.num_layers * shape.num_q_heads * shape.head_dim)


def chunk_for_step_s(shape: ModelShape, step_s: float, decode_rows: int, flops_per_s: float) -> int:
    """Largest prefill chunk beside `decode_rows` in a step of `step_s` (the chunk's attention
    neglected); valid if the memory side of the step is below `step_s`. Zero or less: no chunk
    fits.

    Formula: c = floor(T F_eff / (2 P)) - B
    """
    above_zero("step_s", step_s)
    above_zero("flops_per_s", flops_per_s)
    return math.floor(step_s * flops_per_s / (2 * shape.num_streamed_parameters)) - decode_rows


def free_chunk(knee_flops_per_byte: float, decode_rows: int, element_bytes: float) -> int:
    """Prefill rows that ride along while the step stays limited by the weights' bytes: no slow-
    down.

    Formula: c = floor(I b / 2) - B
    """
    return max(0, math.floor(knee_flops_per_byte * element_bytes / 2) - decode_rows)


def prefill_tokens_per_step(batch: int, num_prompt: int, num_output: int) -> float:
    """Prompt tokens that each step must prefill on average so that `batch` rows stay busy, when a
    request leaves after `num_output` steps and the next one brings `num_prompt` uncached tokens.

    Formula: c >= B S / n_out
    """
    at_least("num_output", num_output, 1)
    return batch * num_prompt / num_output


def rows_in_flight(
    rate_per_s: float, prefill_time_s: float, num_output: int, step_time_s: Callable[[float], float]
) -> float | None:
    """Little's law: rows that live at once at an arrival rate, a step's time depending on the rows.

    None when there is no fixed point: the rate is more than the device can serve.
    Formula: B = rate (T_prefill + n_out t(B))
    """
    at_least("rate_per_s", rate_per_s, 0)
    rows = 0.0
    for _ in range(MAX_FIXED_POINT_ROUNDS):
        following = rate_per_s * (prefill_time_s + num_output * step_time_s(rows))
        # From below the iteration rises monotonically; a bound on rows is a bound on the fixed
        # point.
        if math.isclose(following, rows, rel_tol=1e-9) or following == rows:
            return following
        rows = following
        if rows > TOO_MANY_ROWS:
            return None
    return None


def device_seconds_per_request(
    prefill_time_s: float, num_output: int, step_s: float, batch: int
) -> float:
    """Device time that one request uses: its prefill, and its share of the decode steps.

    Formula: T = T_prefill + n_out t / B
    """
    at_least("batch", batch, 1)
    return prefill_time_s + num_output * step_s / batch


def price_per_million(price_per_hour: float, seconds: float, num_tokens: float) -> float:
    """Price of a million tokens when `num_tokens` take `seconds`.

    Formula: price / 3600 seconds / tokens 1e6
    """
    at_least("price_per_hour", price_per_hour, 0)
    above_zero("num_tokens", num_tokens)
    return price_per_hour / 3600 * seconds / num_tokens * 1e6


# Moving KV instead of computing it


def load_pays_bandwidth(shape: ModelShape, kv_dtype: str, flops_per_s: float) -> float:
    """Bytes/s of a link above which loading a cached prefix beats recomputing it.

    Formula: BW_link > kappa F_eff / (2 P)
    """
    above_zero("flops_per_s", flops_per_s)
    kappa = kv_bytes_per_token(shape, kv_dtype)
    return kappa * flops_per_s / (2 * shape.num_streamed_parameters)


def transfer_s(num_bytes: float, bandwidth: float) -> float:
    """Seconds to move KV, as from a prefill device to a decode device.

    Formula: t = kappa S / BW_net
    """
    above_zero("bandwidth", bandwidth)
    return num_bytes / bandwidth


def preempt_cost(
    shape: ModelShape,
    num_tokens: int,
    kv_dtype: str,
    flops_per_s: float,
    *,
    link_bandwidth: float | None,
    cached: int = 0,
) -> PreemptCost:
    """Cost of preempting a request of `num_tokens`, `cached` of which stay in the cache: compute
    the rest again, or swap it out and in over `link_bandwidth`.

    Formula: recompute = FLOP(S, cached) / F_eff; swap = 2 kappa (S - cached) / BW_link
    """
    above_zero("flops_per_s", flops_per_s)
    flops = prefill_flops(shape, num_tokens, cached=cached)
    swap_s = None
    if link_bandwidth is not None:
        moved = 2 * kv_bytes_per_token(shape, kv_dtype) * (num_tokens - cached)
        swap_s = transfer_s(moved, link_bandwidth)
    return PreemptCost(recompute_s=flops / flops_per_s, swap_s=swap_s)
