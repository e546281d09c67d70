"""The lease: a position in the tree, and the counted right to read the blocks of the path to it.

Appending one token to a leaf is the hot path: no allocation, no walk, no search.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from umbel.radix_cache.forest import Forest
from umbel.radix_cache.node import Node, SlotRange, TokenKind, path_ranges


class AppendOutcome(Enum):
    """What became of an append; all but OK left the path as it was."""

    OK = "ok"
    NO_BLOCKS = "no_blocks"  # leased blocks leave too little room: release something
    PENDING_COPY = (
        "pending_copy"  # the tail to copy is computed only in this step: try again in the next
    )


@dataclass(slots=True)
class BlockCopy:
    """Copy the first `num_tokens` slots of block `src` to block `dst`, for all layers.

    The copies of a step are done in the order they were handed out, before its first write.
    """

    src: int
    dst: int
    num_tokens: int


@dataclass(slots=True)
class AppendResult:
    """`copies` has at most one entry, and none unless `outcome` is OK."""

    outcome: AppendOutcome
    copies: list[BlockCopy] = field(default_factory=list)


class Lease:
    """A path of `num_tokens` tokens, in the pool until `release()`; made by `RadixCache`."""

    __slots__ = ("_forest", "node", "num_tokens")

    def __init__(self, forest: Forest, node: Node, num_tokens: int) -> None:
        self._forest = forest
        self.node: Node | None = node  # where the path ends; None: released. Written by Forest, too
        self.num_tokens = num_tokens
        forest.attach(self, node)

    @property
    def num_pending(self) -> int:
        """Tokens at the end of the path that a row of this step computes, its own or another's."""
        node = self._live_node()
        while node.parent is not None and node.computed_end == node.start:
            node = node.parent
        return max(0, self.num_tokens - node.computed_end)

    def advance(self, tokens: Sequence[int], start: int, stop: int) -> int:
        """Walk over tokens[start:stop] as far as the tree has them; tokens[start] comes next.

        Passes over pending tokens as well: the rows of this step that were to compute them must
        then stay in the step. Returns how many were passed; always 0 without reuse.
        """
        node, end = self._live_node(), self.num_tokens
        if not self._forest.enable_reuse:
            return 0
        node, num_passed = _walk(node, end - node.start, tokens, start, stop)
        self._move(node, end + num_passed)
        self._forest.total_hit_tokens += num_passed
        return num_passed

    def continuation(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Up to `limit` tokens that the tree has after `tokens`, of which this path is the
        beginning; [] if it does not have all of them. At a fork it goes the newest way. Changes
        nothing; O(limit + what the path lacks of `tokens`).
        """
        node, idx = self._live_node(), self.num_tokens
        if not self._forest.enable_reuse:
            return []
        found: list[int] = []
        offset = idx - node.start
        while len(found) < limit:
            if offset == len(node.tokens):
                if not node.children:
                    break
                key = tokens[idx] if idx < len(tokens) else next(reversed(node.children))
                child = node.children.get(key)
                if child is None:
                    return []
                node, offset = child, 0
            elif idx < len(tokens):
                if node.tokens[offset] != tokens[idx]:
                    return []
                idx, offset = idx + 1, offset + 1
            else:
                piece = node.tokens[offset : offset + limit - len(found)]
                found += piece
                offset += len(piece)
        return found if idx == len(tokens) else []

    def append(
        self, tokens: Sequence[int], start: int, stop: int, *, kind: TokenKind
    ) -> AppendResult:
        """Append tokens[start:stop], which the tree does not have here; they are pending until
        `commit_step`. All or nothing; evicts what nobody leases when blocks are short.

        Raises ValueError when the tree has tokens[start] here: `advance` comes first.
        """
        node, end, forest = self._live_node(), self.num_tokens, self._forest
        room = -end % forest.block_size
        if (
            0 < stop - start <= room
            and node.kind is kind
            and not node.children
            and end == node.start + len(node.tokens)
        ):
            node.tokens.extend(tokens[start:stop])
            forest.pending.add(node)
        elif stop > start:
            result = self._append_blocks(node, list(tokens[start:stop]), kind)
            if result.outcome is not AppendOutcome.OK:
                return result
            forest.total_new_tokens += stop - start
            return result
        self.num_tokens = end + stop - start
        forest.total_new_tokens += stop - start
        return AppendResult(AppendOutcome.OK)

    def fork(self) -> "Lease":
        """Another lease on the same path, in O(1). It counts, and is released, by itself."""
        return Lease(self._forest, self._live_node(), self.num_tokens)

    def release(self) -> None:
        """Give the path back; a second call does nothing.

        Tokens of this step that no other lease covers are forgotten: release after `commit_step` to
        keep what the step has computed.
        """
        node, self.node = self.node, None
        if node is not None:
            node.leases.discard(self)
            self._forest.settle(node)

    def truncate(self, num_tokens: int) -> None:
        """Move the end back to `num_tokens`; computed tokens beyond it stay cached.

        Raises ValueError unless 0 <= num_tokens <= self.num_tokens.
        """
        old = self._live_node()
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(
                f"truncate({num_tokens}) is not valid: expected 0 to {self.num_tokens} tokens"
            )
        node = old
        while node.parent is not None and num_tokens <= node.start:
            node = node.parent
        if num_tokens < self.num_tokens:
            self._move(node, num_tokens)
            self._forest.settle(old)

    def block_table(self) -> list[int]:
        """Block ids for positions 0, block_size, ...: ceil(num_tokens / block_size) of them.

        Valid until the next call that appends: like `slots` it may change when blocks are short.
        """
        path = [self._live_node()]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        block_size = self._forest.block_size
        table: list[int] = []
        for node in reversed(path):
            table[node.start // block_size :] = node.blocks
        del table[-(-self.num_tokens // block_size) :]
        return table

    def slots(self, start: int, stop: int) -> list[int]:
        """The slot of each position `start .. stop - 1`.

        Where a tail was copied, the original is named: the one that other paths read, too.
        Raises ValueError unless 0 <= start <= stop <= num_tokens.
        """
        slots: list[int] = []
        for piece in self.slot_ranges(start, stop):
            slots.extend(range(piece.start, piece.start + piece.length))
        return slots

    def next_slot(self) -> int | None:
        """The slot that the next token of this path gets if it is new and appended next; None where
        that cannot be told: not at the end of a leaf, or the block after the last one is taken.

        A guess, not a promise: other paths may take the block before.
        """
        node, end, forest = self._live_node(), self.num_tokens, self._forest
        if node.parent is None or node.children or end != node.end:
            return None
        offset = end % forest.block_size
        if offset:
            return node.blocks[-1] * forest.block_size + offset
        block = node.blocks[-1] + 1
        is_there = block < forest.pool.num_blocks and forest.pool.is_free(block)
        return block * forest.block_size if is_there else None

    def slot_ranges(self, start: int, stop: int) -> list[SlotRange]:
        """`slots(start, stop)` as stretches of consecutive slots; none touches the next."""
        node = self._live_node()
        if not 0 <= start <= stop <= self.num_tokens:
            raise ValueError(
                f"positions {start}..{stop} are not valid: the path has {self.num_tokens} tokens"
            )
        return path_ranges(node, start, stop)

    def _live_node(self) -> Node:
        if self.node is None:
            raise ValueError("the lease was released: take a new one from the cache")
        return self.node

    def _move(self, node: Node, num_tokens: int) -> None:
        """End at a place above or below; going up, the caller settles the old node."""
        self.num_tokens = num_tokens
        old = self.node
        if node is not old and old is not None:
            self._forest.attach(self, node)
            self.node = node
            old.leases.discard(self)

    def _append_blocks(self, node: Node, tokens: list[int], kind: TokenKind) -> AppendResult:
        """Append where blocks, a child or a split are needed."""
        forest, end = self._forest, self.num_tokens
        offset, is_inside = end % forest.block_size, end < node.end
        self._check_is_new(node, tokens[0])
        needs_copy = offset > 0 and (is_inside or node.tail_child is not None)
        if needs_copy and node.computed_end < end:
            return AppendResult(AppendOutcome.PENDING_COPY)
        if is_inside:
            forest.split(node, end)
        if not forest.make_room(node, len(tokens)):
            forest.total_refused += 1
            return AppendResult(AppendOutcome.NO_BLOCKS)
        num_blocks = forest.num_blocks_to_append(node, len(tokens))
        after = node.blocks[-1] if node.blocks else None
        blocks = forest.pool.allocate(num_blocks, after=after)
        if node.kind is kind and not node.children and node.parent is not None:
            forest.grow(node, tokens, blocks)
            self.num_tokens = node.end
            return AppendResult(AppendOutcome.OK)
        goes_on = offset > 0 and node.tail_child is None
        child = forest.add_child(node, tokens, blocks, kind, in_tail=goes_on)
        self._move(child, child.end)
        if offset == 0 or goes_on:
            return AppendResult(AppendOutcome.OK)
        forest.total_copies += 1
        copy = BlockCopy(src=node.blocks[-1], dst=blocks[0], num_tokens=offset)
        return AppendResult(AppendOutcome.OK, [copy])

    def _check_is_new(self, node: Node, token: int) -> None:
        offset = self.num_tokens - node.start
        is_known = (
            token == node.tokens[offset] if self.num_tokens < node.end else token in node.children
        )
        if is_known and self._forest.enable_reuse:
            raise ValueError(
                f"token {token} at position {self.num_tokens} is in the tree already: "
                "advance() as far as it goes, then append the rest"
            )


def lease_known(forest: Forest, root: Node, tokens: Sequence[int]) -> Lease:
    """A lease on what the tree below `root` has of `tokens`, pending ones included."""
    node, num_known = _walk(root, 0, tokens, 0, len(tokens))
    return Lease(forest, node, num_known)


def match(root: Node, tokens: Sequence[int]) -> int:
    """How many of `tokens` the tree below `root` has."""
    return _walk(root, 0, tokens, 0, len(tokens))[1]


def _walk(
    node: Node, offset: int, tokens: Sequence[int], start: int, stop: int
) -> tuple[Node, int]:
    """From `offset` in `node` over tokens[start:stop] as far as the tree has them: the node where
    that ends, and how many there were.
    """
    idx = start
    while idx < stop:
        num_here = len(node.tokens) - offset
        if num_here == 0:
            child = node.children.get(tokens[idx])
            if child is None:
                break
            node, offset = child, 0
            continue
        wanted = min(num_here, stop - idx)
        passed = _num_common(node.tokens, offset, tokens, idx, wanted)
        offset += passed
        idx += passed
        if passed < wanted:
            break
    return node, idx - start


def _num_common(
    left: Sequence[int], left_start: int, right: Sequence[int], right_start: int, limit: int
) -> int:
    """Length of the common prefix of two stretches, at most `limit`, by comparing whole slices."""
    if limit == 1:
        return int(left[left_start] == right[right_start])
    low, high, probe = 0, limit, limit
    while low < high:
        if list(left[left_start + low : left_start + probe]) == list(
            right[right_start + low : right_start + probe]
        ):
            low = probe
        else:
            high = probe - 1
        probe = (low + high + 1) // 2
    return low
