"""What a shared prefix saves, and when splitting attention at a shared segment pays.

In tokens of KV wherever possible: a token's bytes are `kv_bytes_per_token`. The attention plan's
rule works per KV head and layer, in bytes, because partial results and tiles count there.
"""

import math
from collections.abc import Iterable

from umbel.runtime.roofline.records import Workload, above_zero, at_least

PARTIAL_ELEMENT_BYTES = 4  # partial results are kept in float32
PARTIAL_TRIPS = 2  # each is written once and read once


def flat_kv_tokens(workload: Workload) -> int:
    """Tokens of KV that a step reads when every row reads its whole context.

    Formula: B (L_s + L_u)
    """
    return workload.batch * workload.context_len


def tree_kv_tokens(workload: Workload) -> int:
    """Tokens of KV that a step reads when each shared prefix is read once.

    Formula: ceil(B / fan_out) L_s + B L_u
    """
    return workload.num_prefixes * workload.shared_prefix_len + workload.batch * workload.own_len


def sharing_ratio(workload: Workload) -> float:
    """How many times fewer KV bytes sharing reads, which is also the gain in capacity.

    Formula: B (L_s + L_u) / (ceil(B / fan_out) L_s + B L_u)
    """
    above_zero("context_len", workload.context_len)
    return flat_kv_tokens(workload) / tree_kv_tokens(workload)


def saved_kv_tokens(segments: Iterable[tuple[int, int]]) -> int:
    """Token reads saved by an attention plan's segments, each given as (tokens, rows that read it).

    Formula: sum (rows - 1) tokens
    """
    return sum((rows - 1) * tokens for tokens, rows in segments)


def shared_attention_knee_rows(
    group_size: int, element_bytes: float, knee_flops_per_byte: float
) -> int:
    """Rows on one shared prefix from which its attention is limited by arithmetic.

    Formula: n g 2 / b >= I
    """
    at_least("group_size", group_size, 1)
    return math.ceil(knee_flops_per_byte * element_bytes / (2 * group_size))


def attention_item_bytes(
    rows: int, tokens: int, *, group_size: int, head_dim: int, element_bytes: float, tile_rows: int
) -> float:
    """KV bytes per KV head and layer that a kernel with tiles of `tile_rows` query rows reads for
    `rows` rows over `tokens` tokens: once per tile.

    Formula: R(n, L) = ceil(n g / M) L 2 D b
    """
    at_least("tile_rows", tile_rows, 1)
    tiles = math.ceil(rows * group_size / tile_rows)
    return tiles * tokens * 2 * head_dim * element_bytes


def partial_result_bytes(rows: int, *, group_size: int, head_dim: int) -> int:
    """Bytes per KV head and layer of one extra partial result (output and log-sum-exp) of `rows`
    rows.

    Formula: X(n) = n g (D + 1) 4 2
    """
    return rows * group_size * (head_dim + 1) * PARTIAL_ELEMENT_BYTES * PARTIAL_TRIPS


def split_saves_bytes(
    rows: int, tokens: int, *, group_size: int, head_dim: int, element_bytes: float, tile_rows: int
) -> float:
    """Bytes per KV head and layer saved by reading a segment once for `rows` rows instead of once
    for each, after paying for the partial results. Positive: splitting the segment off pays.

    Formula: n R(1, L) - R(n, L) - X(n)
    """
    apart = rows * attention_item_bytes(
        1,
        tokens,
        group_size=group_size,
        head_dim=head_dim,
        element_bytes=element_bytes,
        tile_rows=tile_rows,
    )
    together = attention_item_bytes(
        rows,
        tokens,
        group_size=group_size,
        head_dim=head_dim,
        element_bytes=element_bytes,
        tile_rows=tile_rows,
    )
    return apart - together - partial_result_bytes(rows, group_size=group_size, head_dim=head_dim)


def split_pays_len(
    rows: int, *, group_size: int, head_dim: int, element_bytes: float, tile_rows: int
) -> float | None:
    """Length in tokens from which splitting a segment off for `rows` rows pays; None: never.

    Formula: L* = n g (D + 1) 8 / ((n ceil(g / M) - ceil(n g / M)) 2 D b)
    """
    saved_per_token = split_saves_bytes(
        rows,
        1,
        group_size=group_size,
        head_dim=head_dim,
        element_bytes=element_bytes,
        tile_rows=tile_rows,
    )
    partials = partial_result_bytes(rows, group_size=group_size, head_dim=head_dim)
    saved_per_token += partials
    return partials / saved_per_token if saved_per_token > 0 else None


def partial_result_tokens(*, group_size: int, head_dim: int, element_bytes: float) -> float:
    """One extra partial result of one row, in tokens of KV whose reading costs as many bytes: the
    price per row of cutting a segment off, for a plan that counts in tokens.

    Formula: X(1) / (2 D b)
    """
    partials = partial_result_bytes(1, group_size=group_size, head_dim=head_dim)
    return partials / (2 * head_dim * element_bytes)
