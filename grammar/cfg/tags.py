"""Structural tags: free text, and in it tags whose contents obey a grammar, as for tool calls.

Two notations are read, both XGrammar's: `{"structures": [...], "triggers": [...]}` and `{"type":
"structural_tag", "format": {...}}`. A piece of text is a string, or `{"token": "<name>"}`: the
special token of that name if the model has one, else the same text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from umbel.grammar.cfg.free_text import FreeText
from umbel.grammar.cfg.pieces import Pieces, as_states, fixed, merged, read_pieces, rest_after
from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.pushdown.build import EMPTY, alt, optional, repeat, seq
from umbel.grammar.pushdown.leaves import TokenLeaf
from umbel.grammar.pushdown.rules import RuleState, Sequence

_MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Tag:
    """begin, then the content, then end. content=None: free text up to `end`."""

    begin: Pieces
    content: RuleState | None
    end: Pieces


@dataclass(frozen=True, slots=True)
class Lowering:
    """How the contents of tags become states."""

    schema: Callable[[Any], RuleState]
    regex: Callable[[str], RuleState]
    grammar: Callable[[str], RuleState]
    special_ids: Mapping[str, int]

    def state(self, pieces: Pieces) -> RuleState:
        return as_states(pieces, self.special_ids)


def triggered(
    tags: list[Tag],
    triggers: Pieces,
    lowering: Lowering,
    *,
    at_least_one: bool = False,
    stop_after_first: bool = False,
) -> RuleState:
    """Free text with tags in it. A trigger begins one of the tags whose `begin` starts with it.

    at_least_one: the output starts with a tag. stop_after_first: no text and no further tag behind
    one.
    """
    for number, tag in enumerate(tags):
        if all(
            rest_after(tag.begin, trigger, lowering.special_ids) is None for trigger in triggers
        ):
            raise GrammarError(
                f"begin of tag {number} starts with none of the triggers", f"/tags/{number}/begin"
            )
    texts = [
        trigger.text.encode()
        for trigger in triggers
        if not trigger.is_special(lowering.special_ids)
    ]
    text = FreeText(texts, [() for _ in texts])
    behind: Sequence = () if stop_after_first else (text,)
    after: list[Sequence] = []
    token_after: list[tuple[TokenLeaf, Sequence]] = []
    for trigger in triggers:
        options = [
            seq(lowering.state(rest), _contents(tag, lowering))
            for tag in tags
            if (rest := rest_after(tag.begin, trigger, lowering.special_ids)) is not None
        ]
        if not options:
            raise GrammarError(f"trigger {trigger.text!r} begins none of the tags", "/triggers")
        states: Sequence = (alt(*options), *behind)
        if trigger.is_special(lowering.special_ids):
            token = TokenLeaf(frozenset((lowering.special_ids[trigger.text],)))
            token_after.append((token, states))
        else:
            after.append(states)
    text.set_after(after, token_after)
    if not at_least_one:
        return text
    first = alt(*(seq(lowering.state(tag.begin), _contents(tag, lowering)) for tag in tags))
    return seq(first, *behind)


def _contents(tag: Tag, lowering: Lowering) -> RuleState:
    if tag.content is not None:
        return seq(tag.content, lowering.state(tag.end))
    return text_until(tag.end, lowering)


def text_until(end: Pieces, lowering: Lowering) -> RuleState:
    """Free text up to the first occurrence of the first piece of `end`, and `end`."""
    if not end:
        raise UnsupportedGrammar("free text inside a tag needs an end", keyword="any_text")
    (text, token_id), *others = merged(end, lowering.special_ids)
    rest = seq(*(fixed(*other) for other in others))
    states: Sequence = () if rest == EMPTY else (rest,)
    if token_id is not None:
        token = TokenLeaf(frozenset((token_id,)))
        return FreeText([], [], token_after=[(token, states)], may_end=False)
    return FreeText([text.encode()], [states], may_end=False)


def structural_tag(value: Any, lowering: Lowering) -> RuleState:
    """From decoded JSON. Raises `GrammarError` with a JSON Pointer, `UnsupportedGrammar` for other
    formats.
    """
    if isinstance(value, dict) and value.get("type") == "structural_tag" and "format" in value:
        return _Reader(lowering).format(value["format"], "/format", 0, is_last=True)
    if not isinstance(value, dict) or "structures" not in value:
        raise GrammarError(
            'a structural tag is {"structures": [...], "triggers": [...]} or '
            '{"type": "structural_tag", "format": {...}}'
        )
    reader = _Reader(lowering)
    tags = []
    for number, given in enumerate(reader.items(value, "structures", "")):
        where = f"/structures/{number}"
        content = lowering.schema(reader.need(given, "schema", where))
        begin = reader.pieces(given, "begin", where)
        tags.append(Tag(begin, content, reader.pieces(given, "end", where)))
    triggers = _triggers(reader.items(value, "triggers", ""), "/triggers")
    return triggered(tags, triggers, lowering)


def _triggers(values: list[Any], where: str) -> Pieces:
    return tuple(
        piece
        for number, value in enumerate(values)
        for piece in read_pieces(value, f"{where}/{number}")
    )


class _Reader:
    """The nested notation. `is_last`: nothing follows, so free text may go on to the end of the
    output.
    """

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering

    def need(self, given: Any, name: str, where: str) -> Any:
        if not isinstance(given, dict) or name not in given:
            raise GrammarError(f"expected an object with {name!r}, got {given!r:.100}", where)
        return given[name]

    def items(self, given: Any, name: str, where: str) -> list[Any]:
        found = self.need(given, name, where)
        if not isinstance(found, list) or not found:
            raise GrammarError(f"{name} must be a list that is not empty", f"{where}/{name}")
        return found

    def pieces(self, given: Any, name: str, where: str) -> Pieces:
        return read_pieces(self.need(given, name, where), f"{where}/{name}")

    def format(self, given: Any, where: str, depth: int, *, is_last: bool) -> RuleState:
        if depth > _MAX_DEPTH:
            raise UnsupportedGrammar(f"formats nested deeper than {_MAX_DEPTH}", where)
        lowering = self.lowering
        match self.need(given, "type", where):
            case "const_string":
                return lowering.state(self.pieces(given, "value", where))
            case "json_schema":
                return lowering.schema(self.need(given, "json_schema", where))
            case "regex":
                return lowering.regex(self.need(given, "pattern", where))
            case "grammar":
                return lowering.grammar(self.need(given, "grammar", where))
            case "token":
                name = self.need(given, "token", where)
                return lowering.state(read_pieces({"token": name}, where))
            case "any_text" if is_last:
                forbidden = self._texts(given.get("excludes", []), f"{where}/excludes")
                return FreeText([], [], forbidden=forbidden)
            case "sequence":
                elements = self.items(given, "elements", where)
                return self._sequence(elements, f"{where}/elements", depth, is_last=is_last)
            case "or":
                options = [
                    self.format(option, f"{where}/elements/{number}", depth + 1, is_last=is_last)
                    for number, option in enumerate(self.items(given, "elements", where))
                ]
                return alt(*options)
            case "optional":
                content = self.need(given, "content", where)
                return optional(self.format(content, f"{where}/content", depth + 1, is_last=False))
            case "tag":
                tag = self._tag(given, where, depth)
                return seq(lowering.state(tag.begin), _contents(tag, lowering))
            case "triggered_tags" if is_last:
                return self._triggered(given, where, depth)
            case "tags_with_separator":
                return self._separated(given, where, depth)
            case kind:
                known = (
                    "const_string, json_schema, regex, grammar, token, sequence, or, optional, "
                    "tag, tags_with_separator, triggered_tags (at the end of the output), any_text "
                    "(there, or as the content of a tag)"
                )
                raise UnsupportedGrammar(
                    f"format {kind!r} is not supported here; supported are {known}",
                    where,
                    keyword=str(kind),
                )

    def _texts(self, values: Any, where: str) -> list[bytes]:
        if not isinstance(values, list) or not all(isinstance(v, str) and v for v in values):
            raise GrammarError("expected a list of texts that are not empty", where)
        return [value.encode() for value in values]

    def _sequence(self, elements: list[Any], where: str, depth: int, *, is_last: bool) -> RuleState:
        last = len(elements) - 1
        parts = [
            self.format(element, f"{where}/{n}", depth + 1, is_last=is_last and n == last)
            for n, element in enumerate(elements)
        ]
        return seq(*parts)

    def _tag(self, given: Any, where: str, depth: int) -> Tag:
        content = self.need(given, "content", where)
        inner = None
        if not (isinstance(content, dict) and content.get("type") == "any_text"):
            inner = self.format(content, f"{where}/content", depth + 1, is_last=False)
        return Tag(self.pieces(given, "begin", where), inner, self.pieces(given, "end", where))

    def _tags(self, given: Any, where: str, depth: int) -> list[Tag]:
        tags = self.items(given, "tags", where)
        return [self._tag(tag, f"{where}/tags/{n}", depth + 1) for n, tag in enumerate(tags)]

    def _triggered(self, given: Any, where: str, depth: int) -> RuleState:
        triggers = _triggers(self.items(given, "triggers", where), f"{where}/triggers")
        return triggered(
            self._tags(given, where, depth),
            triggers,
            self.lowering,
            at_least_one=bool(given.get("at_least_one")),
            stop_after_first=bool(given.get("stop_after_first")),
        )

    def _separated(self, given: Any, where: str, depth: int) -> RuleState:
        lowering = self.lowering
        each = alt(
            *(
                seq(lowering.state(tag.begin), _contents(tag, lowering))
                for tag in self._tags(given, where, depth)
            )
        )
        low = int(bool(given.get("at_least_one")))
        separator = lowering.state(self.pieces(given, "separator", where))
        if given.get("stop_after_first"):
            return each if low else optional(each)
        if separator == EMPTY:
            return repeat(each, low)
        return repeat(each, low, separator=separator)
