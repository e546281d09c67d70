"""Which unleased leaf goes next: outputs before prompts, among each the least recently used.

Entries are never taken out of the heap when a leaf is used again, but skipped when they come up: a
leaf that was used again has a later `last_use`, by a counter, not a clock.
"""

import heapq

from umbel.radix_cache.node import Node


class EvictionQueue:
    """A lazy heap of leaves, O(log n) a push; at most two entries a node, and 64."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Node]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, node: Node, num_nodes: int) -> None:
        """Add a leaf that has just become evictable; `num_nodes` is the size of the whole tree."""
        heapq.heappush(self._heap, (node.kind, node.last_use, node.id, node))
        if len(self._heap) > 2 * num_nodes + 64:
            self._heap = list(
                {entry[2]: entry for entry in self._heap if _is_valid(entry)}.values()
            )
            heapq.heapify(self._heap)

    def peek(self) -> Node | None:
        """The leaf to evict next, left in the queue; None when there is none."""
        while self._heap:
            if _is_valid(self._heap[0]):
                return self._heap[0][3]
            heapq.heappop(self._heap)
        return None

    def nodes(self) -> set[Node]:
        """All leaves that can be evicted."""
        return {entry[3] for entry in self._heap if _is_valid(entry)}


def _is_valid(entry: tuple[int, int, int, Node]) -> bool:
    node = entry[3]
    is_removed = node.parent is None
    return not (is_removed or node.children or node.is_leased) and node.last_use == entry[1]
