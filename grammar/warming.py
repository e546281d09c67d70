"""What all grammars of a vocabulary share, computed before the first request needs it."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from umbel.grammar.compile import compile_json_schema
from umbel.grammar.errors import UnsatisfiableGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.schema.texts import warm_up_steps as format_steps
from umbel.grammar.vocabulary import Vocabulary

_EXAMPLE = b'{"a": [1, -2.5e3, "b c", true, false, null, {}, []], "d": "e\\n", "f": "g"}'
_SCHEMAS: tuple[object, ...] = (
    {},
    {"properties": {"d": {"type": "string", "minLength": 1, "maxLength": 100}}},
    {"properties": {"f": {"type": "string", "minLength": 1}, "a": {"items": {"anyOf": [{}]}}}},
)
_DEFAULTS = Limits()


def warm_up(vocabulary: Vocabulary, *, limits: Limits = _DEFAULTS) -> None:
    """Read strings, numbers and the punctuation of JSON once, and make the automata of all formats
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
    for schema in _SCHEMAS:
        yield partial(_read_example, schema, vocabulary)
    yield from format_steps(limits)


def _read_example(schema: object, vocabulary: Vocabulary) -> None:
    """A vocabulary that lacks bytes of the example is warmed as far as they reach."""
    row = np.zeros(vocabulary.num_words, np.uint32)
    try:
        matcher = compile_json_schema(schema, vocabulary, any_order=True).start()
    except UnsatisfiableGrammar:  # no tokens for JSON at all
        return
    for value in _EXAMPLE:
        matcher.fill_mask(row)
        token_ids = vocabulary.ids_by_bytes.get(bytes([value]))
        if not token_ids or not matcher.advance(token_ids[0]):
            break
