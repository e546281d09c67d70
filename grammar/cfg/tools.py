"""Tool calls in the formats of the common models. The formats are data (`tool_formats.json`), read
once.

A format's entries: `begin` and `end` around a call's arguments ($name: the tool's name, $json_name:
the same as a JSON string); `triggers`: how a call begins in free text. With `open`, `between` and
`close` all calls stand in one block, which `open` begins. With `answer` an answer is a message of
its own, and `messages` may come before it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from umbel.grammar.cfg.free_text import FreeText
from umbel.grammar.cfg.pieces import Piece, Pieces, read_pieces
from umbel.grammar.cfg.tags import Lowering, Tag, text_until, triggered
from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.pushdown.build import EMPTY, alt, repeat, seq
from umbel.grammar.pushdown.rules import RuleState

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolFormat:
    name: str
    begin: Pieces
    end: Pieces
    triggers: Pieces
    open: Pieces
    between: Pieces
    close: Pieces
    messages: tuple[tuple[Pieces, Pieces], ...]
    answer: Pieces
    parallel: bool


@dataclass(frozen=True, slots=True)
class Tool:
    """parameters: a JSON Schema."""

    name: str
    parameters: Any


@cache
def tool_formats() -> dict[str, ToolFormat]:
    """All known formats by name."""
    text = (files("umbel.grammar.cfg") / "tool_formats.json").read_text(encoding="utf-8")
    entries = json.loads(text)
    found = {}
    for name, entry in entries.items():
        found[name] = _format(name, entries[entry["same_as"]] if "same_as" in entry else entry)
    return found


def _format(name: str, entry: dict[str, Any]) -> ToolFormat:
    def pieces(field: str) -> Pieces:
        return read_pieces(entry.get(field, []), f"/{name}/{field}")

    messages = tuple(
        (read_pieces(message["begin"], name), read_pieces(message["end"], name))
        for message in entry.get("messages", [])
    )
    return ToolFormat(
        name,
        pieces("begin"),
        pieces("end"),
        pieces("triggers"),
        pieces("open"),
        pieces("between"),
        pieces("close"),
        messages,
        pieces("answer"),
        entry.get("parallel", True),
    )


def tool_calls(
    tools: Sequence[Any],
    format_name: str,
    lowering: Lowering,
    *,
    choice: str = "auto",
    parallel: bool = True,
) -> RuleState:
    """The outputs of a model that may call tools.

    tools: `{"name", "parameters"}` each, or OpenAI's `{"type": "function", "function": {...}}`.
    choice: "auto" (text and calls), "required" (a call), "none" (text that begins no call), or the
    name of a tool. parallel: whether more than one call may be made, where the format has a way to.
    Raises `GrammarError`.
    """
    form = tool_formats().get(format_name)
    if form is None:
        known = ", ".join(sorted(tool_formats()))
        raise GrammarError(f"unknown tool format {format_name!r}; known are {known}")
    known_tools = _read_tools(tools)
    if choice not in ("auto", "required", "none"):
        known_tools = [tool for tool in known_tools if tool.name == choice]
        if not known_tools:
            raise GrammarError(
                f"tool_choice {choice!r} is neither auto, required, none nor the name of a tool"
            )
        choice = "required"
    if not known_tools and choice == "required":
        raise GrammarError("tool_choice asks for a call, but there are no tools")
    builder = _Builder(form, known_tools, lowering, parallel=parallel and form.parallel)
    return builder.state("none" if not known_tools else choice)


def _read_tools(tools: Sequence[Any]) -> list[Tool]:
    found: dict[str, Tool] = {}
    for number, given in enumerate(tools):
        where = f"/{number}"
        entry = given.get("function", given) if isinstance(given, dict) else given
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            raise GrammarError(
                'a tool is {"name": ..., "parameters": {JSON Schema}} or {"type": "function", '
                f'"function": {{...}}}}, got {given!r:.200}',
                where,
            )
        if name in found:
            raise GrammarError(f"two tools are named {name!r}", where)
        parameters = entry.get("parameters")
        found[name] = Tool(name, _NO_ARGUMENTS if parameters is None else parameters)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Builder:
    form: ToolFormat
    tools: list[Tool]
    lowering: Lowering
    parallel: bool

    def state(self, choice: str) -> RuleState:
        form = self.form
        if form.answer:
            return self._messages(choice)
        if choice == "none":
            return self._text_only()
        tags = self._block() if form.open else [self._tag(tool) for tool in self.tools]
        triggers = form.open[:1] if form.open else form.triggers
        once = not self.parallel or bool(form.open)
        return triggered(
            tags,
            triggers,
            self.lowering,
            at_least_one=choice == "required",
            stop_after_first=once,
        )

    def _text_only(self) -> RuleState:
        """Special tokens are never text, so only triggers that are plain text must be forbidden."""
        form, ids = self.form, self.lowering.special_ids
        triggers = form.open[:1] or form.triggers
        return FreeText(
            [], [], forbidden=[t.text.encode() for t in triggers if not t.is_special(ids)]
        )

    def _tag(self, tool: Tool) -> Tag:
        begin = tuple(
            Piece(_named(piece.text, tool.name), piece.may_be_token) for piece in self.form.begin
        )
        try:
            content = self.lowering.schema(tool.parameters)
        except GrammarError as exc:
            message = f"parameters of tool {tool.name!r}: {exc.message}"
            raise type(exc)(message, exc.where, keyword=exc.keyword) from exc
        return Tag(begin, content, self.form.end)

    def _call(self) -> RuleState:
        state = self.lowering.state
        tags = [self._tag(tool) for tool in self.tools]
        return alt(*(seq(state(t.begin), t.content or EMPTY, state(t.end)) for t in tags))

    def _block(self) -> list[Tag]:
        """All calls between `open` and `close` as the contents of one tag."""
        form, call = self.form, self._call()
        if self.parallel:
            between = self.lowering.state(form.between)
            call = repeat(call, 1, separator=None if between == EMPTY else between)
        return [Tag(form.open, call, form.close)]

    def _messages(self, choice: str) -> RuleState:
        form, state = self.form, self.lowering.state
        before = alt(
            *(seq(state(begin), text_until(end, self.lowering)) for begin, end in form.messages)
        )
        last: list[RuleState] = []
        if choice != "required":
            last.append(seq(state(form.answer), FreeText([], [])))
        if choice != "none":
            if self.parallel:
                raise UnsupportedGrammar(f"format {form.name} has no parallel calls")
            last.append(self._call())
        return seq(repeat(before), alt(*last))


def _named(text: str, name: str) -> str:
    names = {"$json_name": json.dumps(name, ensure_ascii=False), "$name": name}
    return re.sub(r"\$json_name|\$name", lambda found: names[found[0]], text)
