"""Masks: all leaves that a token may pass read it together, and the pieces are put into one row.

Work goes by pairs (thread, rest of the vocabulary), each a kept reading; a token that crosses
several leaves (`"},{"`) is what is left of the vocabulary after each of them. Rows of permissive
leaves are shared by all grammars, so most masks are a few look-ups and one copy.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.pushdown.reading import (
    EMPTY_READING,
    Mask,
    MaskRow,
    Reading,
    plain_row,
)
from umbel.grammar.pushdown.residual import Residual
from umbel.grammar.pushdown.space import ReadingSpace
from umbel.grammar.pushdown.stacks import Thread
from umbel.grammar.pushdown.token_reader import TokenReader

if TYPE_CHECKING:
    from umbel.grammar.pushdown.configs import Config, Configs

_MAX_SPARSE = 96  # token ids
_FEW_WORDS = 12
_MAX_WORK = 200_000  # readings for one mask: a second or so


def fill_row(mask: Mask, row: MaskRow) -> None:
    if type(mask) is not tuple:
        row[:] = mask
        return
    row.fill(0)
    words, values = mask
    if type(words) is tuple:
        for word, value in zip(words, values, strict=True):
            row[word] = value
    else:
        row[words] = values


def make_mask(configs: "Configs", config: "Config", space: ReadingSpace) -> Mask:
    """The tokens allowed next, and the EOS ids if the text may end.

    Masks of the same readings are one, in whatever grammars: kept by the identities of these.
    """
    found, doubtful = collect(config.threads, space.root)
    more = [i for i in _ids_of(doubtful) if configs.allows(config, i)] if doubtful else []
    if config.can_end:
        more += space.vocabulary.eos_ids
    if len(found) == 1 and not more:
        return _alone(found[0], space)
    key = (frozenset(map(id, found)), tuple(more) if doubtful else config.can_end)
    mask = space.kept_mask(key)
    if mask is None:
        mask = space.keep_mask(key, found, _joined(found, more, space))
    return mask


def _alone(reading: Reading, space: ReadingSpace) -> Mask:
    mask = reading.mask
    if mask is None:
        is_plain = reading.row is not None and not reading.ids and not reading.removed
        mask = reading.row if is_plain else _joined([reading], [], space)
        assert mask is not None
        if type(mask) is tuple or is_plain:  # rows of their own would take much memory
            reading.mask = mask
    return mask


def collect(threads: Iterable[Thread], root: Residual) -> tuple[list[Reading], list[Reading]]:
    """Readings that hold tokens, and those that `RecordedFollow.open` may have made too wide."""
    # The last entry counts the recorded texts that ended within the token: what the second of them
    # may be depends on the first.
    given = list(threads)
    if root is root.space.root:
        for reader, _, _ in given:
            if reader.greedy:
                given = with_specials(given)
                break
    if len(given) == 1:
        reader, state, follow = given[0]
        reading = reader.read(state, root)
        if not reading.exits:
            return ([reading] if reading.row is not None or reading.ids else []), []
    work = [(reader, state, follow, root, 0) for reader, state, follow in given]
    seen = set(work)
    found: dict[Reading, None] = {}
    doubtful: list[Reading] = []
    for reader, state, follow, rest, num_recorded in work:
        reading = reader.read(state, rest)
        if reading is EMPTY_READING:
            continue
        is_recorded = follow.is_recorded
        if reading.row is not None or reading.ids:
            if num_recorded and (is_recorded or num_recorded > 1):
                doubtful.append(reading)
            else:
                found[reading] = None
        if not reading.exits:
            continue
        opened = follow.open if is_recorded else follow
        for tag, behind in reading.exits:
            stack = opened[tag]
            num_ended = num_recorded + 1 if is_recorded and follow.records(tag) else num_recorded
            for reader2, state2, follow2 in (stack.closure or stack.close())[0]:
                item = (reader2, state2, follow2, behind, num_ended)
                if item not in seen:
                    seen.add(item)
                    work.append(item)
        if len(work) > _MAX_WORK:
            raise UnsupportedGrammar(
                f"a mask needs more than {_MAX_WORK} readings; make the grammar less ambiguous",
                keyword="ambiguity",
            )
    return list(found), doubtful


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
    found, doubtful = collect(threads, rest)
    return bool(found or doubtful)


def _joined(found: list[Reading], more: list[int], space: ReadingSpace) -> Mask:
    ids = list(more)
    for reading in found:
        ids += reading.ids
    pieces = [reading for reading in found if reading.row is not None]
    if not pieces:
        return _sparse(ids, space)
    row = plain_row(pieces[0])
    for piece in pieces[1:]:
        assert piece.row is not None
        row |= plain_row(piece) if piece.removed else piece.row
    if len(ids) > _MAX_SPARSE:
        row |= space.vocabulary.pack(np.array(ids))
    elif ids:
        found_words = _words(ids)
        words = np.array(list(found_words), np.int64)
        row[words] |= np.array(list(found_words.values()), np.uint32)
    return row


def _words(ids: Iterable[int]) -> dict[int, int]:
    words: dict[int, int] = {}
    for token_id in ids:
        words[token_id >> 5] = words.get(token_id >> 5, 0) | 1 << (token_id & 31)
    return words


def _sparse(ids: list[int], space: ReadingSpace) -> Mask:
    if len(ids) > _MAX_SPARSE:
        return space.vocabulary.pack(np.array(ids))
    words = _words(ids)
    if len(words) <= _FEW_WORDS:
        return tuple(words), tuple(words.values())
    return np.array(list(words), np.int64), np.array(list(words.values()), np.uint32)


def _ids_of(readings: Iterable[Reading]) -> set[int]:
    found: set[int] = set()
    for reading in readings:
        found.update(reading.ids)
        if reading.row is not None:
            bits = np.unpackbits(plain_row(reading).view(np.uint8), bitorder="little")
            found.update(np.flatnonzero(bits).tolist())
    return found
