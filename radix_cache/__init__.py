"""Prefix cache: KV blocks in a radix tree, leases on its paths, and the attention plan of a step.

Token ids and block ids only: no tensors, no clock, no I/O.
"""

from umbel.radix_cache.plan import (
    AttentionPlan,
    CutCost,
    RunSpan,
    Segment,
    SlotRange,
    Tail,
    plan_attention,
)
from umbel.radix_cache.tree import (
    AppendOutcome,
    AppendResult,
    BlockCopy,
    CacheStats,
    Lease,
    Namespace,
    NodeView,
    RadixCache,
    RadixInvariantError,
    TokenKind,
)

__all__ = [
    "AppendOutcome",
    "AppendResult",
    "AttentionPlan",
    "BlockCopy",
    "CacheStats",
    "CutCost",
    "Lease",
    "Namespace",
    "NodeView",
    "RadixCache",
    "RadixInvariantError",
    "RunSpan",
    "Segment",
    "SlotRange",
    "Tail",
    "TokenKind",
    "plan_attention",
]
