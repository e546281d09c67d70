"""What all grammars of a vocabulary share, computed before the first request needs it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np

from umbel.grammar.compile import compile_json_schema, compile_lark
from umbel.grammar.errors import UnsatisfiableGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.matcher import Constraint
from umbel.grammar.schema.texts import warm_up_steps as format_steps
from umbel.grammar.vocabulary import Vocabulary

# Names, numbers, strings and white space as the terminals of most languages define them.
_TERMINALS = r"""
start: (CNAME | NUMBER | ESCAPED_STRING | SINGLE | "(" | ")" | "," | ".")+
SINGLE: /'([^'\\\n]|\\.)*'/
%import common (CNAME, NUMBER, ESCAPED_STRING, WS)
%ignore WS
"""
_TEXT = b"n1 2.5e3 'x' (a, \"b c\\n\") a.b\n  c"
_EXAMPLE = b'{"a": [1, -2.5e3, "b c", true, false, null, {}, []], "d": "e\\n", "f": "g"}'
_SCHEMAS: tuple[object, ...] = (
    {},
    {"properties": {"d": {"type": "string", "minLength": 1, "maxLength": 40}}},
    {"properties": {"f": {"type": "string", "minLength": 1}, "a": {"items": {"anyOf": [{}]}}}},
)
# The bounds that schemas have most: each is an automaton of its own.
_BOUNDS: tuple[dict[str, int], ...] = (
    {},
    {"minimum": 0},
    {"minimum": 1},
    {"exclusiveMinimum": 0},
    {"minimum": 0, "maximum": 1},
    {"minimum": 0, "maximum": 100},
)
_NUMBERS = tuple({"type": kind, **bound} for kind in ("integer", "number") for bound in _BOUNDS)
_DEFAULTS = Limits()


def warm_up(vocabulary: Vocabulary, *, limits: Limits = _DEFAULTS) -> None:
    """Read strings, numbers, names and punctuation once, and make the automata of all formats
    (half a second). Changes no result, only the time of what comes later. Thread-safe.
    """
    for step in warm_up_steps(vocabulary, limits=limits):
        step()


def warm_up_steps(
    vocabulary: Vocabulary, *, limits: Limits = _DEFAULTS
) -> Iterator[Callable[[], None]]:
    """The parts of `warm_up`, none longer than a tenth of a second or so, the most useful first:
    for callers who want to do other things in between.
    """
    yield partial(getattr, vocabulary, "compound_atoms")
    for schema in (*_SCHEMAS, *_NUMBERS):
        yield partial(_read_example, schema, vocabulary)
    yield partial(_read_terminals, vocabulary)
    yield from format_steps(limits)


def _read_example(schema: object, vocabulary: Vocabulary) -> None:
    """A vocabulary that lacks bytes of the example is warmed as far as they reach."""
    with suppress(UnsatisfiableGrammar):  # no tokens for JSON at all
        _walk(compile_json_schema(schema, vocabulary, any_order=True), vocabulary, _EXAMPLE)


def _read_terminals(vocabulary: Vocabulary) -> None:
    with suppress(UnsatisfiableGrammar):
        _walk(compile_lark(_TERMINALS, vocabulary), vocabulary, _TEXT)


def _walk(constraint: Constraint, vocabulary: Vocabulary, text: bytes) -> None:
    row = np.zeros(vocabulary.num_words, np.uint32)
    matcher = constraint.start()
    for value in text:
        matcher.fill_mask(row)
        token_ids = vocabulary.ids_by_bytes.get(bytes([value]))
        if not token_ids or not matcher.advance(token_ids[0]):
            return
