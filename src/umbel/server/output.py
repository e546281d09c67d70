"""One output as its readers want it: text, thoughts, tool calls and an ending.

Both the streamed and the whole answers of chats and responses are made from these events, so they
cannot differ.
"""

import secrets
from dataclasses import dataclass, field
from typing import Literal

from umbel.runtime.outputs import FinishReason, TokenLogprob
from umbel.server.call import Ending, Piece
from umbel.server.tool_parser import (
    CallOpened,
    CallPiece,
    TextPiece,
    ToolCallParser,
    ToolPiece,
)
from umbel.server.tools import ToolConstraint, ToolPlan, ToolSpec

FinishName = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    index: int
    call_id: str
    tool: ToolSpec


@dataclass(frozen=True, slots=True)
class CallDelta:
    index: int
    text: str
    tool: ToolSpec


Event = ThoughtDelta | TextDelta | CallStarted | CallDelta


@dataclass(slots=True)
class News:
    """What one piece says. `finish` and `ending` come with the last."""

    events: list[Event]
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishName | None = None
    ending: Ending | None = None


class OutputReader:
    """Reads the pieces of one sequence."""

    def __init__(self, plan: ToolPlan | None, constraint: ToolConstraint | None) -> None:
        self._tools = {tool.name: tool for tool in plan.tools} if plan is not None else {}
        self._raw = constraint.raw if constraint is not None else None
        self._parser: ToolCallParser | None = None
        if constraint is not None and constraint.syntax is not None:
            customs = [name for name, tool in self._tools.items() if tool.kind == "custom"]
            functions = [name for name, tool in self._tools.items() if tool.kind == "function"]
            self._parser = ToolCallParser(constraint.syntax, functions, customs)
        self._has_raw_call = False
        self._called: list[ToolSpec] = []

    def read(self, piece: Piece) -> News:
        if piece.is_thought:
            events: list[Event] = [ThoughtDelta(piece.text)] if piece.text else []
        else:
            events = self._answer(piece.text, is_last=piece.ending is not None)
        news = News(events, piece.logprobs)
        if piece.ending is not None:
            news.ending = piece.ending
            news.finish = self._finish(piece.ending)
        return news

    def _answer(self, text: str, *, is_last: bool) -> list[Event]:
        if self._raw is not None:
            return self._raw_call(self._raw, text)
        if self._parser is None:
            return [TextDelta(text)] if text else []
        pieces = self._parser.feed(text)
        if is_last:
            pieces += self._parser.finish()
        return [self._event(piece) for piece in pieces]

    def _raw_call(self, tool: ToolSpec, text: str) -> list[Event]:
        events: list[Event] = [] if self._has_raw_call else [_started(0, tool)]
        self._has_raw_call = True
        return [*events, CallDelta(0, text, tool)] if text else events

    def _event(self, piece: ToolPiece) -> Event:
        match piece:
            case TextPiece(text):
                return TextDelta(text)
            case CallOpened(index, name):
                self._called.append(self._tools[name])
                return _started(index, self._called[index])
            case CallPiece(index, text):
                return CallDelta(index, text, self._called[index])

    def _finish(self, ending: Ending) -> FinishName:
        if ending.finish_reason is FinishReason.LENGTH:
            return "length"
        has_calls = self._has_raw_call or (self._parser is not None and self._parser.num_calls > 0)
        return "tool_calls" if has_calls else "stop"


@dataclass(slots=True)
class WholeCall:
    call_id: str
    tool: ToolSpec
    text: str = ""


@dataclass(slots=True)
class WholeOutput:
    """All events of one sequence together."""

    thought: str = ""
    text: str = ""
    calls: list[WholeCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishName = "stop"
    ending: Ending | None = None

    def add(self, news: News) -> None:
        for event in news.events:
            match event:
                case ThoughtDelta(text):
                    self.thought += text
                case TextDelta(text):
                    self.text += text
                case CallStarted(_, call_id, tool):
                    self.calls.append(WholeCall(call_id, tool))
                case CallDelta(index, text, _):
                    self.calls[index].text += text
        self.logprobs += news.logprobs
        if news.finish is not None:
            self.finish, self.ending = news.finish, news.ending


def _started(index: int, tool: ToolSpec) -> CallStarted:
    return CallStarted(index, f"call_{secrets.token_hex(12)}", tool)
