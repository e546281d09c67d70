"""Languages of decoded texts as the bytes of JSON strings and of UTF-8."""

import json
import random
import re

import pytest
from unit.grammar.oracles import byte_vocabulary, random_pattern

from umbel.grammar import Limits
from umbel.grammar.automaton import minimize
from umbel.grammar.pushdown.leaves import literal_leaf
from umbel.grammar.pushdown.literal_reader import LiteralReader
from umbel.grammar.pushdown.reading import DEAD, run_bytes
from umbel.grammar.regex import languages
from umbel.grammar.regex.utf8 import to_bytes
from umbel.grammar.schema.spelling import language_leaf

_LIMITS = Limits()
_CHARS = 'ab01"\\/\x00\x1f\n\t\x7f\x80\u07ff\u0800\u2028\ud7ff\ue000\uffff\U00010000\U0010ffff é'
_PATTERNS = [
    "[^a]*",
    "[\x00-\x1f]+",
    '"?\\\\*["\\\\/\n]?',
    "[\u0080-\u07ff]|[\u0800-\uffff]{2}",
    "(?:[^\u2028\x1f]|a\u2028)*",
    "[\ue000-\U0010ffff]*0",
    "[^\x00-\U0000ffff]+",
    "[b-\ud7ff]{0,3}",
]


def _texts(rng: random.Random) -> list[str]:
    return ["".join(rng.choice(_CHARS) for _ in range(rng.randrange(5))) for _ in range(150)]


@pytest.mark.parametrize("pattern", _PATTERNS)
def test_a_language_is_spelled_as_json_dumps_spells_it(pattern: str) -> None:
    dfa = language_leaf(languages.from_regex(pattern, _LIMITS)).dfa
    for text in _texts(random.Random(1)):
        spelled = json.dumps(text, ensure_ascii=False).encode()
        assert dfa.accepts(spelled) == bool(re.fullmatch(pattern, text)), text
        assert not dfa.accepts(spelled[:-1])
        if any(ord(char) > 0x7F or char == "/" for char in text):
            assert not dfa.accepts(json.dumps(text).replace("/", "\\/").encode())


@pytest.mark.parametrize("pattern", _PATTERNS)
def test_bytes_beyond_utf_8_are_never_part_of_a_text(pattern: str) -> None:
    dfa = to_bytes(languages.from_regex(pattern, _LIMITS), _LIMITS)
    invalid = [
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
    ]
    for text in _texts(random.Random(2)):
        assert dfa.accepts(text.encode()) == bool(re.fullmatch(pattern, text)), text
    for text in invalid:
        assert dfa.run(text) == dfa.dead


@pytest.mark.parametrize("seed", range(30))
def test_automata_of_minimal_languages_are_minimal(seed: int) -> None:
    language = languages.from_regex(random_pattern(random.Random(seed)), _LIMITS)
    if len(language.table) <= 2:  # empty, or not worth minimizing
        return
    for dfa in (to_bytes(language, _LIMITS), language_leaf(language).dfa):
        assert minimize(dfa).num_states == dfa.num_states


@pytest.mark.parametrize("seed", range(20))
def test_literals_are_run_through_as_byte_by_byte(seed: int) -> None:
    rng = random.Random(seed)
    close = "!" if seed % 2 else ""  # with it no literal is a prefix of another
    texts = {("".join(rng.choice("ab") for _ in range(rng.randrange(5))) + close) for _ in range(8)}
    leaf = literal_leaf((text.encode(), tag) for tag, text in enumerate(sorted(texts - {""})))
    for _ in range(40):
        reader = LiteralReader(leaf, byte_vocabulary())
        state = 0
        for _ in range(3):
            text = "".join(rng.choice("ab!") for _ in range(1 + rng.randrange(4))).encode()
            found, expected = reader.run(state, text), run_bytes(reader, state, text)
            if expected[0] == DEAD:
                assert found[0] == DEAD
                break
            assert found == expected
            state = found[0]
