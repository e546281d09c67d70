"""Branches go on without waiting for each other, though they are written one after another.

Exact: a branch's text is its own, so a node depends only on those before it in its branch, on the
values it reads, and on the decisions it stands in. The executor keeps the order in each branch, of
tools, and of failures; here the graph is told to run that way, and joins, which only wait, go.
"""

import msgspec

from umbel.frontend_dsl.graph.nodes import (
    Block,
    Decide,
    Graph,
    Join,
    blocks_of,
    reads_of,
    walk,
    with_blocks,
)


def run_branches_apart(graph: Graph) -> tuple[Graph, str]:
    num_joins = sum(isinstance(node, Join) for node in walk(graph.body))
    num_waits = sum(bool(reads_of(node)) for node in walk(graph.body))
    num_decisions = sum(isinstance(node, Decide) for node in walk(graph.body))
    body = without_joins(graph.body)
    message = (
        f"{num_waits} places that wait for a value ({num_decisions} of them decisions) hold up "
        f"their own branches only; {num_joins} joins wait for nothing"
    )
    return msgspec.structs.replace(graph, body=body, is_parallel=True), message


def without_joins(block: Block) -> Block:
    return tuple(
        with_blocks(node, [without_joins(inner) for inner in blocks_of(node)])
        for node in block
        if not isinstance(node, Join)
    )
