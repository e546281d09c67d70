"""Text to token ids and back, exactly. Made once per engine; safe to use from any thread.

Encoding adds nothing, not even the space that some tokenizers put before every text, so that pieces
of text can be encoded where they are appended. Special tokens come from template text only.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import tokenizers

from umbel.runtime.errors import InvalidRequest, ModelError
from umbel.runtime.loading.gguf_file import GGUFFile
from umbel.runtime.loading.source import ModelSource
from umbel.runtime.tokenizer_files import Spelling, TokenizerData, read_folder
from umbel.runtime.tokenizer_gguf import read_gguf

_VISIBLE_SPACE = "▁"


def load_tokenizer(source: ModelSource) -> "Tokenizer":
    """The tokenizer of a model.

    Raises `ModelError` naming the file when it is missing, malformed or of an unsupported kind.
    """
    if source.format == "gguf":
        return Tokenizer(read_gguf(GGUFFile(source.path).metadata, source.path))
    return Tokenizer(read_folder(source.path))


class Tokenizer:
    """Immutable. `vocab_size` counts all ids, special ones included (the largest id plus one).

    `token_bytes[id]` are the exact bytes of a token of text; None for a special token and for an id
    without a token. `special_ids` maps the text of special tokens to their ids, `special_names`
    their part ("bos_token", "eos_token", ...) to their text.
    """

    def __init__(self, data: TokenizerData) -> None:
        self._plain = data.plain
        self._marked = data.marked
        self.eos_ids = data.eos_ids
        self.bos_id = data.bos_id
        self.chat_template = data.chat_template
        self.special_names = data.special_names
        self._starts_with_bos = data.starts_with_bos
        added = data.marked.get_added_tokens_decoder()
        self.special_ids = {t.content: i for i, t in added.items() if t.special}
        self.token_bytes = _token_bytes(data.marked, data.spelling)
        self.vocab_size = len(self.token_bytes)
        self._special_texts = {i: text.encode() for text, i in self.special_ids.items()}
        to_bytes = _TO_BYTES[data.spelling]
        self._built_bytes = {i: to_bytes(text) for text, i in self.special_ids.items()}
        self._check_eos()

    def bos_ids(self) -> list[int]:
        """What a fresh sequence starts with: [bos] or []."""
        return [self.bos_id] if self._starts_with_bos and self.bos_id is not None else []

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`, with nothing added before or after.

        With `special`, the text of a special token becomes that token; otherwise it stays text.
        Raises `InvalidRequest` for what is no text (lone surrogates included).
        """
        backend = self._marked if special else self._plain
        try:
            ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        except TypeError as exc:
            raise InvalidRequest(
                f"{text!r:.80} cannot be encoded: expected a string of Unicode characters "
                f"(no lone surrogates)"
            ) from exc
        if not special and not self._special_texts.keys().isdisjoint(ids):
            return self._spell_specials(ids)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD."""
        data = b"".join(self.bytes_of(i, skip_special=skip_special) for i in ids)
        return data.decode("utf-8", errors="replace")

    def bytes_of(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """The bytes that a token adds to the text; b"" for an id without text.

        Ids beyond the vocabulary have none either: models pad their logits.
        """
        data = self.token_bytes[token_id] if 0 <= token_id < self.vocab_size else None
        if data is None:
            return b"" if skip_special else self._special_texts.get(token_id, b"")
        return data

    def spell(self, text: str) -> list[int]:
        """Ordinary tokens whose bytes are exactly those of `text`.

        These are the tokens of `encode`, except where the tokenizer would change the text (Unicode
        normalization): there the longest matching tokens, left to right. Bytes that no token has
        are left out, as the tokenizers themselves do (SmolLM2 has none for 0x04 and seven others).
        """
        ids = self.encode(text)
        data = text.encode()
        if b"".join(map(self.bytes_of, ids)) == data:
            return ids
        return self._spell_bytes(data)

    def _spell_specials(self, ids: Sequence[int]) -> list[int]:
        # The BPE model may build the string of a special token by merges, where it is but a string
        # of the vocabulary; it is spelled out instead.
        spelled: list[int] = []
        for token_id in ids:
            data = self._built_bytes.get(token_id)
            spelled += [token_id] if data is None else self._spell_bytes(data)
        return spelled

    def _spell_bytes(self, data: bytes) -> list[int]:
        ids = []
        position = 0
        while position < len(data):
            end = min(len(data), position + self._longest)
            while end > position and data[position:end] not in self._ids_by_bytes:
                end -= 1
            if end > position:
                ids.append(self._ids_by_bytes[data[position:end]])
            position = max(end, position + 1)
        return ids

    @cached_property
    def _ids_by_bytes(self) -> dict[bytes, int]:
        # Backwards, so that of several tokens with the same bytes the first id stays.
        pairs = [(data, i) for i, data in enumerate(self.token_bytes) if data]
        return dict(reversed(pairs))

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids_by_bytes))

    def _check_eos(self) -> None:
        for token_id in self.eos_ids:
            if not 0 <= token_id < self.vocab_size:
                raise ModelError(
                    f"the end token {token_id} is not in the tokenizer's vocabulary of "
                    f"{self.vocab_size} tokens; the tokenizer does not belong to this model"
                )


def _token_bytes(backend: tokenizers.Tokenizer, spelling: Spelling) -> list[bytes | None]:
    vocab = backend.get_vocab(with_added_tokens=True)
    if not vocab:
        raise ModelError("the tokenizer's vocabulary is empty")
    table: list[bytes | None] = [None] * (max(vocab.values()) + 1)
    to_bytes = _TO_BYTES[spelling]
    for token, token_id in vocab.items():
        table[token_id] = to_bytes(token)
    for token_id, added in backend.get_added_tokens_decoder().items():
        table[token_id] = None if added.special else added.content.encode()
    return table


def _from_byte_level(token: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF_CHAR.__getitem__, token))
    except KeyError:  # a token that was added as text: the decoders of `tokenizers` do the same
        return token.encode()


def _from_visible_space(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass  # not a byte token after all
    return token.replace(_VISIBLE_SPACE, " ").encode()


def _byte_of_char() -> dict[str, int]:
    """GPT-2's map from 256 visible characters to bytes
    (https://github.com/openai/gpt-2/blob/master/src/encoder.py: bytes_to_unicode)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    pairs = [*((chr(byte), byte) for byte in visible)]
    return dict([*pairs, *((chr(0x100 + i), byte) for i, byte in enumerate(hidden))])


_BYTE_OF_CHAR = _byte_of_char()
_TO_BYTES: dict[Spelling, Callable[[str], bytes]] = {
    "byte_level": _from_byte_level,
    "visible_space": _from_visible_space,
}
