"""The output of a response as items, and the events that tell of them while they grow.

Whole answers take the items, streams the events: one writer makes both.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from umbel.runtime.outputs import TokenLogprob
from umbel.runtime.tokenizer import Tokenizer
from umbel.server.logprobs import chat_logprobs
from umbel.server.output import CallDelta, CallStarted, Event, News, TextDelta, ThoughtDelta
from umbel.server.protocol.chat import ContentLogprob
from umbel.server.protocol.responses import (
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
)
from umbel.server.tools import ToolSpec

AnyItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


@dataclass(slots=True)
class _Open:
    """The item that grows; `tool` is None for texts and thoughts."""

    index: int
    item: AnyItem
    tool: ToolSpec | None = None
    text: list[str] = field(default_factory=list)
    logprobs: list[ContentLogprob] = field(default_factory=list)


class ItemWriter:
    """Takes the news of one output."""

    def __init__(self, tokenizer: Tokenizer, *, has_logprobs: bool) -> None:
        self.items: list[AnyItem] = []
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._open: _Open | None = None
        self._num_events = 0

    def numbered(self, event: ResponseEvent) -> ResponseEvent:
        """The event with its number in the stream."""
        event.sequence_number = self._num_events
        self._num_events += 1
        return event

    def write(self, news: News) -> list[ResponseEvent]:
        """The events of some news; after the last, every item is closed."""
        events: list[ResponseEvent] = []
        logprobs = self._logprobs(news.logprobs)
        for one in news.events:
            events += self._begin(one)
            if isinstance(one, TextDelta):
                events += self._text_delta(one.text, logprobs)
                logprobs = []
            elif isinstance(one, ThoughtDelta | CallDelta) and one.text:
                events += self._delta(one.text)
        if news.finish is not None:
            status: ItemStatus = "incomplete" if news.finish == "length" else "completed"
            if not self.items and self._open is None:  # an empty answer is a message, too
                events += self._start(MessageItem(id=_id("msg"), status="in_progress", content=[]))
            events += self._close(status)
        return [self.numbered(event) for event in events]

    def _logprobs(self, entries: list[TokenLogprob]) -> list[ContentLogprob]:
        return chat_logprobs(self._tokenizer, entries).content if self._has_logprobs else []

    def _begin(self, one: Event) -> Iterator[ResponseEvent]:
        """Close the item that grows and start another, if the event belongs to another."""
        match one:
            case ThoughtDelta():
                if self._open is None or not isinstance(self._open.item, ReasoningItem):
                    yield from self._close("completed")
                    yield from self._start(ReasoningItem(id=_id("rs"), status="in_progress"))
            case TextDelta():
                if self._open is None or not isinstance(self._open.item, MessageItem):
                    yield from self._close("completed")
                    item = MessageItem(id=_id("msg"), status="in_progress", content=[])
                    yield from self._start(item)
            case CallStarted(_, call_id, tool):
                yield from self._close("completed")
                yield from self._start(_call_item(call_id, tool, "", "in_progress"), tool)

    def _start(self, item: AnyItem, tool: ToolSpec | None = None) -> Iterator[ResponseEvent]:
        self._open = _Open(len(self.items), item, tool)
        yield self._event("response.output_item.added", item=item)
        if isinstance(item, MessageItem):
            part = OutputText(text="")
            yield self._event("response.content_part.added", at_part=True, part=part)
        elif isinstance(item, ReasoningItem):
            thought = ReasoningText(text="")
            yield self._event("response.content_part.added", at_part=True, part=thought)

    def _text_delta(self, text: str, logprobs: list[ContentLogprob]) -> Iterator[ResponseEvent]:
        assert self._open is not None
        self._open.text.append(text)
        self._open.logprobs += logprobs
        yield self._event("response.output_text.delta", at_part=True, delta=text, logprobs=logprobs)

    def _delta(self, text: str) -> Iterator[ResponseEvent]:
        assert self._open is not None
        self._open.text.append(text)
        if isinstance(self._open.item, ReasoningItem):
            yield self._event("response.reasoning_text.delta", at_part=True, delta=text)
        elif isinstance(self._open.item, FunctionCallItem):
            yield self._event("response.function_call_arguments.delta", at_item=True, delta=text)
        else:
            yield self._event("response.custom_tool_call_input.delta", at_item=True, delta=text)

    def _close(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        if self._open is None:
            return
        grown, text = self._open, "".join(self._open.text)
        item: AnyItem
        match grown.item:
            case MessageItem(id=item_id):
                part = OutputText(text=text, logprobs=grown.logprobs)
                item = MessageItem(id=item_id, status=status, content=[part])
                yield self._event(
                    "response.output_text.done", at_part=True, text=text, logprobs=grown.logprobs
                )
                yield self._event("response.content_part.done", at_part=True, part=part)
            case ReasoningItem(id=item_id):
                thought = ReasoningText(text=text)
                item = ReasoningItem(id=item_id, status=status, content=[thought])
                yield self._event("response.reasoning_text.done", at_part=True, text=text)
                yield self._event("response.content_part.done", at_part=True, part=thought)
            case FunctionCallItem(call_id=call_id, id=item_id):
                assert grown.tool is not None
                item = _call_item(call_id, grown.tool, text, status, item_id)
                yield self._event(
                    "response.function_call_arguments.done", at_item=True,
                    name=grown.tool.name, arguments=text,
                )  # fmt: skip
            case CustomCallItem(call_id=call_id, id=item_id):
                assert grown.tool is not None
                item = _call_item(call_id, grown.tool, text, status, item_id)
                yield self._event("response.custom_tool_call_input.done", at_item=True, input=text)
        yield self._event("response.output_item.done", item=item)
        self.items.append(item)
        self._open = None

    def _event(
        self, type_: str, *, at_part: bool = False, at_item: bool = False, **fields: object
    ) -> ResponseEvent:
        assert self._open is not None
        event = ResponseEvent(type=type_, sequence_number=0, output_index=self._open.index)
        if at_part or at_item:
            event.item_id = self._open.item.id
        if at_part:
            event.content_index = 0
        for name, value in fields.items():
            setattr(event, name, value)
        return event


def _call_item(
    call_id: str, tool: ToolSpec, text: str, status: ItemStatus, item_id: str | None = None
) -> FunctionCallItem | CustomCallItem:
    if tool.kind == "function":
        item_id = item_id or _id("fc")
        return FunctionCallItem(
            id=item_id, call_id=call_id, name=tool.name, arguments=text, status=status
        )
    item_id = item_id or _id("ctc")
    return CustomCallItem(id=item_id, call_id=call_id, name=tool.name, input=text, status=status)


def _id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
