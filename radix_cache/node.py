"""The node of the radix tree and the plain values that describe its memory.

A node is a run of tokens and the blocks that hold them. Block `k` of a path holds positions
`[k * block_size, (k + 1) * block_size)`, so a node's first block may also hold its parent's tail.
"""

from dataclasses import dataclass
from enum import IntEnum


class TokenKind(IntEnum):
    """Who made the tokens; the lower value is evicted first."""

    OUTPUT = 0
    PROMPT = 1


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must be equal before two requests may share KV: nothing crosses a namespace."""

    model: str
    adapter: str | None = None
    tenant: str | None = None


@dataclass(slots=True)
class SlotRange:
    """Slots `start .. start + length - 1` of the pool."""

    start: int
    length: int
