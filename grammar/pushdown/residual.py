"""What is left of the vocabulary after some bytes of a token were read: interned sets of trie
nodes.

After a closing quote all tokens `x"y` are alike but for `y`: readings of what follows work on the
distinct suffixes. A residual is identified by the trie nodes that its next bytes lead to, so places
with equal rests of tokens below them are one, and results are kept for (leaf, state, residual)
instead of for tokens.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.trie import TokenTrie

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

NodeArray = npt.NDArray[np.int32]
_MAX_PATHS = 5_000  # literals read from a residual that are kept
# The ids of the tokens that end with a byte, and what may follow it inside longer tokens.
Edge = tuple[tuple[int, ...], "Residual | None"]


# One literal: the tokens that end inside it or with it (in order), and what may follow all of it.
Path = tuple[dict[int, None], "Residual | None"]


class Residual:
    """Rests of tokens, none of them empty. Compared by identity; made by `ResidualSpace` only.

    num_below: trie nodes of all rests together, a measure of what a walk costs.
    """

    __slots__ = ("_is_flat", "_nodes", "_parent", "edges", "ends", "num_below", "paths", "space")

    def __init__(
        self, space: "ResidualSpace", nodes: NodeArray | None, parent: int, num_below: int
    ) -> None:
        self.space = space
        self._nodes = nodes
        self._parent = parent
        self._is_flat: bool | None = True if parent >= 0 else None
        self.num_below = num_below
        # byte -> Edge, or the trie nodes it will be made of when first asked for
        self.paths: dict[bytes, Path] = {}
        self.ends: dict[bytes, Edge | None] = {}
        self.edges: dict[int, Edge | int | NodeArray] = {}

    @property
    def parent(self) -> int | None:
        """The trie node whose children are all its nodes; None when there is no such node."""
        return self._parent if self._parent >= 0 else None

    @property
    def is_flat(self) -> bool:
        """Whether none of its nodes lies below another one, so that no text is reached twice."""
        if self._is_flat is None:
            parent, nodes = self.space.trie.parent, self.nodes
            above = np.unique(parent[nodes])
            self._is_flat = True
            while self._is_flat and len(above) and above[-1]:
                self._is_flat = not np.isin(above, nodes, assume_unique=True).any()
                above = np.unique(parent[above])
        return self._is_flat

    @property
    def nodes(self) -> NodeArray:
        """The trie nodes that the next bytes lead to, ascending."""
        if self._nodes is None:
            trie = self.space.trie
            start = trie.child_start[self._parent]
            self._nodes = np.arange(start, start + trie.child_count[self._parent], dtype=np.int32)
        return self._nodes

    def fill_edges(self) -> dict[int, Edge | int | NodeArray]:
        """`edges` with an entry for each next byte. (An empty `edges` has not been filled yet.)"""
        found: dict[int, Edge | int | NodeArray]
        if self._parent >= 0:
            found = dict(self.space.edges_of(self._parent))
        else:
            together: dict[int, list[int]] = {}
            nodes = self.nodes
            values = self.space.trie.byte[nodes].tolist()
            for value, node in zip(values, nodes.tolist(), strict=True):
                together.setdefault(value, []).append(node)
            found = {
                value: of_value[0] if len(of_value) == 1 else np.array(of_value, np.int32)
                for value, of_value in together.items()
            }
        self.edges = found
        return found

    def path(self, text: bytes) -> "Path":
        """`text` read from here; kept in `paths`."""
        ids: dict[int, None] = {}
        rest: Residual | None = self
        for at, value in enumerate(text):
            if rest is not None and rest._parent >= 0:
                rest = self.space.follow(rest._parent, text[at:], ids)
                break
            edge = None if rest is None else rest.edge(value)
            if edge is None:
                rest = None
                break
            ids.update(dict.fromkeys(edge[0]))
            rest = edge[1]
        if len(self.paths) >= _MAX_PATHS:
            self.paths.clear()
        found = self.paths[text] = (ids, rest)
        return found

    def end_of(self, text: bytes) -> Edge | None:
        """The edge of the last byte of `text`, read from here; kept in `ends`."""
        rest: Residual | None = self
        edge: Edge | None = None
        for at, value in enumerate(text):
            if rest is not None and rest._parent >= 0:
                edge = self.space.edge_along(rest._parent, text[at:])
                break
            edge = None if rest is None else rest.edge(value)
            if edge is None:
                break
            rest = edge[1]
        if len(self.ends) >= _MAX_PATHS:
            self.ends.clear()
        self.ends[text] = edge
        return edge

    def edge(self, value: int) -> Edge | None:
        """The edge of one byte; None when no rest goes on with it."""
        pending = (self.edges or self.fill_edges()).get(value)
        if pending is None or type(pending) is tuple:
            return pending
        space = self.space
        if isinstance(pending, int):
            edge: Edge = (space.ids_at(pending), space.below(pending))
        else:
            assert isinstance(pending, np.ndarray)
            ids = tuple(i for node in pending.tolist() for i in space.ids_at(node))
            edge = (ids, space.below_all(pending))
        self.edges[value] = edge
        return edge


class ResidualSpace:
    """The residuals of one vocabulary. `root`: all tokens, nothing read yet."""

    def __init__(self, vocabulary: "Vocabulary") -> None:
        self.vocabulary = vocabulary
        trie: TokenTrie = vocabulary.trie
        self.trie = trie
        # Memory views give Python integers three times faster than arrays.
        self._token_start = trie.token_start.data
        self._token_ids = trie.token_ids.data
        self.child_count = trie.child_count.data
        self.child_start = trie.child_start.data
        self.bytes_of_nodes = trie.byte.tobytes()
        self._num_below = trie.num_below.data
        self.node_token = np.full(trie.num_nodes, -1, np.int32)  # [N] a token that ends there
        self.node_token[trie.token_node] = trie.token_ids
        self.token_at = self.node_token.data
        # [V] the node of each token; a token without text has the last entry of what is looked up
        # by it.
        self.node_of_token = np.full(vocabulary.num_words * 32, -1, np.int64)
        self.node_of_token[trie.token_ids] = trie.token_node
        self.is_inner = trie.child_count > 0  # [N]
        self.inner_nodes = np.flatnonzero(self.is_inner)
        self._has_doubles = bool((trie.token_count > 1).any())
        self._by_node: dict[int, Residual] = {}
        self._by_content: dict[bytes, Residual] = {}
        self.root = self._at_node(0)

    @property
    def num_residuals(self) -> int:
        return len(self._by_node) + len(self._by_content)

    def forget(self) -> None:
        """Drop all residuals. What was read with them before must be dropped, too."""
        self._by_node.clear()
        self._by_content.clear()
        self.root = self._at_node(0)

    def edges_of(self, node: int) -> "zip[tuple[int, int]]":
        """The bytes and numbers of a node's children."""
        start = self.child_start[node]
        end = start + self.child_count[node]
        return zip(self.bytes_of_nodes[start:end], range(start, end), strict=True)

    def child(self, node: int, value: int) -> int:
        """The child that a byte leads to, -1 if there is none."""
        start = self.child_start[node]
        return self.bytes_of_nodes.find(value, start, start + self.child_count[node])

    def follow(self, node: int, text: bytes, ids: dict[int, None]) -> Residual | None:
        """What follows a text below a node; adds the tokens that end inside the text or with it."""
        for value in text:
            node = self.child(node, value)
            if node < 0:
                return None
            if self.token_at[node] >= 0:
                ids.update(dict.fromkeys(self.ids_at(node)))
        return self.below(node)

    def edge_along(self, node: int, text: bytes) -> Edge | None:
        """The edge of the last byte of a text below a node."""
        for value in text:
            node = self.child(node, value)
            if node < 0:
                return None
        return self.ids_at(node), self.below(node)

    def ids_at(self, node: int) -> tuple[int, ...]:
        start, end = self._token_start[node], self._token_start[node + 1]
        if end == start:
            return ()
        if end == start + 1:
            return (self._token_ids[start],)
        return tuple(self._token_ids[start:end].tolist())

    def ids_of(self, nodes: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """The tokens that end at the nodes. For the states beside them see `ends_of`."""
        if self._has_doubles:
            return self.ends_of(nodes, nodes)[0]
        ids: npt.NDArray[np.int32] = self.node_token[nodes]
        return ids[ids >= 0]

    def ends_of(
        self, nodes: npt.NDArray[np.integer], states: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.integer]]:
        """The tokens that end at the nodes, with the entries of `states` that belong to their
        nodes.
        """
        if not self._has_doubles:
            single = self.node_token[nodes]
            ends = single >= 0
            return single[ends], states[ends]
        counts = self.trie.token_count[nodes]
        starts = self.trie.token_start[nodes]
        ids: npt.NDArray[np.int32] = self.trie.token_ids[_spans(starts, counts)]
        return ids, np.repeat(states, counts)

    def below(self, node: int) -> Residual | None:
        """What follows a trie node; None when it is a leaf of the trie."""
        found = self._by_node.get(node)
        if found is None and self.child_count[node]:
            return self._at_node(node)
        return found

    def below_all(self, nodes: npt.NDArray[np.integer]) -> Residual | None:
        """What follows any of the nodes, which are distinct and ascending."""
        children = self.children_of(nodes)
        return self.of_nodes(children) if len(children) else None

    def children_of(self, nodes: npt.NDArray[np.integer]) -> NodeArray:
        """Ascending, since children are numbered in the order of their parents."""
        return _spans(self.trie.child_start[nodes], self.trie.child_count[nodes])

    def of_nodes(self, children: NodeArray) -> Residual:
        """The residual whose next bytes lead to the nodes (distinct, ascending, at least one)."""
        parent = int(self.trie.parent[children[0]])
        if self.child_count[parent] == len(children) and (
            children[-1] - children[0] == len(children) - 1
            and int(self.trie.parent[children[-1]]) == parent
        ):
            return self._by_node.get(parent) or self._at_node(parent)
        key = children.tobytes()
        found = self._by_content.get(key)
        if found is None:
            size = int(self.trie.num_below[children].sum()) + len(children)
            found = self._by_content.setdefault(key, Residual(self, children, -1, size))
        return found

    def union(self, residuals: list[Residual]) -> Residual:
        """Of residuals without common nodes."""
        if len(residuals) == 1:
            return residuals[0]
        return self.of_nodes(np.sort(np.concatenate([r.nodes for r in residuals])))

    def _at_node(self, node: int) -> Residual:
        made = Residual(self, None, node, self._num_below[node])
        return self._by_node.setdefault(node, made)


def _spans(starts: NodeArray, counts: NodeArray) -> NodeArray:
    """start, start + 1, ..., start + count - 1 of all pairs, one after the other."""
    if len(starts) == 1:
        start = int(starts[0])
        return np.arange(start, start + int(counts[0]), dtype=np.int32)
    ends = np.cumsum(counts, dtype=np.int32)
    total = int(ends[-1]) if len(ends) else 0
    spans: NodeArray = np.repeat(starts - (ends - counts), counts)
    spans += np.arange(total, dtype=np.int32)
    return spans
