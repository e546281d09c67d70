"""Single JSON values as languages: literals of enum and const, and values that a schema leaves
open.
"""

import json

from umbel.grammar.errors import GrammarError
from umbel.grammar.regex import syntax
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.regex.syntax import Node
from umbel.grammar.schema.load import Json
from umbel.grammar.schema.strings import any_string, string_literal

# At most one space after a comma or colon: both `json.dumps` styles, and no room for a model to
# loop in.
_SPACE = syntax.optional(syntax.literal(" "))
COMMA = syntax.cat([syntax.literal(","), _SPACE])
COLON = syntax.cat([syntax.literal(":"), _SPACE])
BOOLEAN = syntax.alt([syntax.literal("true"), syntax.literal("false")])
NULL = syntax.literal("null")
_NUMBER = parse_regex("-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")


def array_of(inner: Node) -> Node:
    return syntax.cat([syntax.literal("["), inner, syntax.literal("]")])


def object_of(inner: Node) -> Node:
    return syntax.cat([syntax.literal("{"), inner, syntax.literal("}")])


def pair(key: Node, value: Node) -> Node:
    return syntax.cat([key, COLON, value])


def any_value(depth: int) -> Node:
    """Any JSON value whose arrays and objects nest at most `depth` deep (at depth 0 they are
    empty).
    """
    if depth == 0:
        containers = [syntax.literal("[]"), syntax.literal("{}")]
    else:
        inner = any_value(depth - 1)
        containers = [any_array(inner), any_object(inner)]
    return syntax.alt([NULL, BOOLEAN, _NUMBER, any_string(), *containers])


def any_array(inner: Node) -> Node:
    return array_of(syntax.separated(inner, COMMA, 0, None))


def any_object(inner: Node) -> Node:
    return object_of(syntax.separated(pair(any_string(), inner), COMMA, 0, None))


def value_literal(value: Json, where: str) -> Node:
    """The spellings of one value: strings as everywhere, `2.0` also as `2`, keys in the order
    given.
    """
    if isinstance(value, str):
        return string_literal(_checked(value, where))
    if isinstance(value, list):
        items = [(value_literal(item, where), True) for item in value]
        return array_of(syntax.series(items, COMMA))
    if isinstance(value, dict):
        pairs = [
            (pair(string_literal(_checked(name, where)), value_literal(item, where)), True)
            for name, item in value.items()
        ]
        return object_of(syntax.series(pairs, COMMA))
    spellings = {json.dumps(value)}
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        spellings.add(str(int(value)))
    return syntax.alt(syntax.literal(text) for text in sorted(spellings))


def _checked(text: str, where: str) -> str:
    if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        raise GrammarError(f"{text!r:.60} holds a surrogate, which no UTF-8 text can", where)
    return text
