"""Log-probabilities in OpenAI's two formats."""

import codecs
from collections.abc import Sequence

from umbel.runtime.outputs import TokenLogprob
from umbel.runtime.tokenizer import Tokenizer
from umbel.server.protocol.chat import ChatLogprobs, ContentLogprob, TopLogprob
from umbel.server.protocol.completions import CompletionLogprobs

_LOWEST = -9999.0  # JSON has no minus infinity; OpenAI's value for it


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> ChatLogprobs:
    """Tokens without text (the end token) have no entry."""
    content = []
    for entry in entries:
        data = tokenizer.bytes_of(entry.token_id)
        if data:
            top = [_top(tokenizer, token_id, logprob) for token_id, logprob in entry.top]
            content.append(
                ContentLogprob(
                    token=_text(data),
                    logprob=max(entry.logprob, _LOWEST),
                    bytes=list(data),
                    top_logprobs=top,
                )
            )
    return ChatLogprobs(content=content)


class CompletionLogprobsWriter:
    """The format of `/v1/completions`, piece by piece: it counts the characters before."""

    def __init__(self, tokenizer: Tokenizer, *, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_chars = 0

    def write(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None]
    ) -> CompletionLogprobs:
        """Of tokens in order; an entry is None for the first token of a prompt."""
        written = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        for token_id, entry in zip(token_ids, entries, strict=True):
            data = self._tokenizer.bytes_of(token_id)
            written.tokens.append(_shown(self._tokenizer, token_id))
            written.text_offset.append(self._num_chars)
            self._num_chars += len(self._decoder.decode(data))
            if entry is None:
                written.token_logprobs.append(None)
                written.top_logprobs.append(None)
            else:
                written.token_logprobs.append(max(entry.logprob, _LOWEST))
                written.top_logprobs.append(self._top(entry))
        return written

    def _top(self, entry: TokenLogprob) -> dict[str, float] | None:
        if not self._num_top:
            return None
        top = {
            _shown(self._tokenizer, token_id): max(logprob, _LOWEST)
            for token_id, logprob in entry.top
        }
        top.setdefault(_shown(self._tokenizer, entry.token_id), max(entry.logprob, _LOWEST))
        return top


def _top(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    data = tokenizer.bytes_of(token_id, skip_special=False)
    return TopLogprob(token=_text(data), logprob=max(logprob, _LOWEST), bytes=list(data))


def _shown(tokenizer: Tokenizer, token_id: int) -> str:
    return _text(tokenizer.bytes_of(token_id, skip_special=False))


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
