"""Finds tool calls in output text, piece by piece.

The one idea: what the parser decides depends on the characters so far, never on how they were cut,
so the pieces of a stream add up to exactly what the whole text gives.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from umbel.server.tool_syntax import CUSTOM_END, CallSyntax, begin_of_custom

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
    TEXT = auto()  # for the reader, until a call begins
    ARGUMENTS = auto()
    INPUT = auto()  # of a custom tool
    END = auto()  # after the arguments
    NEXT = auto()  # inside a block of calls: after one


class ToolCallParser:
    """Reads the text of one output. Calls of names that are not in `names`, nor in `customs` (tools
    that take text), are text; whitespace next to a call belongs to it. The input of a custom tool
    ends with the first `CUSTOM_END` in it.
    """

    def __init__(
        self, syntax: CallSyntax, names: Collection[str], customs: Collection[str] = ()
    ) -> None:
        self._syntax = syntax
        self._customs = frozenset(customs)
        starts = {syntax.open + syntax.begin_of(name): name for name in names}
        self._starts = _Marks(starts | {begin_of_custom(name): name for name in customs})
        self._nexts = _Marks({syntax.between + syntax.begin_of(name): name for name in names})
        self._state = _State.TEXT
        self._buffer = ""  # not decided on
        self._arguments = _JsonObject()
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
        is_text = self._state is _State.TEXT
        if is_text and (self._buffer.strip(_WHITESPACE) or not self._num_calls):
            self._say(self._buffer)
        if self._state is _State.INPUT:
            self._add_input(len(self._buffer))
        self._buffer = ""
        return self._take()

    def _advance(self) -> bool:
        """One decision; False when more text is needed for it."""
        match self._state:
            case _State.TEXT:
                return self._read_text()
            case _State.ARGUMENTS:
                return self._read_arguments()
            case _State.INPUT:
                return self._read_input()
            case _State.END:
                return self._read_mark(self._syntax.end, self._after_end())
            case _State.NEXT:
                return self._read_next()

    def _read_text(self) -> bool:
        at, name, length = self._starts.find(self._buffer)
        # Whitespace is kept back: it is dropped if a call follows.
        safe = len(self._buffer[:at].rstrip(_WHITESPACE))
        self._say(self._buffer[:safe])
        if name is None:
            self._buffer = self._buffer[safe:]
            return False
        self._open_call(name, at + length)
        return True

    def _read_arguments(self) -> bool:
        length, is_whole = self._arguments.read(self._buffer)
        if length:
            self._pieces.append(CallPiece(self._num_calls - 1, self._buffer[:length]))
        self._buffer = self._buffer[length:]
        if is_whole:
            self._state = _State.END
        return is_whole

    def _read_input(self) -> bool:
        at = self._buffer.find(CUSTOM_END)
        if at >= 0:
            self._add_input(at)
            self._buffer = self._buffer[len(CUSTOM_END) :]
            self._state = _State.TEXT
            return True
        kept = min(len(self._buffer), len(CUSTOM_END) - 1)  # what may be the beginning of the end
        while not CUSTOM_END.startswith(self._buffer[len(self._buffer) - kept :]):
            kept -= 1
        self._add_input(len(self._buffer) - kept)
        return False

    def _add_input(self, length: int) -> None:
        if length:
            self._pieces.append(CallPiece(self._num_calls - 1, self._buffer[:length]))
        self._buffer = self._buffer[length:]

    def _read_next(self) -> bool:
        name, length = self._nexts.match(self._buffer)
        if name is not None:
            self._open_call(name, length)
            return True
        if self._nexts.may_become(self._buffer):
            return False
        return self._read_mark(self._syntax.close, _State.TEXT)

    def _read_mark(self, mark: str, then: _State) -> bool:
        """Drop a mark that must come next; without it, what is there is text again."""
        if self._buffer.startswith(mark):
            self._buffer, self._state = self._buffer[len(mark) :], then
            return True
        if mark.startswith(self._buffer):
            return False
        self._state = _State.TEXT
        return True

    def _after_end(self) -> _State:
        return _State.NEXT if self._syntax.open else _State.TEXT

    def _open_call(self, name: str, length: int) -> None:
        self._buffer = self._buffer[length:]
        self._pieces.append(CallOpened(self._num_calls, name))
        self._num_calls += 1
        self._arguments = _JsonObject()
        self._state = _State.INPUT if name in self._customs else _State.ARGUMENTS

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(TextPiece(text))

    def _take(self) -> list[ToolPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces


class _Marks:
    """Texts that may begin somewhere, with the names that they stand for. None begins another."""

    def __init__(self, marks: dict[str, str]) -> None:
        self._marks = marks
        self._firsts = {mark[:1] for mark in marks}

    def find(self, text: str) -> tuple[int, str | None, int]:
        """(where the first mark begins, its name, its length). A name of None: there is none, but
        from there on the text may become one.
        """
        for at, char in enumerate(text):
            if char in self._firsts:
                name, length = self.match(text, at)
                if name is not None:
                    return at, name, length
                if self.may_become(text[at:]):
                    return at, None, 0
        return len(text), None, 0

    def match(self, text: str, at: int = 0) -> tuple[str | None, int]:
        """(name, length) of the mark at a place, or (None, 0)."""
        for mark, name in self._marks.items():
            if text.startswith(mark, at):
                return name, len(mark)
        return None, 0

    def may_become(self, text: str) -> bool:
        return any(mark.startswith(text) for mark in self._marks)


class _JsonObject:
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
