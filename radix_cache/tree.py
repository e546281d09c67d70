"""The radix cache: leases on token paths, copy-on-write of tail blocks, eviction. Called by the scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from umbel.radix_cache.node import Namespace, SlotRange, TokenKind

__all__ = [
    "AppendOutcome",
    "AppendResult",
    "BlockCopy",
    "CacheStats",
    "Lease",
    "Namespace",
    "NodeView",
    "RadixCache",
    "RadixInvariantError",
    "TokenKind",
]


class RadixInvariantError(Exception):
    """`check()` found a broken invariant; the message names it."""


class AppendOutcome(Enum):
    """What became of an append; all but OK left the path as it was."""

    OK = "ok"
    NO_BLOCKS = "no_blocks"
    PENDING_COPY = "pending_copy"


@dataclass(slots=True)
class BlockCopy:
    """Copy the first `num_tokens` slots of block `src` to block `dst`, for all layers.

    Copies of a step are done in the order in which they were handed out, before its first write.
    """

    src: int
    dst: int
    num_tokens: int


@dataclass(slots=True)
class AppendResult:
    outcome: AppendOutcome
    copies: list[BlockCopy] = field(default_factory=list)


@dataclass(slots=True)
class NodeView:
    """One node, for drawing the tree."""

    id: int
    parent: int | None
    namespace: Namespace
    start: int
    tokens: list[int]
    blocks: list[int]
    kind: TokenKind
    num_leases: int  # leases that end in this node


@dataclass(slots=True)
class CacheStats:
    """Counts at one moment; the totals only grow."""

    num_blocks: int
    num_free_blocks: int
    num_leased_blocks: int
    num_cached_blocks: int
    num_nodes: int
    num_namespaces: int
    num_pins: int
    total_hit_tokens: int  # passed by advance()
    total_new_tokens: int  # appended
    total_copies: int
    total_evicted_blocks: int
    total_refused: int  # appends that ended in NO_BLOCKS


class Lease:
    """The counted right to read the blocks of one path; the only way to keep them."""

    num_tokens: int

    def advance(self, tokens: Sequence[int], start: int, stop: int) -> int:
        raise NotImplementedError

    def append(
        self, tokens: Sequence[int], start: int, stop: int, *, kind: TokenKind
    ) -> AppendResult:
        raise NotImplementedError

    def fork(self) -> "Lease":
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError

    def truncate(self, num_tokens: int) -> None:
        raise NotImplementedError

    def block_table(self) -> list[int]:
        raise NotImplementedError

    def slots(self, start: int, stop: int) -> list[int]:
        raise NotImplementedError

    def slot_ranges(self, start: int, stop: int) -> list[SlotRange]:
        raise NotImplementedError


class RadixCache:
    """Prefix cache over a pool of `num_blocks` blocks of `block_size` tokens."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_reuse: bool = True) -> None:
        raise NotImplementedError

    def lease(self, namespace: Namespace) -> Lease:
        raise NotImplementedError

    def commit_step(self) -> None:
        raise NotImplementedError

    def discard_step(self) -> None:
        raise NotImplementedError

    @property
    def num_free_blocks(self) -> int:
        raise NotImplementedError

    @property
    def num_leased_blocks(self) -> int:
        raise NotImplementedError

    @property
    def num_cached_blocks(self) -> int:
        raise NotImplementedError

    def evict(self, num_blocks: int) -> int:
        raise NotImplementedError

    def clear(self) -> int:
        raise NotImplementedError

    def pin(self, lease: Lease, until_s: float, now_s: float) -> None:
        raise NotImplementedError

    def expire_pins(self, now_s: float) -> int:
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    def stats(self) -> CacheStats:
        raise NotImplementedError

    def snapshot(self) -> list[NodeView]:
        raise NotImplementedError
