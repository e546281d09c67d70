"""Finds tool calls in output text, piece by piece.

The one idea: what the parser decides depends on the characters so far, never on how they were cut,
so the pieces of a stream add up to exactly what the whole text gives.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from umbel.server.tools import CallSyntax

_MAX_HEAD_CHARS = 1024  # a call's text up to its arguments; longer is no call
_WHITESPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """The `index`-th call began."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """More of the arguments of the `index`-th call."""

    index: int
    text: str


ToolPiece = TextPiece | CallOpened | CallPiece


class _State(Enum):
    TEXT = auto()  # for the reader, until a call opens
    OPENING = auto()  # nothing but calls: before the first
    HEAD = auto()  # {"name": "...", "arguments":
    ARGUMENTS = auto()
    TAIL = auto()  # after the arguments
    NEXT = auto()  # nothing but calls: after one
    REST = auto()  # text that is no call any more


class ToolCallParser:
    """Reads the text of one output. Calls of names that are not in `names` are text."""

    def __init__(self, syntax: CallSyntax, names: Collection[str]) -> None:
        self._syntax = syntax
        self._names = names
        self._state = _State.TEXT if syntax.has_text else _State.OPENING
        self._buffer = ""  # not decided on
        self._marked = ""  # the text in front of the buffer, if the call turns out to be none
        self._arguments = _JsonValue()
        self._num_calls = 0
        self._pieces: list[ToolPiece] = []

    @property
    def num_calls(self) -> int:
        return self._num_calls

    def feed(self, text: str) -> list[ToolPiece]:
        """What became certain with `text`."""
        self._buffer += text
        while self._buffer and self._advance():
            pass
        return self._take()

    def finish(self) -> list[ToolPiece]:
        """No more text will come: what is left."""
        if self._state is _State.HEAD:
            self._give_up()
            while self._buffer and self._advance():
                pass
        if self._state in (_State.TEXT, _State.OPENING, _State.REST) and (
            self._buffer.strip(_WHITESPACE) or not self._num_calls
        ):
            self._say(self._buffer)
        self._buffer = ""
        return self._take()

    def _advance(self) -> bool:
        """One decision; False when more text is needed for it."""
        return _STEPS[self._state](self)

    def _read_text(self) -> bool:
        opening = self._syntax.opening
        at = self._buffer.find(opening)
        if at >= 0:
            before = self._buffer[:at].rstrip(_WHITESPACE)
            self._say(before)
            self._marked = self._buffer[len(before) : at + len(opening)]
            self._buffer = self._buffer[at + len(opening) :]
            self._state = _State.HEAD
            return True
        # Keep what may become a mark, and whitespace, which is dropped next to a call.
        safe = len(self._buffer) - _overlap(self._buffer, opening)
        safe = len(self._buffer[:safe].rstrip(_WHITESPACE))
        self._say(self._buffer[:safe])
        self._buffer = self._buffer[safe:]
        return False

    def _read_opening(self) -> bool:
        found, rest = _after(self._buffer, self._syntax.opening)
        if found is None:
            return False
        if found:
            self._marked = self._buffer[: len(self._buffer) - len(rest)]
            self._buffer = rest
            self._state = _State.HEAD
        else:
            self._state = _State.REST
        return True

    def _read_head(self) -> bool:
        head = _scan_head(self._buffer)
        if head is None and len(self._buffer) <= _MAX_HEAD_CHARS:
            return False
        if not head or head[0] not in self._names or head[1] > _MAX_HEAD_CHARS:
            self._give_up()
            return True
        name, length = head
        self._buffer = self._buffer[length:]
        self._pieces.append(CallOpened(self._num_calls, name))
        self._num_calls += 1
        self._arguments = _JsonValue()
        self._state = _State.ARGUMENTS
        return True

    def _read_arguments(self) -> bool:
        length, is_whole = self._arguments.read(self._buffer)
        if length:
            self._pieces.append(CallPiece(self._num_calls - 1, self._buffer[:length]))
        self._buffer = self._buffer[length:]
        if is_whole:
            self._state = _State.TAIL
        return is_whole

    def _read_tail(self) -> bool:
        found, rest = _after(self._buffer, "}")
        if found and self._syntax.has_text:
            found, rest = _after(rest, self._syntax.closing)
        if found is None:
            return False
        if found:
            self._buffer = rest
        self._state = _State.TEXT if self._syntax.has_text else _State.NEXT
        return True

    def _read_next(self) -> bool:
        found, rest = _after(self._buffer, self._syntax.separator or "\0")
        if found is None:
            return False
        if found:
            self._marked = self._buffer[: len(self._buffer) - len(rest)]
            self._buffer = rest
            self._state = _State.HEAD
            return True
        _, self._buffer = _after(self._buffer, self._syntax.closing)
        self._state = _State.REST
        return True

    def _read_rest(self) -> bool:
        safe = len(self._buffer.rstrip(_WHITESPACE))
        self._say(self._buffer[:safe])
        self._buffer = self._buffer[safe:]
        return False

    def _give_up(self) -> None:
        """It is no call: the marks are text, and what follows may hold another."""
        self._say(self._marked)
        self._marked = ""
        self._state = _State.TEXT if self._syntax.has_text else _State.REST

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(TextPiece(text))

    def _take(self) -> list[ToolPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces


_STEPS = {
    _State.TEXT: ToolCallParser._read_text,
    _State.OPENING: ToolCallParser._read_opening,
    _State.HEAD: ToolCallParser._read_head,
    _State.ARGUMENTS: ToolCallParser._read_arguments,
    _State.TAIL: ToolCallParser._read_tail,
    _State.NEXT: ToolCallParser._read_next,
    _State.REST: ToolCallParser._read_rest,
}


class _JsonValue:
    """Finds the end of an object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def read(self, text: str) -> tuple[int, bool]:
        """(characters that belong to the object, whether it ended)."""
        for index, char in enumerate(text):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif char == "\\":
                    self._is_escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return index + 1, True
        return len(text), False


def _after(text: str, mark: str) -> tuple[bool | None, str]:
    """(whether `mark` comes next but for whitespace, the text after it); None: not decided yet."""
    rest = text.lstrip(_WHITESPACE)
    if rest.startswith(mark):
        return True, rest[len(mark) :]
    return (None if mark.startswith(rest) else False), text


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins `mark`."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0


def _scan_head(text: str) -> tuple[str, int] | tuple[()] | None:
    """(name, length) of `{"name": "...", "arguments": ` before an object; () if it is something
    else, None if it may become one.
    """
    rest = text
    for mark in ("{", '"name"', ":"):
        found, rest = _after(rest, mark)
        if not found:
            return None if found is None else ()
    rest = rest.lstrip(_WHITESPACE)
    if not rest:
        return None
    end = _string_end(rest)
    if end is None:
        return None if rest[0] == '"' else ()
    try:
        name = msgspec.json.decode(rest[:end], type=str)
    except msgspec.DecodeError:
        return ()
    rest = rest[end:]
    for mark in (",", '"arguments"', ":"):
        found, rest = _after(rest, mark)
        if not found:
            return None if found is None else ()
    rest = rest.lstrip(_WHITESPACE)
    if not rest:
        return None
    return (name, len(text) - len(rest)) if rest[0] == "{" else ()


def _string_end(text: str) -> int | None:
    """Where the JSON string at the beginning of `text` ends; None: it does not, or is none."""
    if text[0] != '"':
        return None
    at = 1
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == '"':
            return at + 1
        else:
            at += 1
    return None
