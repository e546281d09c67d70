"""The trees of all namespaces over one pool: structure, block accounting and eviction.

Leases change the trees through this class only. A node is leased while a lease ends in it or in its
subtree; each node tells its parent only when that begins and ends, so a fork costs O(1).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from umbel.radix_cache.eviction import EvictionQueue
from umbel.radix_cache.node import Namespace, Node, TokenKind
from umbel.radix_cache.pool import BlockPool

if TYPE_CHECKING:
    from umbel.radix_cache.lease import Lease


class Forest:
    """One radix tree per namespace; see the module docstring. Not thread-safe."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_reuse: bool) -> None:
        if block_size < 1:
            raise ValueError(f"block_size={block_size} is not valid: expected at least 1")
        self.block_size = block_size
        self.enable_reuse = enable_reuse
        self.pool = BlockPool(num_blocks)
        self.queue = EvictionQueue()
        self.roots: dict[Namespace, Node] = {}
        self.pending: set[Node] = set()  # nodes with tokens that this step computes
        self.num_nodes = 0  # without the roots
        self.num_leased_blocks = 0
        self.total_hit_tokens = 0
        self.total_new_tokens = 0
        self.total_copies = 0
        self.total_evicted_blocks = 0
        self.total_refused = 0
        self._namespace_of: dict[Node, Namespace] = {}  # of each root
        self._next_id = 0
        self._tick = 0

    @property
    def num_cached_blocks(self) -> int:
        return self.pool.num_blocks - self.pool.num_free - self.num_leased_blocks

    def root(self, namespace: Namespace) -> Node:
        node = self.roots.get(namespace)
        if node is None:
            node = self.roots[namespace] = self._new_node(None, 0, TokenKind.PROMPT)
            self._namespace_of[node] = namespace
        return node

    def nodes(self) -> Iterator[tuple[Namespace, Node]]:
        """Every node, roots included, parents before their children."""
        for namespace, root in self.roots.items():
            stack = [root]
            while stack:
                node = stack.pop()
                yield namespace, node
                stack.extend(reversed(node.children.values()))

    def attach(self, lease: "Lease", node: Node) -> None:
        """Let `lease` end in `node`; its former node keeps it until `settle` or `detach`."""
        was_leased = node.is_leased
        node.leases.add(lease)
        while not was_leased:
            self.num_leased_blocks += node.num_owned_blocks
            if node.parent is None:
                return
            node = node.parent
            was_leased = node.is_leased
            node.num_leased_children += 1

    def settle(self, node: Node) -> None:
        """After a holder of `node` went: give up what nobody holds, from here to the root.

        Pending tokens that no lease covers are removed, for nothing may match them: their rows may
        never be computed. Computed ones that none covers become a node of their own, to be evicted.
        """
        while node.parent is not None:
            if not node.num_leased_children:
                self._shorten(node)
            if node.is_leased:
                return
            parent = node.parent
            self.num_leased_blocks -= node.num_owned_blocks
            parent.num_leased_children -= 1
            self._retire(node)
            node = parent
        self._drop_empty_root(node)

    def grow(self, node: Node, tokens: list[int], blocks: list[int]) -> None:
        """Append pending tokens to a leased leaf."""
        node.tokens.extend(tokens)
        node.add_blocks(blocks)
        self.num_leased_blocks += len(blocks)
        self.pending.add(node)

    def add_child(
        self, parent: Node, tokens: list[int], blocks: list[int], kind: TokenKind, *, in_tail: bool
    ) -> Node:
        """A new pending leaf under `parent`; `in_tail`: it goes on in the parent's last block."""
        node = self._new_node(parent, parent.end, kind)
        node.tokens = tokens
        if in_tail:
            parent.tail_child = node
            node.add_blocks(parent.blocks[-1:])
        node.add_blocks(blocks)
        self._link(node)
        self.pending.add(node)
        return node

    def split(self, node: Node, at: int) -> None:
        """Cut a leased node at `at`, `start < at < end`; leases that end later move down."""
        lower = self._new_node(node, at, node.kind)
        node.hand_down(lower)
        lower.last_use = node.last_use
        lower.children, node.children = node.children, {}
        for child in lower.children.values():
            child.parent = lower
        lower.tail_child = node.tail_child
        node.tail_child = lower if at % self.block_size else None
        self._link(lower)
        for part in (node, lower):
            if part.is_pending:
                self.pending.add(part)
            else:
                self.pending.discard(part)
        lower.leases = {lease for lease in node.leases if lease.num_tokens > at}
        node.leases -= lower.leases
        for lease in lower.leases:
            lease.node = lower
        lower.num_leased_children = node.num_leased_children
        node.num_leased_children = int(lower.is_leased)
        if not lower.is_leased:
            self.num_leased_blocks -= lower.num_owned_blocks
            self._retire(lower, last_use=node.last_use)

    def evict(self, num_blocks: int) -> int:
        """Free up to `num_blocks` blocks, from the ends of unleased leaves; returns how many."""
        num_freed = 0
        while num_freed < num_blocks and (node := self.queue.peek()) is not None:
            num_wanted = num_blocks - num_freed
            if node.num_owned_blocks > num_wanted:
                last_block = node.start // self.block_size + len(node.blocks) - num_wanted
                self.pool.free(node.cut(last_block * self.block_size))
                num_freed += num_wanted
            else:
                num_freed += self._evict_leaf(node)
        self.total_evicted_blocks += num_freed
        return num_freed

    def clear(self) -> int:
        """Remove every unleased node; returns the number of freed blocks."""
        num_freed = 0
        while (node := self.queue.peek()) is not None:
            num_freed += self._evict_leaf(node)
        self.total_evicted_blocks += num_freed
        return num_freed

    def num_blocks_to_append(self, node: Node, num_tokens: int) -> int:
        """New blocks that `num_tokens` more tokens take, that of a copied tail included."""
        end, block_size = node.end, self.block_size
        num_touched = (end + num_tokens - 1) // block_size - end // block_size + 1
        return num_touched - (end % block_size != 0 and node.tail_child is None)

    def make_room(self, node: Node, num_tokens: int) -> bool:
        """Evict until `num_tokens` fit after the leased `node`; False if they cannot."""
        num_short = self.num_blocks_to_append(node, num_tokens) - self.pool.num_free
        if num_short <= 0:
            return True
        if num_short <= self.num_cached_blocks:
            self.evict(num_short)
            return True
        if num_short - self.num_cached_blocks > self._num_double_tails(node):
            return False
        # A tail that was copied lies in the pool twice. Once no other child needs the original, the
        # path can do with the copy; without this a path that just fits the pool could be refused.
        self.clear()
        self._merge_double_tails(node)
        return self.num_blocks_to_append(node, num_tokens) <= self.pool.num_free

    def _num_double_tails(self, node: Node) -> int:
        """Blocks that `make_room` could save on this path if it had no other children."""
        num_double = int(node.tail_child is not None)
        while node.parent is not None:
            num_double += node.start % self.block_size != 0 and not node.shares_head
            node = node.parent
        return num_double

    def _merge_double_tails(self, node: Node) -> None:
        while (parent := node.parent) is not None:
            is_copied = node.start % self.block_size != 0 and not node.shares_head
            was_copied_before = node.computed_end > node.start
            if is_copied and was_copied_before and len(parent.children) == 1:
                self._adopt_copy(parent, node)
            node = parent

    def _adopt_copy(self, parent: Node, child: Node) -> None:
        """Let `parent` keep its tail in the copy at the head of its only child; both are leased."""
        original = parent.blocks[-1]
        if parent.shares_head and len(parent.blocks) == 1:
            assert parent.parent is not None
            parent.parent.tail_child = None  # which still needs the original
        else:
            self.pool.free([original])
            self.num_leased_blocks -= 1
        parent.replace_last_block(child.blocks[0])
        parent.tail_child = child

    def _shorten(self, node: Node) -> None:
        """Take off the end of a node that no lease covers; no child of it is leased."""
        end = node.end
        if any(lease.num_tokens == end for lease in node.leases):
            return
        covered = max((lease.num_tokens for lease in node.leases), default=node.start)
        kept = max(covered, node.computed_end)
        if node.start < kept < end:
            freed = node.cut(kept)
            self.pool.free(freed)
            self.num_leased_blocks -= len(freed)
            if not node.is_pending:
                self.pending.discard(node)
        if node.start < covered < node.end:
            self.split(node, covered)

    def _retire(self, node: Node, last_use: int | None = None) -> None:
        """A node that nobody holds any more: forget it, or keep it until its blocks are needed."""
        never_computed = node.computed_end == node.start
        if never_computed or not self.enable_reuse:
            self._unlink(node)
            return
        self._tick += 1
        node.last_use = self._tick if last_use is None else last_use
        if not node.children:
            self.queue.push(node, self.num_nodes)

    def _evict_leaf(self, node: Node) -> int:
        parent = node.parent
        assert parent is not None, "a root is never evicted"
        num_freed = self._unlink(node)
        if not parent.children and not parent.is_leased:
            if parent.parent is None:
                self._drop_empty_root(parent)
            else:
                self.queue.push(parent, self.num_nodes)
        return num_freed

    def _new_node(self, parent: Node | None, start: int, kind: TokenKind) -> Node:
        self._next_id += 1
        return Node(self._next_id, self.block_size, parent=parent, start=start, kind=kind)

    def _link(self, node: Node) -> None:
        assert node.parent is not None
        node.key = node.tokens[0] if self.enable_reuse else node.id
        node.parent.children[node.key] = node
        self.num_nodes += 1

    def _unlink(self, node: Node) -> int:
        """Remove an unleased leaf; returns the number of freed blocks."""
        parent = node.parent
        assert parent is not None, "a root is never unlinked"
        assert not node.children, "only leaves are unlinked"
        freed = node.blocks[1:] if node.shares_head else node.blocks
        if parent.tail_child is node:
            parent.tail_child = None
        self.pool.free(freed)
        del parent.children[node.key]
        node.parent = None
        self.pending.discard(node)
        self.num_nodes -= 1
        return len(freed)

    def _drop_empty_root(self, root: Node) -> None:
        if not root.children and not root.is_leased:
            del self.roots[self._namespace_of.pop(root)]
