"""JSON strings: languages of decoded text (pattern, format, length together), then spelled with
escapes.
"""

from functools import lru_cache

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.regex import charset, syntax
from umbel.grammar.regex.chardfa import (
    CharDfa,
    determinize,
    difference,
    intersection,
    to_tree,
)
from umbel.grammar.regex.charset import CharSet
from umbel.grammar.regex.classes import Dialect
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.regex.syntax import ANY_CHAR, Node
from umbel.grammar.schema.formats import FORMATS
from umbel.grammar.schema.view import View

_CONTROLS: CharSet = ((0, 0x1F),)
_MUST_ESCAPE = charset.union(_CONTROLS, charset.of('"\\'))
_SHORT = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_QUOTE = syntax.literal('"')
_BACKSLASH = syntax.literal("\\")
# Automaton states per counted character: one per place inside an escape and inside a UTF-8
# sequence.
_STATES_PER_CHAR = 14


@lru_cache(maxsize=1024)
def spelled_chars(chars: CharSet) -> Node:
    """One character of the set as JSON writes it: raw, or escaped where it must be."""
    options = [syntax.chars(charset.difference(chars, _MUST_ESCAPE))]
    escaped = charset.intersection(chars, _MUST_ESCAPE)
    if not escaped:
        return options[0]
    members = {chr(c) for low, high in escaped for c in range(low, high + 1)}
    after = [syntax.chars(charset.of("".join(_SHORT[c] for c in members & _SHORT.keys())))]
    for first_digit in "01":
        seconds = {c for c in members if ord(c) < 32 and ord(c) // 16 == int(first_digit)}
        digits = "".join(f"{ord(c) % 16:x}{ord(c) % 16:X}" for c in seconds)
        after.append(
            syntax.cat([syntax.literal("u00" + first_digit), syntax.chars(charset.of(digits))])
        )
    options.append(syntax.cat([_BACKSLASH, syntax.alt(after)]))
    return syntax.alt(options)


def spelled(node: Node) -> Node:
    """The tree of a decoded text to the tree of its JSON spelling (without the quotes)."""
    match node:
        case syntax.Chars():
            return spelled_chars(node.chars)
        case syntax.Cat():
            return syntax.cat(spelled(part) for part in node.parts)
        case syntax.Alt():
            return syntax.alt(spelled(option) for option in node.options)
        case syntax.Repeat():
            return syntax.repeat(spelled(node.node), node.low, node.high)
        case syntax.Graph():
            edges = [(source, spelled(label), target) for source, label, target in node.edges]
            return syntax.graph(edges, node.accepting)
        case _:
            raise AssertionError(f"decoded texts have no {type(node).__name__} nodes")


def quoted(text: Node) -> Node:
    """A JSON string whose decoded text is in the language."""
    return syntax.cat([_QUOTE, spelled(text), _QUOTE])


def string_literal(text: str) -> Node:
    return quoted(syntax.literal(text))


def any_string() -> Node:
    return quoted(syntax.repeat(ANY_CHAR, 0, None))


def key_except(names: list[str], limits: Limits) -> Node:
    """A JSON string whose decoded text is none of the names."""
    if not names:
        return any_string()
    anything = determinize(syntax.repeat(ANY_CHAR, 0, None), limits)
    taken = determinize(syntax.alt(syntax.literal(name) for name in names), limits)
    return quoted(to_tree(difference(anything, taken, limits)))


def lower_string(view: View, limits: Limits) -> Node:
    """The strings that satisfy minLength, maxLength, pattern and format together."""
    low = count_of(view, "minLength") or 0
    high = count_of(view, "maxLength")
    if high is not None and low > high:
        return syntax.NEVER
    counted = "minLength" if high is None else "maxLength"
    copies = low if high is None else high
    if copies * _STATES_PER_CHAR > min(limits.max_states, limits.max_nodes * 2):
        raise UnsupportedGrammar(
            f"{counted} {copies} needs about {copies * _STATES_PER_CHAR} automaton states, "
            "more than allowed",
            view.where(counted),
            keyword=counted,
        )
    languages = [*_pattern(view, limits), *_format(view, limits)]
    length = syntax.repeat(ANY_CHAR, low, high)
    if not languages:
        return quoted(length)
    if low > 0 or high is not None:
        languages.append(determinize(length, limits))
    chosen = languages[0]
    for language in languages[1:]:
        chosen = intersection(chosen, language, limits)
    return syntax.NEVER if chosen.is_empty else quoted(to_tree(chosen))


def _pattern(view: View, limits: Limits) -> list[CharDfa]:
    pattern = view.value("pattern")
    if pattern is None:
        return []
    where = view.where("pattern")
    try:
        found = parse_regex(pattern, dialect=Dialect.ECMA, limits=limits)
        return [determinize(_contains(found), limits)]
    except UnsupportedGrammar as exc:
        message = (
            f"pattern: {exc.message} ({exc.where})" if exc.where else f"pattern: {exc.message}"
        )
        raise UnsupportedGrammar(message, where, keyword="pattern") from exc
    except GrammarError as exc:
        raise GrammarError(
            f"pattern: {exc.message} ({exc.where})", where, keyword="pattern"
        ) from exc


def _contains(found: Node) -> Node:
    """A pattern matches anywhere in the text; its anchors refer to the ends of the whole text."""
    body = found.node if isinstance(found, syntax.Scope) else found
    around = syntax.repeat(ANY_CHAR, 0, None)
    return syntax.scope(syntax.cat([around, body, around]))


def _format(view: View, limits: Limits) -> list[CharDfa]:
    name = view.value("format")
    if name is None:
        return []
    pattern = FORMATS.get(name)
    if pattern is None:
        raise UnsupportedGrammar(
            f"format {name!r:.60} is not supported; supported are {', '.join(sorted(FORMATS))}",
            view.where("format"),
            keyword="format",
        )
    return [determinize(parse_regex(pattern, limits=limits), limits)]


def count_of(view: View, name: str) -> int | None:
    """A keyword that is a non-negative integer (perhaps written `3.0`); None when it is absent."""
    value = view.value(name)
    return None if value is None else int(value)
