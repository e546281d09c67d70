"""Leaves out waits for values that another node waits for at the same place, or has waited for."""

from umbel.frontend_dsl.graph.nodes import AnyNode, Await, Block, blocks_of, reads_of, with_blocks

Values = frozenset[tuple[str, str]]


def without_redundant_waits(block: Block, known: Values = frozenset()) -> Block:
    """`block` without waits that change nothing. `known`: values that are there for sure.

    A wait right before a node that reads the value, and nothing new before it, fails where that
    node would fail.
    """
    out: list[AnyNode] = []
    for index, node in enumerate(block):
        if isinstance(node, Await) and not node.is_json:
            value = (node.branch, node.name)
            following = block[index + 1] if index + 1 < len(block) else None
            if value in known or _first_new_read(following, known) == value:
                continue
        known = known.union(reads_of(node))
        inner = [without_redundant_waits(body, known) for body in blocks_of(node)]
        out.append(with_blocks(node, inner))
    return tuple(out)


def _first_new_read(node: AnyNode | None, known: Values) -> tuple[str, str] | None:
    if node is None or isinstance(node, Await):
        return None
    return next((value for value in reads_of(node) if value not in known), None)
