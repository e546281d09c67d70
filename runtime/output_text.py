"""The text of one generated sequence, piece by piece: what may be shown, and where it stops.

Used by the engine for every output. Two automata read the tokens once: a UTF-8 decoder, which holds
back unfinished characters, and an Aho-Corasick automaton over the stop strings, whose depth is
exactly the number of characters that may still become one.
"""

import codecs
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

from umbel.runtime.params import SamplingParams


class TextTokenizer(Protocol):
    """What output text needs of a tokenizer."""

    def bytes_of(self, token_id: int, *, skip_special: bool = True) -> bytes: ...
    def spell(self, text: str) -> list[int]: ...


class OutputText:
    """Takes token ids, gives text. Special tokens have no text unless `include_special`.

    A stop string ends the text where it begins; the first one that is complete wins, and of several
    complete at the same character the longest. The text is that of all bytes together: how the
    tokens are cut into pushes never changes it, and bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(
        self, tokenizer: TextTokenizer, *, stop: Sequence[str] = (), include_special: bool = False
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = not include_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = _StopAutomaton(stop) if stop else None
        self._ids: list[int] = []  # tokens with text
        # After which tokens the text ends with a whole character: counts of tokens and characters.
        self._boundary_tokens = [0]
        self._boundary_chars = [0]
        self._num_chars = 0  # decoded, held characters included
        self._held = ""  # decoded, not shown: may become a stop string
        self._shown: list[str] = []
        self._stop_hit: str | None = None
        self._is_finished = False

    @property
    def stop_hit(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stop_hit

    @property
    def text(self) -> str:
        """All that was shown so far; after `finish()` or a stop, the whole text."""
        if len(self._shown) > 1:
            self._shown = ["".join(self._shown)]
        return self._shown[0] if self._shown else ""

    def push(self, token_ids: Iterable[int]) -> str:
        """Take tokens; returns the new text that is safe to show.

        It never ends inside a character and never holds the beginning of what may become a stop
        string. After a stop string was found, tokens change nothing.
        """
        assert not self._is_finished, "tokens were pushed after finish()"
        new = []
        for token_id in token_ids:
            if self._stop_hit is not None:
                break
            data = self._tokenizer.bytes_of(token_id, skip_special=self._skip_special)
            if not data:
                continue
            self._ids.append(token_id)
            new.append(self._take(self._decoder.decode(data)))
            if self._stop_hit is None and not self._decoder.getstate()[0]:
                self._boundary_tokens.append(len(self._ids))
                self._boundary_chars.append(self._num_chars)
        return self._show("".join(new))

    def finish(self) -> str:
        """No more tokens will come: returns the rest. An unfinished character is one U+FFFD."""
        if self._is_finished:
            return ""
        self._is_finished = True
        if self._stop_hit is not None:
            return ""
        rest = self._take(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return self._show(rest + held)

    def text_token_ids(self) -> tuple[int, ...]:
        """Tokens that spell exactly `text`: those pushed, without special ones; after a stop string
        as many of them as end before it, and then the remainder spelled anew."""
        if self._stop_hit is None:
            return tuple(self._ids)
        text = self.text
        last = bisect_right(self._boundary_chars, len(text)) - 1
        kept = self._ids[: self._boundary_tokens[last]]
        remainder = text[self._boundary_chars[last] :]
        return (*kept, *(self._tokenizer.spell(remainder) if remainder else ()))

    def _show(self, text: str) -> str:
        if text:
            self._shown.append(text)
        return text

    def _take(self, decoded: str) -> str:
        """Read decoded characters; returns what became safe to show and keeps the rest held."""
        if self._stops is None or not decoded:
            self._num_chars += len(decoded)
            return decoded
        pending = self._held + decoded
        num_read, hit = self._stops.read(decoded)
        self._num_chars += num_read
        end = len(self._held) + num_read
        if hit is not None:
            self._stop_hit, self._held = hit, ""
            return pending[: end - len(hit)]
        safe = len(pending) - self._stops.depth
        self._held = pending[safe:]
        return pending[:safe]


def output_text_of(tokenizer: TextTokenizer, params: SamplingParams) -> OutputText:
    """The text of a sequence that was asked for with `params`."""
    return OutputText(tokenizer, stop=params.stop, include_special=not params.skip_special_tokens)


class _StopAutomaton:
    """Aho & Corasick, "Efficient string matching" (1975), over characters: linear in the text."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._match: list[str | None] = [None]  # the longest stop string that ends at the state
        self._state = 0
        for stop in stops:
            self._add(stop)
        self._link()

    @property
    def depth(self) -> int:
        """Length of the longest end of the text read that begins some stop string."""
        return self._depth[self._state]

    def read(self, text: str) -> tuple[int, str | None]:
        """(characters read, the stop string that is complete after them or None)."""
        state = self._state
        for index, char in enumerate(text):
            while state and char not in self._next[state]:
                state = self._fail[state]
            state = self._next[state].get(char, 0)
            if self._match[state] is not None:
                self._state = state
                return index + 1, self._match[state]
        self._state = state
        return len(text), None

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = self._next[state][char]
        self._match[state] = stop

    def _link(self) -> None:
        queue = list(self._next[0].values())
        for state in queue:  # grows: breadth first
            for char, child in self._next[state].items():
                fail = self._fail[state]
                while fail and char not in self._next[fail]:
                    fail = self._fail[fail]
                self._fail[child] = self._next[fail].get(char, 0)
                if self._match[child] is None:
                    self._match[child] = self._match[self._fail[child]]
                queue.append(child)
