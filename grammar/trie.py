"""The token vocabulary as a trie in flat numpy arrays: walked level by level, shared by all
constraints.

Nodes are numbered breadth first (the root is 0), so the children of a node are contiguous and
sorted by byte.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
_THIN_LEVEL = 300  # nodes


class TokenTrie:
    """Read-only trie over token bytes.

    byte: [N] uint8, the byte on the edge into a node; parent: [N] int64 (the root's is itself).
    child_start, child_count: [N] int32. num_below: [N] int64, nodes of the subtree without its top.
    level_start: the first node of each level, and N at the end. num_wide_levels: the levels from
    that number on have few nodes each.
    token_start: [N + 1] int32 and token_ids: the ids of the tokens that end at node n are
    `token_ids[token_start[n]:token_start[n + 1]]` (several when tokens have equal bytes);
    token_node: the node of each entry of token_ids.
    """

    __slots__ = (
        "byte",
        "child_count",
        "child_start",
        "level_start",
        "max_token_len",
        "num_below",
        "num_nodes",
        "num_wide_levels",
        "parent",
        "token_count",
        "token_ids",
        "token_node",
        "token_start",
    )

    def __init__(self, ids_by_bytes: Mapping[bytes, Sequence[int]]) -> None:
        """`ids_by_bytes` maps non-empty token bytes to the ids that have them."""
        texts = sorted(ids_by_bytes)
        self.max_token_len = max(map(len, texts), default=0)
        levels, ends = _levels(texts, self.max_token_len)
        self.byte = np.concatenate([np.zeros(1, np.uint8), *(bytes_ for bytes_, _ in levels)])
        self.num_nodes = len(self.byte)
        self.parent = np.concatenate([np.zeros(1, np.int64), *(parents for _, parents in levels)])
        sizes = [1, *(len(bytes_) for bytes_, _ in levels)]
        self.level_start: list[int] = [0, *np.cumsum(sizes).tolist()]
        wide = [level for level, size in enumerate(sizes) if size >= _THIN_LEVEL]
        self.num_wide_levels = max(wide, default=0) + 1
        self.child_count = np.bincount(self.parent[1:], minlength=self.num_nodes).astype(np.int32)
        self.child_start = (np.cumsum(self.child_count) - self.child_count + 1).astype(np.int32)
        counts = np.zeros(self.num_nodes + 1, np.int64)
        counts[ends + 1] = [len(ids_by_bytes[text]) for text in texts]
        self.token_start = np.cumsum(counts).astype(np.int32)
        self.token_count = counts[1:].astype(np.int32)
        in_node_order = (ids_by_bytes[texts[at]] for at in np.argsort(ends).tolist())
        self.token_ids = np.array([i for ids in in_node_order for i in ids], np.int32)
        self.token_node = np.repeat(np.arange(self.num_nodes), self.token_count)
        self.num_below = self._count_below()

    def _count_below(self) -> npt.NDArray[np.int64]:
        below = np.zeros(self.num_nodes, np.int64)
        for level in range(len(self.level_start) - 2, 0, -1):
            nodes = slice(self.level_start[level], self.level_start[level + 1])
            np.add.at(below, self.parent[nodes], below[nodes] + 1)
        return below

    def children(self, start: int, end: int) -> tuple[int, int]:
        """The range of the children of a non-empty range of nodes of one level."""
        last = end - 1
        return int(self.child_start[start]), int(self.child_start[last] + self.child_count[last])

    def find(self, text: bytes) -> int | None:
        """The node reached from the root by `text`, or None."""
        node = 0
        for value in text:
            start, count = int(self.child_start[node]), int(self.child_count[node])
            at = int(np.searchsorted(self.byte[start : start + count], value))
            if at == count or self.byte[start + at] != value:
                return None
            node = start + at
        return node


def _levels(
    texts: list[bytes], depth: int
) -> tuple[list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]], npt.NDArray[np.int64]]:
    """Per level the edge bytes and the parents of its nodes; and for each text the node where it
    ends.

    The texts are sorted, so a row starts a new node at a level exactly when its prefix of that
    length differs from the row above.
    """
    rows = len(texts)
    lengths = np.array([len(text) for text in texts], np.int64)
    padded = b"".join(text.ljust(depth, b"\0") for text in texts)
    matrix = np.frombuffer(padded, np.uint8).reshape(rows, depth) if rows else np.zeros((0, 0))
    levels = []
    ends = np.zeros(rows, np.int64)
    node_of_row = np.zeros(rows, np.int64)  # at the level before
    prefix_differs = np.zeros(rows, bool)
    prefix_differs[:1] = True
    next_id = 1
    for level in range(depth):
        column = matrix[:, level]
        prefix_differs[1:] |= column[1:] != column[:-1]
        present = lengths > level
        # After a shorter row with zero padding the prefix may look equal: it still is a new node.
        starts = present & (prefix_differs | np.concatenate([[True], ~present[:-1]]))
        levels.append((column[starts].astype(np.uint8), node_of_row[starts]))
        node_of_row = next_id - 1 + np.cumsum(starts)
        ends[lengths == level + 1] = node_of_row[lengths == level + 1]
        next_id += int(starts.sum())
    return levels, ends
