"""Branches that wait for others keep what they have in the cache, while calls of theirs may come.

The executor does it (`keeping`); here it is found which branches that will be. It changes what the
cache holds, never what is computed, so outputs are the same.
"""

from collections.abc import Collection

from umbel.frontend_dsl.graph.nodes import (
    RESULT,
    TOOLS,
    Block,
    Choose,
    Decide,
    Generate,
    Graph,
    Loop,
    blocks_of,
    lanes_of,
    reads_of,
)

NAME = "keep"
_SHOWN = 6


def keep_prefixes(graph: Graph) -> tuple[Graph, str]:
    kept: dict[str, None] = {}
    _find(graph.body, (), {}, kept)
    if not kept:
        return graph, "no branch waits for another with calls of its own to come"
    names = ", ".join(list(kept)[:_SHOWN]) + (", ..." if len(kept) > _SHOWN else "")
    return graph, (
        f"{len(kept)} branches wait for others with calls of their own to come; what they have "
        f"stays in the cache until then: {names}"
    )


def _find(
    block: Block, around: Collection[str], waited: dict[str, bool], kept: dict[str, None]
) -> None:
    """`around`: branches (and the tools' lane) whose values decided that the block is run.
    `waited`: the branches that had something already, and whether they have waited since.
    """
    for node in block:
        sources = {branch for branch, _ in reads_of(node)}
        if isinstance(node, Decide | Loop):
            for inner in blocks_of(node):
                _find(inner, {*around, *sources}, waited, kept)
            continue
        for lane in lanes_of(node):
            if lane in (TOOLS, RESULT):
                continue
            if {*around, *sources} - {lane} and lane in waited:
                waited[lane] = True
            if isinstance(node, Generate | Choose):
                if waited.get(lane):
                    kept[lane] = None
                waited[lane] = False
            else:
                waited.setdefault(lane, False)
