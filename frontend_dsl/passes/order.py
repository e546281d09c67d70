"""The program's shape for those who schedule: in which order instances share most, and which calls
others wait for.
"""

from typing import Any

import msgspec

from umbel.frontend_dsl.graph.nodes import (
    Arg,
    Best,
    Block,
    Choose,
    Decide,
    Fork,
    Generate,
    Graph,
    Loop,
    Say,
    blocks_of,
    lanes_of,
    reads_of,
    templates_of,
    walk,
    with_blocks,
)


def order_instances(graph: Graph) -> tuple[Graph, str]:
    """Note the arguments in the order in which they come in the text: sorted by them, the instances
    of a batch that share a prefix are neighbours, and it is computed once while it is in the cache.
    """
    paths: dict[tuple[str | int, ...], None] = {}
    for node in walk(graph.body):
        for part in (part for template in templates_of(node) for part in template):
            if isinstance(part, Arg):
                paths.setdefault(part.path)
    head = _head(graph.body)
    message = f"{len(head)} characters at the start are the same for all instances of a batch"
    if paths:
        names = ", ".join(dict.fromkeys(str(path[0]) for path in paths))
        message += f"; instances are ordered by {names}"
    message += "; what neighbours share is computed once, and pinned until the last of them ended"
    return msgspec.structs.replace(graph, order_by=tuple(paths)), message


def rank_calls(graph: Graph) -> tuple[Graph, str]:
    """Give each call the number of calls that can only begin after it, one after another."""

    body, longest = _ranked(graph.body, {}, {})
    message = (
        f"the longest chain has {longest} calls; of calls that are ready together those that most "
        "wait for are submitted first"
    )
    return msgspec.structs.replace(graph, body=body), message


def _head(block: Block) -> str:
    """The text before the first thing that may differ between instances."""
    text = ""
    for node in block:
        if isinstance(node, Say) and all(isinstance(part, str) for part in node.parts):
            text += "".join(str(part) for part in node.parts)
        elif isinstance(node, Say):
            return text + (node.parts[0] if isinstance(node.parts[0], str) else "")
        elif isinstance(node, Generate | Choose | Fork | Best | Decide | Loop):
            return text
    return text


def _ranked(
    block: Block, after: dict[str, int], readers: dict[tuple[str, str], int]
) -> tuple[Block, int]:
    """`after`: per branch the chain of calls that follows; `readers`: per value the chain of those
    who read it. Both are brought forward to the start of the block.
    """
    out: list[Any] = []
    longest = 0
    for node in reversed(block):
        inner_longest = 0
        if isinstance(node, Decide | Loop):
            blocks, ends = [], []
            for body in blocks_of(node):
                branch_copy, value_copy = dict(after), dict(readers)
                ranked, length = _ranked(body, branch_copy, value_copy)
                blocks.append(ranked)
                ends.append((branch_copy, value_copy))
                inner_longest = max(inner_longest, length)
            node = with_blocks(node, blocks)
            for branch_copy, value_copy in ends:
                _join(after, branch_copy)
                _join(readers, value_copy)
        chain = inner_longest
        if isinstance(node, Generate | Choose):
            key = (node.branch, node.name or "")
            rank = max(after.get(node.branch, 0), readers.get(key, 0))
            node = msgspec.structs.replace(node, rank=rank)
            chain = after[node.branch] = rank + 1
        elif isinstance(node, Fork):
            children = max((after.get(child, 0) for child in node.children), default=0)
            chain = after[node.branch] = max(after.get(node.branch, 0), children)
        elif isinstance(node, Best):
            chain = max((after.get(child, 0) for child in node.children), default=0)
            for branch in node.candidates:
                after[branch] = max(after.get(branch, 0), chain)
        else:
            chain = max([chain, *(after.get(lane, 0) for lane in lanes_of(node))])
        for value in reads_of(node):
            readers[value] = max(readers.get(value, 0), chain)
        longest = max(longest, chain)
        out.append(node)
    return tuple(reversed(out)), longest


def _join(mine: dict[Any, int], other: dict[Any, int]) -> None:
    for key, value in other.items():
        mine[key] = max(mine.get(key, 0), value)
