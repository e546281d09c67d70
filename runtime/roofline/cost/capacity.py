"""What fits: rows in memory, waste of pages, and the side traffic of masks and logits."""

import math

from umbel.runtime.errors import InvalidRequest
from umbel.runtime.roofline.cost.step import kappa_share, mean_context
from umbel.runtime.roofline.cost.weights import streamed_weight_bytes, weight_bytes
from umbel.runtime.roofline.records import Device, ModelShape, Workload, above_zero, at_least

MASK_WORD_BITS = 32


def kv_equals_weights_batch(shape: ModelShape, workload: Workload) -> float:
    """Rows at which a step reads as many bytes of KV as of weights, nothing being shared.

    Formula: B = W_step / (kappa L)
    """
    above_zero("context_len", workload.context_len)
    weights = streamed_weight_bytes(shape, workload.dtype) / workload.tensor_parallel
    per_token = kappa_share(shape, workload.kv_dtype, workload.tensor_parallel)
    return weights / (per_token * mean_context(shape, workload))


def free_memory_bytes(
    shape: ModelShape,
    workload: Workload,
    device: Device,
    *,
    memory_use: float,
    reserved_bytes: float,
) -> float:
    """Bytes left for KV on one device (negative: the weights do not fit).

    Formula: u M - W / t - A
    """
    at_least("reserved_bytes", reserved_bytes, 0)
    if not 0 < memory_use <= 1:
        raise InvalidRequest(
            f"memory_use={memory_use!r} is not valid: expected a share above 0, up to 1",
            param="memory_use",
        )
    weights = weight_bytes(shape, workload.dtype) / workload.tensor_parallel
    return memory_use * device.memory_bytes - weights - reserved_bytes


def max_batch(shape: ModelShape, workload: Workload, free_bytes: float) -> int:
    """Rows whose KV fits into `free_bytes` of each device, a shared prefix being stored once per
    group.

    Formula: B_max = floor((u M - W - A) / (kappa L)); shared: groups of kappa (L_s + fan_out L_u)
    """
    above_zero("context_len", workload.context_len)
    per_token = kappa_share(shape, workload.kv_dtype, workload.tensor_parallel)
    tokens = math.floor(max(free_bytes, 0) / per_token)
    prefix, own = workload.shared_prefix_len, workload.own_len
    if workload.fan_out is None:
        return max(0, tokens - prefix) // own
    groups, rest = divmod(tokens, prefix + workload.fan_out * own)
    return groups * workload.fan_out + max(0, rest - prefix) // own


def page_waste_tokens(live_rows: int, block_size: int) -> float:
    """Expected slots left unused at the ends of the rows' last blocks.

    Formula: rows (p - 1) / 2
    """
    at_least("block_size", block_size, 1)
    return live_rows * (block_size - 1) / 2


def mask_bytes(batch: int, vocab_size: int) -> int:
    """Bytes of the packed token masks of a step.

    Formula: B ceil(V / 32) 4
    """
    return batch * math.ceil(vocab_size / MASK_WORD_BITS) * (MASK_WORD_BITS // 8)


def logits_bytes(batch: int, vocab_size: int) -> int:
    """Bytes of a step's float32 logits.

    Formula: B V 4
    """
    return batch * vocab_size * 4
