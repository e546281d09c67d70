"""What a leaf makes of a residual: the tokens that end inside it, and what is left where it can
end.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.residual import Residual

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

MaskRow = npt.NDArray[np.uint32]
# A mask is a row, or (numbers, values) of its words that are not zero: written as fast, and much
# smaller. Very few are kept as Python numbers: arrays take longer to make than to use.
SparseRow = tuple[npt.NDArray[np.int64], MaskRow] | tuple[tuple[int, ...], tuple[int, ...]]
Mask = MaskRow | SparseRow
DEAD = -1  # the state after a byte that a leaf does not allow
_MAX_SMALL = 64  # token ids kept one by one; more are a mask row

Exits = tuple[tuple[int, Residual], ...]  # tag, and the rests of tokens that go on behind it


def united(exits: "dict[int, list[Residual]]") -> Exits:
    """One rest for each tag. The exit before any byte of a token must not be among them: it stays
    what it is, a start of a token, when there are others."""
    return tuple((tag, rests[0].space.union(rests)) for tag, rests in exits.items())


class Reading:
    """Immutable. The tokens that end inside a leaf: (row without `removed`) and `ids`; and its
    exits.

    row: [W] uint32 or None, shared by many readings; removed: a few ids of it that do not belong.
    mask: of these tokens alone, set by `masks` when it is first asked for.
    """

    __slots__ = ("exits", "ids", "mask", "removed", "row")

    def __init__(
        self,
        row: MaskRow | None,
        ids: tuple[int, ...],
        exits: Exits,
        removed: tuple[int, ...] = (),
    ) -> None:
        self.row = row
        self.ids = ids
        self.exits = exits
        self.removed = removed
        self.mask: Mask | None = None


EMPTY_READING = Reading(None, (), ())


def reading_of(
    vocabulary: "Vocabulary", ids: "list[int] | npt.NDArray[np.int32]", exits: Exits
) -> Reading:
    if len(ids) > _MAX_SMALL:
        return Reading(vocabulary.pack(np.asarray(ids)), (), exits)
    small = tuple(ids) if isinstance(ids, list) else tuple(ids.tolist())
    return Reading(None, small, exits)


def plain_row(reading: Reading) -> MaskRow:
    """A copy of a reading's row, without the removed ids."""
    assert reading.row is not None
    row = reading.row.copy()
    for token_id in reading.removed:
        row[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
    return row


def joined(first: Reading, second: Reading) -> Reading:
    """Of two residuals without common nodes, read from a state that has no tag."""
    row = first.row if second.row is None else second.row
    if first.row is not None and second.row is not None:
        row = first.row | second.row
    exits: dict[int, list[Residual]] = {}
    for tag, rest in first.exits + second.exits:
        exits.setdefault(tag, []).append(rest)
    return Reading(row, first.ids + second.ids, united(exits), first.removed + second.removed)


def without(whole: Reading, part: Reading) -> Reading:
    """Of the rests of a residual that are not in a part of it; both read from a state without tag
    by an automaton.
    """
    row = None if whole.row is None else whole.row.copy()
    if row is not None and part.row is not None:
        row &= ~part.row
    elif row is not None:
        for token_id in part.ids:
            row[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
    ids = tuple(i for i in whole.ids if i not in part.ids)
    gone = dict(part.exits)
    exits = []
    for tag, rest in whole.exits:
        nodes = rest.nodes
        if tag in gone:
            nodes = nodes[~np.isin(nodes, gone[tag].nodes, assume_unique=True)]
        if len(nodes):
            exits.append((tag, rest.space.of_nodes(nodes)))
    return Reading(row, ids, tuple(exits))


def run_bytes(reader: "Reader", state: int, text: bytes) -> tuple[int, int]:
    """`Reader.run`, byte by byte."""
    step, tag = reader.step, reader.tag
    for at, value in enumerate(text):
        if tag(state) >= 0:
            return state, at
        state = step(state, value)
        if state == DEAD:
            return DEAD, at
    return state, len(text)


class Reader(Protocol):
    """A leaf bound to a vocabulary. States are integers; `DEAD` is none of them.

    start: the state before any byte. has_gaps: some states may not end a token (`is_live`).
    greedy: the leaf is left before a byte only where it can't read that byte.
    """

    start: int
    greedy: bool
    has_gaps: bool

    def read(self, state: int, residual: Residual) -> Reading:
        """All tokens at once. Kept, and to be treated as immutable."""

    def step(self, state: int, value: int) -> int:
        """The state after a byte, or DEAD."""

    def run(self, state: int, text: bytes) -> tuple[int, int]:
        """The state after so many bytes of a text: up to where the leaf may end, DEAD or all."""

    def tag(self, state: int) -> int:
        """The tag if a text may end here, else NO_TAG."""

    def is_live(self, state: int) -> bool:
        """Whether tokens can complete the leaf from here: a token may end here only then."""

    def next_bytes(self, state: int) -> Iterable[int]:
        """The bytes that `step` allows."""

    def is_final(self, state: int) -> bool:
        """Whether there are none."""

    def cost(self, state: int, tag: int) -> int:
        """Upper bound on the tokens to a text's end with the tag, UNREACHABLE if there is no way.

        Where it is c > 0 there is a token inside the leaf after which it is at most c - 1.
        """

    def bound(self, state: int, tag: int) -> int:
        """At least `cost` wherever the leaf may be after some more bytes, as far as it is
        reachable.
        """

    def tags_from(self, state: int) -> Collection[int]:
        """The tags that may still be reached."""

    def ends(
        self, state: int, residual: Residual
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """The tokens of `read` one by one, with the state after each."""
