"""Look-ahead at the top level of a pattern, by intersection: X(?=A)Y is X followed by what both
A.* and Y match.

Deeper look-ahead, look-behind and what else is no part of a finite automaton is refused by the
parser, by name.
"""

from umbel.grammar.limits import Limits
from umbel.grammar.regex import chardfa, syntax
from umbel.grammar.regex.chardfa import CharDfa, determinize
from umbel.grammar.regex.classes import Dialect
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.regex.syntax import ANY_CHAR, Node

_REST = syntax.repeat(ANY_CHAR, 0, None)


def parse_with_lookahead(pattern: str, limits: Limits) -> CharDfa:
    """The texts that contain a match of an ECMA-262 pattern whose look-aheads all stand at its top
    level.

    Raises as `parse_regex` does, `UnsupportedGrammar` for other look-arounds among them.
    """
    parts = _split(pattern)
    if parts is None:
        parse_regex(pattern, dialect=Dialect.ECMA, limits=limits)  # names what it refuses
        raise AssertionError("the parser accepts no look-ahead")
    tail: Node = _REST
    is_first = True
    for text, lookahead in reversed(parts):
        node = _body(text, limits)
        if is_first and lookahead is None:
            tail = syntax.cat([node, _REST])
        else:
            following = determinize(syntax.scope(tail), limits)
            if lookahead is not None:
                is_negative, inner = lookahead
                found = determinize(syntax.scope(syntax.cat([_body(inner, limits), _REST])), limits)
                combine = chardfa.difference if is_negative else chardfa.intersection
                following = combine(following, found, limits)
            tail = syntax.cat([node, chardfa.to_tree(following)])
        is_first = False
    return determinize(syntax.scope(syntax.cat([_REST, tail])), limits)


def _body(text: str, limits: Limits) -> Node:
    node = parse_regex(text, dialect=Dialect.ECMA, limits=limits)
    return node.node if isinstance(node, syntax.Scope) else node


def _split(pattern: str) -> list[tuple[str, tuple[bool, str] | None]] | None:
    """[(text, look-ahead after it)], the last without; None when there is a top-level
    alternative.
    """
    parts: list[tuple[str, tuple[bool, str] | None]] = []
    start = at = depth = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if char == "[":
            at = _class_end(pattern, at)
        elif depth == 0 and pattern.startswith(("(?=", "(?!"), at):
            end = _group_end(pattern, at)
            if end is None:
                return None
            parts.append((pattern[start:at], (pattern[at + 2] == "!", pattern[at + 3 : end])))
            start = at = end + 1
            if at < len(pattern) and pattern[at] in "*+?{":
                return None
            continue
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            return None
        at += 1
    parts.append((pattern[start:], None))
    return parts


def _class_end(pattern: str, at: int) -> int:
    """The position of the bracket that closes the class opened at `at`."""
    at += 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at


def _group_end(pattern: str, at: int) -> int | None:
    depth = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 2
            continue
        if char == "[":
            at = _class_end(pattern, at)
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth == 0:
                return at
        at += 1
    return None
