"""The invariants of the radix cache, checked from scratch: for tests and idle moments."""

from itertools import pairwise

from umbel.radix_cache.forest import Forest
from umbel.radix_cache.node import Node


class RadixInvariantError(Exception):
    """`check()` found a broken invariant; the message names it."""


def check_forest(forest: Forest) -> None:
    """Raises RadixInvariantError naming the first broken invariant; O(size of the trees)."""
    owner_of: dict[int, Node] = {}
    nodes: set[Node] = set()
    num_leased = 0
    for namespace, node in forest.nodes():
        nodes.add(node)
        if node.parent is None:
            _check_root(node, is_known=forest.roots.get(namespace) is node)
        else:
            _check_place(node, node.parent, forest)
            _check_blocks(node, node.parent)
        _check_holders(node, forest)
        for block in node.blocks[int(node.shares_head) :]:
            other = owner_of.setdefault(block, node)
            _require(other is node, f"block {block} is owned by nodes {other.id} and {node.id}")
            _require(not forest.pool.is_free(block), f"block {block} of node {node.id} is free")
        num_leased += node.num_owned_blocks if node.is_leased else 0
    _check_totals(forest, nodes, num_owned=len(owner_of), num_leased=num_leased)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise RadixInvariantError(message)


def _check_root(root: Node, *, is_known: bool) -> None:
    name = f"root {root.id}"
    _require(is_known, f"{name} is not the root of its namespace")
    _require(not root.tokens and not root.blocks and root.start == 0, f"{name} holds tokens")
    _require(bool(root.children) or root.is_leased, f"{name} is empty and not leased")


def _check_place(node: Node, parent: Node, forest: Forest) -> None:
    name = f"node {node.id}"
    _require(bool(node.tokens), f"{name} has no tokens")
    _require(node.start == parent.end, f"{name} starts at {node.start}, its parent ends elsewhere")
    _require(parent.children.get(node.key) is node, f"{name} is not listed by its parent")
    if forest.enable_reuse:
        _require(node.key == node.tokens[0], f"{name} is not keyed by its first token")
    else:
        _require(node.is_leased, f"{name} is kept without a lease, and reuse is off")
    _require(node.start <= node.computed_end <= node.end, f"{name}: computed_end is out of range")
    _require(node.is_pending == (node in forest.pending), f"{name} is wrong in the pending set")
    if node.is_pending:
        ends = [lease.num_tokens for lease in node.leases]
        is_covered = node.end in ends or node.num_leased_children > 0
        _require(is_covered, f"{name} has pending tokens that no lease covers")
        children = node.children.values()
        is_ordered = all(child.computed_end == child.start for child in children)
        _require(is_ordered, f"{name} is pending above computed tokens")


def _check_blocks(node: Node, parent: Node) -> None:
    name, size = f"node {node.id}", node.block_size
    num_expected = (node.end - 1) // size - node.start // size + 1
    _require(len(node.blocks) == num_expected, f"{name}: its blocks do not cover its tokens")
    breaks = [i for i in range(1, num_expected) if node.blocks[i] != node.blocks[i - 1] + 1]
    _require(node.breaks == breaks, f"{name}: its runs of blocks are wrong")
    if node.shares_head:
        _require(node.start % size > 0, f"{name} shares a block at a block border")
        _require(node.blocks[0] == parent.blocks[-1], f"{name}: its head is not its parent's tail")
    elif parent.blocks:
        _require(node.blocks[0] != parent.blocks[-1], f"{name} writes over its parent's tail")
    tail_child = node.tail_child
    if tail_child is not None:
        is_child = node.children.get(tail_child.key) is tail_child
        _require(is_child, f"{name}: what goes on in its tail is no child of it")


def _check_holders(node: Node, forest: Forest) -> None:
    name = f"node {node.id}"
    num_leased = sum(child.is_leased for child in node.children.values())
    _require(node.num_leased_children == num_leased, f"{name} counts its leased children wrong")
    for lease in node.leases:
        _require(lease.node is node, f"{name} lists a lease that ends elsewhere")
        is_inside = node.start < lease.num_tokens <= node.end or node.parent is None
        _require(is_inside, f"{name}: a lease of {lease.num_tokens} tokens cannot end in it")


def _check_totals(forest: Forest, nodes: set[Node], *, num_owned: int, num_leased: int) -> None:
    pool = forest.pool
    runs = pool.runs()
    num_in_runs = sum(stop - start for start, stop in runs)
    num_flagged = sum(pool.is_free(block) for block in range(pool.num_blocks))
    _require(num_in_runs == num_flagged == pool.num_free, "the pool counts its free blocks wrong")
    is_joined = all(left[1] < right[0] for left, right in pairwise(runs))
    _require(is_joined, "the pool has free runs that touch")
    _require(num_owned + pool.num_free == pool.num_blocks, "a block is neither free nor in a node")
    _require(num_leased == forest.num_leased_blocks, "the leased blocks are counted wrong")
    _require(forest.pending <= nodes, "a node that is gone is pending")
    num_nodes = sum(node.parent is not None for node in nodes)
    _require(num_nodes == forest.num_nodes, "the nodes are counted wrong")
    evictable = {n for n in nodes if n.parent and not n.children and not n.is_leased}
    _require(evictable == forest.queue.nodes(), "the eviction queue misses or invents a leaf")
    is_bounded = len(forest.queue) <= 2 * forest.num_nodes + 64
    _require(is_bounded, "the eviction queue holds too many stale entries")
