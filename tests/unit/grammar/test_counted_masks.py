"""Lengths near the bounds, with tokens longer than the room that is left."""

import random
from functools import cache

import pytest
from unit.grammar.oracles import mask_ids

from umbel.grammar import Vocabulary, compile_json_schema

_CHARS = 'ab-# "\\né€😀'


@cache
def _long_vocabulary() -> Vocabulary:
    """All bytes, and tokens of up to 70 characters: of one kind, mixed, with escapes and quotes."""
    rng = random.Random(3)
    texts = {bytes([value]) for value in range(256)}
    texts |= {char.encode() * size for char in "-# é" for size in (2, 4, 19, 20, 21, 22, 40, 70)}
    texts |= {b"a" * size + end for size in (3, 20, 25, 50) for end in (b'"', b'",', b"\\n", b'"}')}
    for _ in range(60):
        size = rng.choice((2, 3, 5, 18, 21, 24, 30))
        texts.add("".join(rng.choice(_CHARS) for _ in range(size)).encode())
    ordered = sorted(texts)
    return Vocabulary(ordered, [len(ordered)], size=len(ordered) + 1)


@pytest.mark.parametrize(
    "string",
    [
        {"maxLength": 30},
        {"minLength": 4, "maxLength": 26},
        {"minLength": 1},
        {"maxLength": 40, "pattern": "^[a-]*( [#é]+)*$"},
        {"minLength": 2, "maxLength": 45, "pattern": "^(?:\\S+\\s+){0,3}\\S+$"},
        {"maxLength": 44, "pattern": "a{3}$"},
    ],
)
def test_masks_of_counted_strings_hold_what_advance_takes(string: dict[str, object]) -> None:
    vocabulary = _long_vocabulary()
    schema = {"type": "object", "properties": {"x": string}, "required": ["x"]}
    constraint = compile_json_schema(schema, vocabulary)
    rng = random.Random(repr(string))
    for _ in range(2):
        matcher = constraint.start()
        for value in b'{"x":"':
            assert matcher.advance(vocabulary.ids_by_bytes[bytes([value])][0])
        while not matcher.finished:
            allowed = mask_ids(matcher, vocabulary)
            if rng.random() < 0.25:
                assert allowed == {i for i in range(vocabulary.size) if matcher.clone().advance(i)}
            # Long tokens now and then, so that the room shrinks to nothing by steps of all sizes.
            by_size = sorted(allowed, key=lambda i: len(vocabulary.text_of(i) or b""))
            assert matcher.advance(rng.choice(by_size[rng.choice((0, -3)) :][:40]))
