"""The model's tokens as the grammar sees them: bytes, which ids end a text, and which bytes can be
spelled.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from umbel.grammar.pushdown.space import ReadingSpace
from umbel.grammar.trie import TokenTrie


class Vocabulary:
    """Immutable view of a tokenizer, shared by all constraints compiled for it.

    token_bytes: the text of each id; None for a special token, which is never text. Empty tokens
    are never allowed by a mask (they would make no progress), duplicate bytes are all allowed
    together.
    eos_ids: ids that end a text, allowed exactly when the text so far is complete; never text
    themselves.
    size: width of the model's logits, at least `len(token_bytes)`; ids beyond the tokenizer are
    never allowed.
    special_ids: special tokens by the name that a grammar may call them (`<|name|>`).
    encode: the tokenizer's own segmentation of a text, without special tokens; None: no forced
    tokens.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        eos_ids: Sequence[int],
        *,
        size: int,
        encode: Callable[[str], list[int]] | None = None,
        special_ids: Mapping[str, int] | None = None,
    ) -> None:
        if size < len(token_bytes):
            raise ValueError(
                f"size={size} is smaller than the {len(token_bytes)} tokens given; "
                "pass the width of the model's logits"
            )
        outside = [token_id for token_id in eos_ids if not 0 <= token_id < size]
        if outside:
            raise ValueError(f"eos_ids {outside} are not in [0, {size})")
        self.size = size
        self.num_words = (size + 31) // 32
        self.eos_ids = frozenset(eos_ids)
        self.encode = encode
        self.special_ids = dict(special_ids or {})
        self._bytes: list[bytes | None] = [
            text if text and token_id not in self.eos_ids else None
            for token_id, text in enumerate(token_bytes)
        ]

    def text_of(self, token_id: int) -> bytes | None:
        """The non-empty bytes of a text token; None for special, EOS, empty and unknown ids."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else None

    @cached_property
    def ids_by_bytes(self) -> dict[bytes, list[int]]:
        """Every distinct non-empty token text with its ids."""
        found: dict[bytes, list[int]] = {}
        for token_id, text in enumerate(self._bytes):
            if text:
                found.setdefault(text, []).append(token_id)
        return found

    @cached_property
    def trie(self) -> TokenTrie:
        return TokenTrie(self.ids_by_bytes)

    @cached_property
    def readings(self) -> ReadingSpace:
        """What all constraints of this vocabulary share: see `pushdown.space`."""
        return ReadingSpace(self)

    @cached_property
    def has_byte(self) -> npt.NDArray[np.bool_]:
        """[256] bool: whether the byte alone is a token."""
        available = np.zeros(256, bool)
        available[[text[0] for text in self.ids_by_bytes if len(text) == 1]] = True
        return available

    @cached_property
    def lone_bytes(self) -> bytes:
        """The bytes that are tokens by themselves."""
        return bytes(np.flatnonzero(self.has_byte).tolist())

    def fewest_tokens(self, text: bytes) -> list[int]:
        """For each offset of `text` and its end, the fewest tokens that spell the rest; 2**40 if
        none do.
        """
        costs = [2**40] * len(text) + [0]
        ids_by_bytes = self.ids_by_bytes
        longest = min(self.trie.max_token_len, 32)  # longer ones save little
        for start in range(len(text) - 1, -1, -1):
            for end in range(start + 1, min(len(text), start + longest) + 1):
                if costs[end] < costs[start] and text[start:end] in ids_by_bytes:
                    costs[start] = costs[end] + 1
        return costs

    @cached_property
    def compound_atoms(self) -> list[bytes]:
        """Tokens of two or more bytes that are no concatenation of shorter tokens.

        Together with the single bytes they spell everything the vocabulary can spell, so liveness
        needs to look at no other token. Byte-level vocabularies have next to none; those without
        byte tokens, many.
        """
        lone = {value for value in range(256) if self.has_byte[value]}
        rest = [text for text in self.ids_by_bytes if len(text) > 1 and not lone.issuperset(text)]
        atoms: set[bytes] = {bytes([value]) for value in lone}
        compound = []
        for text in sorted(rest, key=len):
            if not _is_concatenation(text, atoms):
                atoms.add(text)
                compound.append(text)
        return compound

    @cached_property
    def eos_row(self) -> npt.NDArray[np.uint32]:
        """[W] uint32: a mask with the bits of all EOS ids."""
        return self.pack(np.array(sorted(self.eos_ids), np.int64))

    @cached_property
    def key(self) -> str:
        """Content hash of everything that masks depend on."""
        digest = hashlib.sha256(
            f"{self.size} {sorted(self.eos_ids)} {self.encode is None}".encode()
        )
        for text in self._bytes:
            digest.update(b"-" if text is None else b"%d:%b" % (len(text), text))
        return digest.hexdigest()

    def pack(self, token_ids: npt.NDArray[np.integer]) -> npt.NDArray[np.uint32]:
        """Ids to a mask row [W] uint32: bit `i % 32` of word `i // 32` is token i."""
        bits = np.zeros(self.num_words * 32, np.uint8)
        bits[token_ids] = 1
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32, copy=False)


def _is_concatenation(text: bytes, pieces: set[bytes]) -> bool:
    reachable = [True] + [False] * len(text)
    for end in range(1, len(text) + 1):
        reachable[end] = any(reachable[start] and text[start:end] in pieces for start in range(end))
    return reachable[-1]
