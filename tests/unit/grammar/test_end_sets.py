"""Tokens by the state after them: what the reader tells, kept within a bound."""

import pytest
from unit.grammar.oracles import trained_vocabulary

from umbel.grammar import compile_json_schema
from umbel.grammar.pushdown import end_sets
from umbel.grammar.pushdown.end_sets import EndSets

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}}}


def test_the_sets_are_the_tokens_that_the_reader_tells() -> None:
    vocabulary = trained_vocabulary()
    space = vocabulary.readings
    machine = compile_json_schema(SCHEMA, vocabulary).machine
    config, num_sets = machine.start, 0
    for value in b'{"a":"b':
        after = machine.move_byte(config, value)
        assert after is not None
        config = after
        for reader, state, _ in config.threads:
            ids, ends = reader.ends(state, space.root)
            wanted = sorted(zip(ends.tolist(), ids.tolist(), strict=True))

            sets = EndSets(vocabulary).of(reader, state, space.root)

            assert sorted((s.state, i) for s in sets for i in s.token_ids()) == wanted
            assert len({s.state for s in sets}) == len(sets)
            num_sets += len(sets)
    assert num_sets > 0


def test_the_least_recently_used_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = trained_vocabulary()
    root = vocabulary.readings.root
    machine = compile_json_schema({"type": "string"}, vocabulary).machine
    inside = machine.move_byte(machine.start, ord('"'))
    assert inside is not None
    ((reader, state, _),) = inside.threads
    kept = EndSets(vocabulary)
    used, unused = kept.of(reader, state, root), kept.of(reader, reader.start, root)
    others = {end.state for end in used} - {state, reader.start}
    limit = kept.size_bytes + 2000
    monkeypatch.setattr(end_sets, "_MAX_KEPT_BYTES", limit)

    for other in others:
        kept.of(reader, other, root)
        kept.of(reader, state, root)
        assert kept.size_bytes <= limit

    assert kept.of(reader, state, root) is used
    assert kept.of(reader, reader.start, root) is not unused
