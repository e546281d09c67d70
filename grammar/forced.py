"""Forced bytes to the tokens that the tokenizer itself would have produced for them, and no others.

Tokenizing forced bytes as they stand is nearly always wrong at the end, where the tokenizer would
have merged them with what follows. So tokens are held back from the first place where a token may
start that reaches past the forced bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from umbel.grammar.machine import TokenMachine
from umbel.grammar.pushdown.configs import Config
from umbel.grammar.vocabulary import Vocabulary

_MAX_FORCED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ForcedText:
    """What must follow a state: whole characters, of which only tokens ending by `safe_len` are
    sure.
    """

    text: bytes
    safe_len: int


def forced_text(machine: TokenMachine, config: Config) -> ForcedText:
    raw, places = machine.forced_bytes(config, _MAX_FORCED_BYTES)
    text = _whole_characters(raw)
    after = places[len(text)]
    trie = machine.vocabulary.trie
    safe_len = len(text)
    for start in range(max(0, len(text) - trie.max_token_len + 1), len(text)):
        node = trie.find(text[start:])
        if node is not None and machine.allows_below(after, node):
            safe_len = start
            break
    if not machine.is_exhausted(after):
        # Pre-tokenizers look ahead after white space (`\s+(?!\S)`), so what follows may still split
        # it.
        safe_len = min(safe_len, len(text.rstrip()))
    return ForcedText(text, safe_len)


def forced_tokens(
    forced: ForcedText, vocabulary: Vocabulary, recent_ids: Sequence[int]
) -> list[int]:
    """The sure tokens of `forced` after the tokens `recent_ids` (the end of the text so far).

    Empty when the tokenizer would not have put a token boundary where the text so far ends: the
    text is not the canonical one then, and neither is any way to continue it.
    """
    if vocabulary.encode is None:
        return []
    before = _context(vocabulary, recent_ids)
    if before is None:
        return []
    try:
        joint = (before + forced.text).decode()
    except UnicodeDecodeError:
        return []  # the text so far ends inside a character: its rest is only a few bytes
    tokens: list[int] = []
    at = 0
    seen_boundary = not before
    for token_id in vocabulary.encode(joint):
        text = vocabulary.text_of(token_id)
        if text is None or not (before + forced.text).startswith(text, at):
            return []  # a normalizing tokenizer: ids do not spell this text
        if at >= len(before):
            if at + len(text) > len(before) + forced.safe_len:
                break
            tokens.append(token_id)
        at += len(text)
        seen_boundary |= at == len(before)
    return tokens if seen_boundary else []


def _context(vocabulary: Vocabulary, recent_ids: Sequence[int]) -> bytes | None:
    """The bytes of the recent tokens from the first one on that starts a character."""
    texts = [vocabulary.text_of(token_id) for token_id in recent_ids]
    if None in texts:
        return None
    joined = b"".join(text for text in texts if text)
    for text in texts:
        if not text or not 0x80 <= joined[0] < 0xC0:
            return joined
        joined = joined[len(text) :]
    return joined


def _whole_characters(text: bytes) -> bytes:
    """Without the bytes of a last character that is not complete (the text may start inside a
    character).
    """
    for back in range(1, min(4, len(text)) + 1):
        value = text[-back]
        if value < 0x80:
            return text
        if value >= 0xC0:
            length = 2 if value < 0xE0 else 3 if value < 0xF0 else 4
            return text if back >= length else text[:-back]
    return text
