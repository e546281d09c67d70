"""The node of the radix tree, and the plain values that describe tokens and their memory.

A node is a run of tokens and the blocks that hold them. Block `k` of a path holds positions
`[k * block_size, (k + 1) * block_size)`, so a node's first block may also hold its parent's tail.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from umbel.radix_cache.lease import Lease


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


class Node:
    """Tokens at positions `start .. end - 1`, and the blocks that cover them. Written by `Forest`.

    `tail_child` is the child that goes on in this node's last block; only while there is none may
    another do so. Positions from `computed_end` on are pending: a row of this step computes them.
    """

    __slots__ = (
        "block_size",
        "blocks",
        "breaks",
        "children",
        "computed_end",
        "id",
        "key",
        "kind",
        "last_use",
        "leases",
        "num_leased_children",
        "parent",
        "start",
        "tail_child",
        "tokens",
    )

    def __init__(
        self, node_id: int, block_size: int, *, parent: "Node | None", start: int, kind: TokenKind
    ) -> None:
        self.id = node_id
        self.block_size = block_size
        self.parent = parent  # None: a root, or a node that was removed
        self.start = start
        self.kind = kind
        self.key = 0  # under which the parent lists it
        self.tokens: list[int] = []
        self.blocks: list[int] = []
        self.breaks: list[int] = []  # indices of blocks that do not follow the one before
        self.children: dict[int, Node] = {}
        self.tail_child: Node | None = None
        self.leases: set[Lease] = set()  # those that end in this node
        self.num_leased_children = 0
        self.computed_end = start
        self.last_use = 0  # tick of the moment when its last holder went

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def is_leased(self) -> bool:
        return bool(self.leases) or self.num_leased_children > 0

    @property
    def is_pending(self) -> bool:
        return self.computed_end < self.end

    @property
    def shares_head(self) -> bool:
        """Its first block is its parent's last one."""
        return self.parent is not None and self.parent.tail_child is self

    @property
    def num_owned_blocks(self) -> int:
        """Its blocks, less a first one that is its parent's."""
        return len(self.blocks) - self.shares_head

    def add_blocks(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.blocks and block != self.blocks[-1] + 1:
                self.breaks.append(len(self.blocks))
            self.blocks.append(block)

    def replace_last_block(self, block: int) -> None:
        self._drop_blocks(len(self.blocks) - 1)
        self.add_blocks([block])

    def cut(self, end: int) -> list[int]:
        """Drop the tokens from `end` on (`start < end`); returns the blocks left over."""
        del self.tokens[end - self.start :]
        self.computed_end = min(self.computed_end, end)
        return self._drop_blocks((end - 1) // self.block_size - self.start // self.block_size + 1)

    def hand_down(self, lower: "Node") -> None:
        """Move tokens and blocks from position `lower.start` on to `lower`."""
        at, first_block = lower.start, self.start // self.block_size
        lower.tokens = self.tokens[at - self.start :]
        lower.add_blocks(self.blocks[at // self.block_size - first_block :])
        lower.computed_end = max(self.computed_end, at)
        self.cut(at)

    def add_ranges(self, start: int, stop: int, ranges: list[SlotRange]) -> None:
        """Append the slots of positions `start .. stop - 1` of this node, joining what touches."""
        block_size, breaks = self.block_size, self.breaks
        first_block = self.start // block_size
        while start < stop:
            idx = start // block_size - first_block
            if breaks:
                next_break = bisect_right(breaks, idx)
                run_stop = breaks[next_break] if next_break < len(breaks) else len(self.blocks)
                piece_stop = min(stop, (first_block + run_stop) * block_size)
            else:
                piece_stop = stop
            slot = self.blocks[idx] * block_size + start % block_size
            if ranges and ranges[-1].start + ranges[-1].length == slot:
                ranges[-1].length += piece_stop - start
            else:
                ranges.append(SlotRange(slot, piece_stop - start))
            start = piece_stop

    def _drop_blocks(self, num_kept: int) -> list[int]:
        dropped = self.blocks[num_kept:]
        del self.blocks[num_kept:]
        del self.breaks[bisect_left(self.breaks, num_kept) :]
        return dropped


def path_ranges(node: Node, start: int, stop: int) -> list[SlotRange]:
    """Slots of positions `start .. stop - 1` of the path to `node`, each from its own node."""
    ranges: list[SlotRange] = []
    if node.start <= start:
        node.add_ranges(start, stop, ranges)
        return ranges
    path = [node]
    while node.start > start:
        assert node.parent is not None, "a path begins at position 0"
        node = node.parent
        path.append(node)
    for part in reversed(path):
        if part.start < stop:
            part.add_ranges(max(start, part.start), min(stop, part.end), ranges)
    return ranges
