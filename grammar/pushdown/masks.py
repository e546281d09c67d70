"""Masks: all leaves that a token may pass read it together, and the pieces are put into one row.

Work goes by pairs (thread, rest of the vocabulary), each a kept reading; a token that crosses
several leaves (`"},{"`) is what is left of the vocabulary after each of them. Rows of permissive
leaves are shared by all grammars, so most masks are a few look-ups and one copy.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.reading import MaskRow, Reading
from umbel.grammar.pushdown.residual import Residual
from umbel.grammar.pushdown.space import ReadingSpace
from umbel.grammar.pushdown.stacks import Thread
from umbel.grammar.pushdown.token_reader import TokenReader

if TYPE_CHECKING:
    from umbel.grammar.pushdown.configs import Config, Configs

# A mask is a row, or (numbers, values) of its words that are not zero: written as fast, and much
# smaller.
SparseRow = tuple[npt.NDArray[np.int64], MaskRow]
Mask = MaskRow | SparseRow

_MAX_SPARSE = 96  # token ids
_MAX_WORK = 200_000  # readings for one mask: a second or so


def fill_row(mask: Mask, row: MaskRow) -> None:
    if type(mask) is tuple:
        row.fill(0)
        row[mask[0]] = mask[1]
    else:
        row[:] = mask


def make_mask(configs: "Configs", config: "Config", space: ReadingSpace) -> Mask:
    """The tokens allowed next, and the EOS ids if the text may end."""
    pieces, ids, doubtful = collect(config.threads, space.root)
    if doubtful:
        ids += [i for i in _ids_of(doubtful) if configs.allows(config, i)]
    if config.can_end:
        ids += space.vocabulary.eos_ids
    if not pieces:
        return _sparse(ids, space)
    if len(pieces) == 1 and not ids and not pieces[0].removed:
        assert pieces[0].row is not None
        return pieces[0].row
    key = (tuple(sorted(map(id, pieces))), tuple(ids))
    row = space.kept_row(key)
    if row is None:
        row = space.keep_row(key, pieces, _combined(pieces, ids, space))
    return row


def collect(
    threads: Iterable[Thread], root: Residual
) -> tuple[list[Reading], list[int], list[Reading]]:
    """Readings with rows, single ids, and readings that `RecordedFollow.open` may have made too
    wide.
    """
    # The last entry counts the recorded texts that ended within the token: what the second of them
    # may be depends on the first.
    given = with_specials(threads) if root is root.space.root else threads
    work = [(reader, state, follow, root, 0) for reader, state, follow in given]
    seen = set(work)
    pieces: list[Reading] = []
    ids: list[int] = []
    doubtful: list[Reading] = []
    for reader, state, follow, rest, num_recorded in work:
        reading = reader.read(state, rest)
        records = follow.open is not follow
        if num_recorded and (records or num_recorded > 1):
            doubtful.append(reading)
        else:
            if reading.row is not None and reading not in pieces:
                pieces.append(reading)
            if reading.ids:
                ids += reading.ids
        if not reading.exits:
            continue
        opened = follow.open
        for tag, behind in reading.exits:
            for reader2, state2, follow2 in opened[tag].heads:
                item = (reader2, state2, follow2, behind, num_recorded + records)
                if item not in seen:
                    seen.add(item)
                    work.append(item)
        if len(work) > _MAX_WORK:
            raise UnsupportedGrammar(
                f"a mask needs more than {_MAX_WORK} readings; make the grammar less ambiguous",
                keyword="ambiguity",
            )
    return pieces, ids, doubtful


def with_specials(threads: Iterable[Thread]) -> list[Thread]:
    """The threads, and those of special tokens behind greedy leaves that may end here.

    A greedy leaf hands over only the bytes that it cannot read, and a special token has none.
    """
    found = list(threads)
    for reader, state, follow in found:
        if reader.greedy and (tag := reader.tag(state)) >= 0:
            heads = follow.open[tag].heads
            found += [t for t in heads if isinstance(t[0], TokenReader) and t not in found]
    return found


def has_any(threads: Iterable[Thread], rest: Residual) -> bool:
    """Whether some token of a rest is allowed."""
    pieces, ids, doubtful = collect(threads, rest)
    return bool(pieces or ids or any(r.row is not None or r.ids for r in doubtful))


def _combined(pieces: list[Reading], ids: list[int], space: ReadingSpace) -> MaskRow:
    row = _row_of(pieces[0])
    for piece in pieces[1:]:
        assert piece.row is not None
        row |= _row_of(piece) if piece.removed else piece.row
    if len(ids) > _MAX_SPARSE:
        row |= space.vocabulary.pack(np.array(ids))
    else:
        words, values = _words(ids)
        row[words] |= values
    return row


def _row_of(piece: Reading) -> MaskRow:
    """A copy of the reading's row, without the removed ids."""
    assert piece.row is not None
    row = piece.row.copy()
    if piece.removed:
        words, values = _words(piece.removed)
        row[words] &= ~values
    return row


def _words(ids: Iterable[int]) -> SparseRow:
    words: dict[int, int] = {}
    for token_id in ids:
        words[token_id >> 5] = words.get(token_id >> 5, 0) | 1 << (token_id & 31)
    return np.array(list(words), np.int64), np.array(list(words.values()), np.uint32)


def _sparse(ids: list[int], space: ReadingSpace) -> Mask:
    return _words(ids) if len(ids) <= _MAX_SPARSE else space.vocabulary.pack(np.array(ids))


def _ids_of(readings: Iterable[Reading]) -> set[int]:
    found: set[int] = set()
    for reading in readings:
        found.update(reading.ids)
        if reading.row is not None:
            bits = np.unpackbits(_row_of(reading).view(np.uint8), bitorder="little")
            found.update(np.flatnonzero(bits).tolist())
    return found
