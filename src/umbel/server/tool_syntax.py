"""How a model writes tool calls: the formats of `umbel.grammar`, as text and as structural tags.

A format is chosen by the marks in the model's chat template; models that know none are told of
Hermes' in a system text.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from umbel.grammar.cfg.pieces import Pieces
from umbel.grammar.cfg.tools import ToolFormat, tool_formats

# The first format all of whose marks are in the template.
_MARKS = (
    (("<tool_call>",), "hermes"),
    (("[TOOL_CALLS]", "[ARGS]"), "mistral_args"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁calls▁begin｜>",), "deepseek_v3_1"),
    (("<function=",), "llama3_function_tag"),
    (('"parameters"', "<|start_header_id|>"), "llama3_json"),
)
_DEFAULT = "hermes"
CUSTOM_END = "\n</custom_call>"
_CUSTOM_TRIGGER = "<custom_call "
_NAME = re.compile(r"\$json_name|\$name")


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """One format as text: `begin` (with $name or $json_name), the arguments, `end`.

    All calls stand between `open` and `close` where these are not empty. `has_special`: some of
    the marks are special tokens of the model, which must be shown to be found.
    """

    form: ToolFormat
    open: str
    begin: str
    end: str
    between: str
    close: str
    has_special: bool

    @property
    def is_parallel(self) -> bool:
        return self.form.parallel

    def begin_of(self, name: str) -> str:
        """The text before the arguments of a call."""
        return _named(self.begin, name)

    def hint(self) -> str:
        """How the model is told, when its template does not."""
        begin = self.begin.replace("$json_name", '"<name>"').replace("$name", "<name>")
        return f"To call one, write\n{self.open}{begin}<arguments>{self.end}{self.close}"

    def tag(
        self,
        tools: Sequence[tuple[str, Any]],
        *,
        customs: Sequence[tuple[str, dict[str, Any]]] = (),
        is_required: bool,
        is_parallel: bool,
    ) -> dict[str, Any]:
        """The format of a structural tag: text with calls of `tools` (name, schema) and `customs`
        (name, format of the input), or, when one is required, calls and nothing else.
        """
        is_parallel = is_parallel and self.is_parallel
        tags = [self._call(name, schema) for name, schema in tools]
        if self.form.open and tags:
            calls = _separated(tags, self.between, is_parallel=is_parallel)
            tags = [_tag(_json(self.form.open), calls, _json(self.form.close))]
            is_parallel = False  # all of them are in the one block
        tags += [_tag([begin_of_custom(name)], form, [CUSTOM_END]) for name, form in customs]
        if is_required:
            return _separated(tags, self._between_tags, is_parallel=is_parallel)
        triggers = [_json((one,)) for one in self.form.open[:1] or self.form.triggers]
        if not tools:
            triggers = []
        return {
            "type": "triggered_tags",
            "triggers": [*triggers, *([[_CUSTOM_TRIGGER]] if customs else [])],
            "tags": tags,
            "stop_after_first": not is_parallel,
        }

    @property
    def _between_tags(self) -> str:
        return "\n" if self.end else ""

    def _call(self, name: str, schema: Any) -> dict[str, Any]:
        begin = [_renamed(piece, name) for piece in _json(self.form.begin)]
        return _tag(begin, {"type": "json_schema", "json_schema": schema}, _json(self.form.end))


def begin_of_custom(name: str) -> str:
    """The text before the input of a custom tool, which ends with `CUSTOM_END`. Models have no
    format for text that is no JSON: this one is ours, and the tool's description tells of it.
    """
    return f'{_CUSTOM_TRIGGER}name="{name}">\n'


def find_syntax(template: str | None, special_ids: Collection[str]) -> CallSyntax:
    """The syntax of the model that has this chat template and these special tokens."""
    for marks, name in _MARKS:
        if template is not None and all(mark in template for mark in marks):
            return make_syntax(name, special_ids)
    return make_syntax(_DEFAULT, special_ids)


def make_syntax(name: str, special_ids: Collection[str]) -> CallSyntax:
    """The syntax of a known format (`umbel.grammar.cfg.tools.tool_formats`)."""
    form = tool_formats()[name]
    assert not form.answer, f"{name} has no text with calls in it"
    pieces = [*form.open, *form.begin, *form.end, *form.between, *form.close]
    return CallSyntax(
        form=form,
        open=_text(form.open),
        begin=_text(form.begin),
        end=_text(form.end),
        between=_text(form.between),
        close=_text(form.close),
        has_special=any(piece.may_be_token and piece.text in special_ids for piece in pieces),
    )


def _text(pieces: Pieces) -> str:
    return "".join(piece.text for piece in pieces)


def _json(pieces: Pieces) -> list[Any]:
    return [{"token": piece.text} if piece.may_be_token else piece.text for piece in pieces]


def _renamed(piece: Any, name: str) -> Any:
    return _named(piece, name) if isinstance(piece, str) else piece


def _named(text: str, name: str) -> str:
    names = {"$json_name": json.dumps(name, ensure_ascii=False), "$name": name}
    return _NAME.sub(lambda found: names[found[0]], text)


def _tag(begin: list[Any], content: dict[str, Any], end: list[Any]) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _separated(tags: list[dict[str, Any]], between: str, *, is_parallel: bool) -> dict[str, Any]:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": between,
        "at_least_one": True,
        "stop_after_first": not is_parallel,
    }
