"""Reading few tokens: the trie and an automaton walked together, node by node.

Where many nodes are alive, `sweep` is quicker.
"""

from collections.abc import Callable, Mapping

from umbel.grammar.pushdown.residual import Residual

# The bytes allowed in a state, and the states after them.
Moves = Callable[[int], Mapping[int, int]]


def walk(residual: Residual, state: int, moves: Moves, fuel: int) -> list[tuple[int, int]] | None:
    """All trie nodes reached, each with the state there; None after `fuel` edges looked at."""
    space = residual.space
    byte, child_start, child_count = space.bytes_of_nodes, space.child_start, space.child_count
    visited: list[tuple[int, int]] = []
    if residual.parent is not None:
        start = child_start[residual.parent]
        pending = [(state, start, start + child_count[residual.parent])]
    else:
        pending = [(state, node, node + 1) for node in residual.nodes.tolist()]
    while pending:
        at, start, end = pending.pop()
        targets = moves(at)
        if 2 * len(targets) < end - start:
            fuel -= len(targets)
            found = [(to, byte.find(value, start, end)) for value, to in targets.items()]
            reached = [(to, node) for to, node in found if node >= 0]
        else:
            fuel -= end - start
            get = targets.get
            reached = [
                (to, node) for node in range(start, end) if (to := get(byte[node])) is not None
            ]
        if fuel < 0:
            return None
        visited += reached
        for target, node in reached:
            count = child_count[node]
            if count:
                first = child_start[node]
                pending.append((target, first, first + count))
    return visited
