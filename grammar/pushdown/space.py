"""All that grammars share through one vocabulary: residuals, leaves bound to it, and finished mask
rows.
"""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.bounded_reader import BoundedReader
from umbel.grammar.pushdown.counted_reader import CountedBase, CountedReader
from umbel.grammar.pushdown.dfa_reader import DfaReader
from umbel.grammar.pushdown.end_sets import EndSets
from umbel.grammar.pushdown.leaves import (
    BoundedLeaf,
    CountedLeaf,
    DfaLeaf,
    Leaf,
    LexerLeaf,
    LiteralLeaf,
    OverrideLeaf,
    SelectedLeaf,
    TokenLeaf,
)
from umbel.grammar.pushdown.lexer_reader import LexerReader
from umbel.grammar.pushdown.literal_reader import LiteralReader
from umbel.grammar.pushdown.overlaid_reader import OverlaidReader
from umbel.grammar.pushdown.override_reader import OverrideReader
from umbel.grammar.pushdown.reading import Mask, Reader
from umbel.grammar.pushdown.residual import ResidualSpace
from umbel.grammar.pushdown.rules import UNREACHABLE
from umbel.grammar.pushdown.token_reader import TokenReader

if TYPE_CHECKING:
    from umbel.grammar.vocabulary import Vocabulary

_MAX_READERS = 1_500  # the least recently bound go first; grammars keep their own
_MAX_ROW_BYTES = 32 * 2**20
_MAX_SPARSE_ROWS = 10_000  # about 1 kB each
# Bytes that no UTF-8 text holds: a vocabulary without tokens for them lacks nothing.
_NEVER_IN_TEXT = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})
# Control characters, and the lead bytes of planes without characters: many vocabularies lack some
# of them.
_RARE = frozenset({*range(0x20), 0x7F, 0xF1, 0xF2}) - frozenset(b"\t\n\r")


class ReadingSpace(ResidualSpace):
    """Made once per vocabulary. Results are added under a lock or by single dict operations; none
    changes.
    """

    def __init__(self, vocabulary: "Vocabulary") -> None:
        super().__init__(vocabulary)
        lone = set(vocabulary.lone_bytes)
        missing = set(range(256)) - lone - _NEVER_IN_TEXT
        self.is_complete = not missing
        self.is_ordinary = missing <= _RARE
        self.end_sets = EndSets(vocabulary)
        self._readers: OrderedDict[bytes, Reader] = OrderedDict()
        self._bases: OrderedDict[bytes, CountedBase] = OrderedDict()
        self._rows: OrderedDict[object, tuple[object, Mask]] = OrderedDict()
        self._sparse_rows: OrderedDict[object, tuple[object, Mask]] = OrderedDict()
        self._max_rows = max(16, _MAX_ROW_BYTES // (4 * vocabulary.num_words))
        self._long_tokens: dict[
            int, tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.int32]]
        ] = {}
        self._lock = threading.RLock()

    def reader(self, leaf: Leaf) -> Reader:
        """The leaf bound to the vocabulary: one reader for equal leaves as long as it is kept."""
        found = self._readers.get(leaf.key)
        if found is None:
            with self._lock:
                found = self._readers.get(leaf.key)
                if found is None:
                    found = self._bound(leaf)
                    self._readers[leaf.key] = found
                    if len(self._readers) > _MAX_READERS:
                        self._readers.popitem(last=False)
                    return found
        with self._lock:
            if leaf.key in self._readers:  # another thread may just have dropped it
                self._readers.move_to_end(leaf.key)
        return found

    def _bound(self, leaf: Leaf) -> Reader:
        match leaf:
            case DfaLeaf(base=DfaLeaf() as under):
                base = self.reader(under)
                assert isinstance(base, DfaReader)
                return OverlaidReader(leaf, base, self.vocabulary)
            case DfaLeaf():
                return DfaReader(leaf, self.vocabulary)
            case LiteralLeaf():
                return LiteralReader(leaf, self.vocabulary)
            case OverrideLeaf():
                return OverrideReader(leaf, self.reader(leaf.base), self.vocabulary)
            case SelectedLeaf():
                whole = self.reader(leaf.whole)
                assert isinstance(whole, LiteralReader | OverrideReader)
                return whole.selected(leaf.chosen)
            case CountedLeaf():
                return CountedReader(leaf, self._counted_base(leaf))
            case LexerLeaf():
                return LexerReader(leaf, [self.reader(member) for member in leaf.leaves])
            case BoundedLeaf():
                base = self.reader(leaf.base)
                assert isinstance(base, DfaReader)
                return BoundedReader(leaf, base, self.vocabulary)
            case TokenLeaf():
                return TokenReader(leaf, self.vocabulary)
        raise AssertionError(f"no reader for {type(leaf).__name__}")

    def _counted_base(self, leaf: CountedLeaf) -> CountedBase:
        key = leaf.base.key + np.packbits(leaf.counts).tobytes()
        found = self._bases.get(key)
        if found is None:
            reader = self.reader(leaf.base)
            assert isinstance(reader, DfaReader)
            found = self._bases[key] = CountedBase(leaf, reader, self.vocabulary)
            if len(self._bases) > _MAX_READERS:
                self._bases.popitem(last=False)
        return found

    def leaf_cost(self, leaf: Leaf, tag: int | None) -> int:
        """Tokens for the leaf's cheapest text with the tag (None: any)."""
        reader = self.reader(leaf)
        if tag is None and isinstance(reader, LiteralReader):
            return reader.cheapest()
        tags = reader.tags_from(reader.start) if tag is None else (tag,)
        return min((reader.cost(reader.start, t) for t in tags), default=UNREACHABLE)

    def leaf_exists(self, leaf: Leaf, tag: int | None) -> int:
        """0 if tokens spell some text of the leaf with the tag, else UNREACHABLE: cheaper than a
        cost.
        """
        reader = self.reader(leaf)
        if not reader.has_gaps:
            return 0
        return 0 if self.leaf_cost(leaf, tag) < UNREACHABLE else UNREACHABLE

    def long_tokens(
        self, length: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """The tokens of more than `length` bytes: ids [L], bytes [L, longest], lengths [L]."""
        found = self._long_tokens.get(length)
        if found is None:
            texts = self.vocabulary.ids_by_bytes
            long = [(text, i) for text, ids in texts.items() if len(text) > length for i in ids]
            width = max((len(text) for text, _ in long), default=0)
            padded = b"".join(text.ljust(width, b"\0") for text, _ in long)
            found = self._long_tokens[length] = (
                np.array([i for _, i in long], np.int32),
                np.frombuffer(padded, np.uint8).reshape(len(long), width),
                np.array([len(text) for text, _ in long], np.int32),
            )
        return found

    def kept_mask(self, key: object) -> Mask | None:
        found = self._rows.get(key) or self._sparse_rows.get(key)
        return None if found is None else found[1]

    def keep_mask(self, key: object, parts: object, mask: Mask) -> Mask:
        """Keep a mask under a key made of identities; `parts` are the objects, which must stay
        alive. The oldest ones go first.
        """
        is_sparse = isinstance(mask, tuple)
        kept = self._sparse_rows if is_sparse else self._rows
        with self._lock:
            kept[key] = (parts, mask)
            if len(kept) > (_MAX_SPARSE_ROWS if is_sparse else self._max_rows):
                kept.popitem(last=False)
        return mask
