"""Leave out what nobody reads.

After a run its state can be read: every text and every call. So only tools that are declared pure
go by default. Where the caller takes the result alone, calls whose value is not read and whose text
is in no later call's prefix go, too, and with them texts at the ends of branches. A call that is
left out cannot fail: that is the one difference.
"""

import msgspec

from umbel.frontend_dsl.graph.nodes import (
    TOOLS,
    AnyNode,
    Await,
    Best,
    Block,
    CallTool,
    Choose,
    CloseRole,
    Decide,
    Fork,
    Generate,
    Give,
    Graph,
    Join,
    Leave,
    Loop,
    OpenRole,
    Say,
    blocks_of,
    inherited,
    reads_of,
    walk,
    with_blocks,
)

Reads = set[tuple[str, str]]
_LOOPS = "nothing is left out: in a loop a name stands for those of all turns"


def drop_pure_tools(graph: Graph) -> tuple[Graph, str]:
    """Drop calls of pure tools whose results nobody reads."""
    if _has_loops(graph):
        return graph, _LOOPS
    before = sum(1 for _ in walk(graph.body))
    while True:
        body = _without_tools(graph.body, _reads(graph))
        if body == graph.body:
            break
        graph = msgspec.structs.replace(graph, body=body)
    dropped = before - sum(1 for _ in walk(graph.body))
    return graph, f"{dropped} calls of pure tools whose results nobody reads are left out"


def drop_unread(graph: Graph) -> tuple[Graph, str]:
    """Drop all that does not matter for what the program returns."""
    if _has_loops(graph):
        return graph, _LOOPS
    graph, _ = drop_pure_tools(graph)
    if any(isinstance(node, Leave) for node in walk(graph.body)):
        return graph, "nothing is left out: a path goes on in Python, which may read anything"
    before = _num_calls(graph)
    while True:
        body, _ = _alive(graph.body, frozenset(), _reads(graph))
        if body == graph.body:
            break
        graph = msgspec.structs.replace(graph, body=body)
    dropped = before - _num_calls(graph)
    return graph, f"{dropped} calls that do not matter for the result are left out"


def _has_loops(graph: Graph) -> bool:
    return any(isinstance(node, Loop) for node in walk(graph.body))


def _num_calls(graph: Graph) -> int:
    return sum(isinstance(node, Generate | Choose) for node in walk(graph.body))


def _reads(graph: Graph) -> Reads:
    return {
        value
        for node in walk(graph.body)
        if not isinstance(node, Await)  # only waits
        for value in reads_of(node)
    }


def _without_tools(block: Block, reads: Reads) -> Block:
    return tuple(
        with_blocks(node, [_without_tools(inner, reads) for inner in blocks_of(node)])
        for node in block
        if not _is_unread_tool(node, reads)
    )


def _is_unread_tool(node: AnyNode, reads: Reads) -> bool:
    return isinstance(node, CallTool) and node.is_pure and (TOOLS, node.id) not in reads


def _alive(block: Block, live: frozenset[str], reads: Reads) -> tuple[Block, frozenset[str]]:
    """`live`: branches whose text so far is read by something after the block."""
    kept: list[AnyNode] = []
    for node in reversed(block):
        if isinstance(node, Decide):
            arms = [_alive(body, live, reads) for body in blocks_of(node)]
            node = with_blocks(node, [body for body, _ in arms])
            live = live.union(*(ends for _, ends in arms))
            if not any(blocks_of(node)):
                continue
        elif isinstance(node, Generate | Choose):
            if node.branch not in live and (node.branch, node.name or "") not in reads:
                continue
            live |= {node.branch}
        elif isinstance(node, Say | OpenRole | CloseRole):
            if node.branch not in live:
                continue
        elif isinstance(node, Fork):
            if not live.intersection(node.children):
                continue
            live |= {node.branch}
        elif isinstance(node, Best):
            values = {(child, inherited(name)) for child in node.children for name in node.names}
            if not (live.intersection(node.children) or values & reads):
                continue
            live = live.union(node.candidates)
        elif isinstance(node, Give):
            if (node.branch, node.name) not in reads:
                continue
        elif isinstance(node, Join | Await):
            continue
        kept.append(node)
    return tuple(reversed(kept)), live
