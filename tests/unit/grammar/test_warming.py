"""Warming up changes nothing but the time of what follows."""

from unit.grammar.oracles import gappy_vocabulary, mask_ids, trained_vocabulary

from umbel.grammar import compile_json_schema, warm_up


def test_masks_are_the_same_after_warming_up() -> None:
    vocabulary = trained_vocabulary()
    schema = {"type": "array", "items": {"type": "string", "maxLength": 3}}
    before = mask_ids(compile_json_schema(schema, vocabulary).start(), vocabulary)

    warm_up(vocabulary)

    assert mask_ids(compile_json_schema(schema, vocabulary).start(), vocabulary) == before


def test_vocabularies_without_the_bytes_of_json_are_refused_at_the_request_not_here() -> None:
    warm_up(gappy_vocabulary())
