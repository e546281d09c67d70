"""The prefix cache as the scheduler sees it: leases on token paths, steps, eviction, pins, counts.

A step is everything between two calls of `commit_step`. Tokens appended in it are pending: others
may pass over them, because all KV of a step is written before it is read, but not copy them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from umbel.radix_cache.check import RadixInvariantError, check_forest
from umbel.radix_cache.forest import Forest
from umbel.radix_cache.lease import (
    AppendOutcome,
    AppendResult,
    BlockCopy,
    Lease,
    lease_known,
    match,
)
from umbel.radix_cache.node import Namespace, TokenKind
from umbel.radix_cache.pins import Pins

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


@dataclass(slots=True)
class NodeView:
    """One node, for drawing the tree."""

    id: int
    parent: int | None  # id of the parent; None: the root of a namespace, which has no tokens
    namespace: Namespace
    start: int  # position of the first token
    tokens: list[int]
    blocks: list[int]
    kind: TokenKind
    num_leases: int  # leases that end in this node, pins included


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
    num_pinned_tokens: int  # tokens of their paths, those that share counted each
    total_hit_tokens: int  # passed by advance()
    total_new_tokens: int  # appended
    total_copies: int
    total_evicted_blocks: int
    total_refused: int  # appends that ended in NO_BLOCKS
    total_dropped_pins: int  # given up for others


class RadixCache:
    """Prefix cache over a pool of `num_blocks` blocks of `block_size` tokens. Not thread-safe.

    Without reuse every lease makes a path of its own, which goes with its last lease; forks still
    share the path they were made from.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_reuse: bool = True) -> None:
        self._forest = Forest(num_blocks, block_size, enable_reuse=enable_reuse)
        self._pins = Pins()

    @property
    def num_blocks(self) -> int:
        return self._forest.pool.num_blocks

    @property
    def block_size(self) -> int:
        return self._forest.block_size

    @property
    def num_free_blocks(self) -> int:
        return self._forest.pool.num_free

    @property
    def num_leased_blocks(self) -> int:
        """Blocks under a lease or a pin: those that cannot be evicted."""
        return self._forest.num_leased_blocks

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that hold tokens nobody leases: all of them can be evicted."""
        return self._forest.num_cached_blocks

    def lease(self, namespace: Namespace) -> Lease:
        """An empty lease at the root of `namespace`."""
        return Lease(self._forest, self._forest.root(namespace), 0)

    def num_matched(self, tokens: Sequence[int], namespace: Namespace) -> int:
        """How many of `tokens` the tree has from the start on, pending ones included; always 0
        without reuse. Changes nothing.
        """
        root = self._forest.roots.get(namespace)
        if root is None or not self._forest.enable_reuse:
            return 0
        return match(root, tokens)

    def commit_step(self) -> None:
        """The KV of everything appended so far exists now. Call it before releasing leases."""
        for node in self._forest.pending:
            node.computed_end = node.end
        self._forest.pending.clear()

    def discard_step(self) -> None:
        """The step failed: every lease moves back to its last computed token, the rest vanishes."""
        for node in list(self._forest.pending):
            for lease in list(node.leases):
                lease.truncate(lease.num_tokens - lease.num_pending)
        assert not self._forest.pending, "pending tokens are covered by leases"

    def evict(self, num_blocks: int) -> int:
        """Free up to `num_blocks` blocks that nobody leases; returns how many."""
        return self._forest.evict(num_blocks)

    def clear(self) -> int:
        """Forget every token that nobody leases or pins; returns the number of freed blocks."""
        return self._forest.clear()

    def pin(self, pin_id: int, tokens: Sequence[int], namespace: Namespace) -> int:
        """Keep what the tree has of `tokens` from the start on, until `unpin(pin_id)`; returns how
        many tokens that are.

        Pending tokens are left out: a pin computes nothing, so it must not be what keeps them. A
        pin is dropped when the caller needs its blocks (`drop_pin`), or when there are `MAX_PINS`.
        """
        root = self._forest.roots.get(namespace)
        if root is None or not self._forest.enable_reuse:
            return 0
        lease = lease_known(self._forest, root, tokens)
        lease.truncate(lease.num_tokens - lease.num_pending)
        if lease.num_tokens == 0 or lease.node is None:
            lease.release()
            return 0
        self._forest.settle(lease.node)  # what stands after the path can be evicted
        self._pins.add(pin_id, lease)
        return lease.num_tokens

    def unpin(self, pin_id: int) -> None:
        """End a pin; nothing happens if it was dropped."""
        self._pins.remove(pin_id)

    def drop_pin(self) -> bool:
        """Give up the pin of the longest path, so that its blocks can be evicted; False if there is
        none.
        """
        return self._pins.drop()

    def unpin_all(self) -> None:
        self._pins.clear()

    def check(self) -> None:
        """Raises RadixInvariantError naming the first broken invariant. O(size of the trees)."""
        if not self._pins.all_hold():
            raise RadixInvariantError("a pin does not hold its path")
        check_forest(self._forest)

    def stats(self) -> CacheStats:
        forest = self._forest
        return CacheStats(
            num_blocks=self.num_blocks,
            num_free_blocks=self.num_free_blocks,
            num_leased_blocks=self.num_leased_blocks,
            num_cached_blocks=self.num_cached_blocks,
            num_nodes=forest.num_nodes,
            num_namespaces=len(forest.roots),
            num_pins=len(self._pins),
            num_pinned_tokens=self._pins.num_tokens,
            total_hit_tokens=forest.total_hit_tokens,
            total_new_tokens=forest.total_new_tokens,
            total_copies=forest.total_copies,
            total_evicted_blocks=forest.total_evicted_blocks,
            total_refused=forest.total_refused,
            total_dropped_pins=self._pins.total_dropped,
        )

    def snapshot(self) -> list[NodeView]:
        """Every node as plain data, roots included, parents before their children."""
        return [
            NodeView(
                id=node.id,
                parent=None if node.parent is None else node.parent.id,
                namespace=namespace,
                start=node.start,
                tokens=list(node.tokens),
                blocks=list(node.blocks),
                kind=node.kind,
                num_leases=len(node.leases),
            )
            for namespace, node in self._forest.nodes()
        ]
