"""Whatever comes in, the answer is a constraint or a `GrammarError`, soon."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.grammar.oracles import byte_vocabulary

from umbel.grammar import GrammarError, Limits, compile_json_schema, compile_regex
from umbel.grammar.schema.assertion_table import ASSERTIONS, DRAFT_3

SMALL = Limits(max_nodes=2000, max_states=4000, max_work=100_000, max_value_depth=1)
KEYWORDS = sorted({*ASSERTIONS, *DRAFT_3, "$defs", "title"})
PATTERN_PIECES = [
    *"ab^$.|()[]{}*+?\\-,:&#é€ \n019",
    "(?",
    "(?:",
    "(?i)",
    "(?x)",
    "\\p{",
    "\\d",
    "\\u00",
]

schemas = st.recursive(
    st.one_of(
        st.booleans(),
        st.none(),
        st.integers(-3, 9),
        st.floats(allow_nan=False),
        st.sampled_from(
            ["string", "integer", "object", "array", "number", "#", "#/$defs/a", "^a|b$"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*KEYWORDS, "a", "b"]), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYWORDS), schemas, max_size=5))
def test_any_schema_compiles_or_raises_a_grammar_error(schema: dict[str, Any]) -> None:
    with suppress(GrammarError):
        compile_json_schema(schema, byte_vocabulary(), limits=SMALL)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40) | schemas.map(json.dumps))
def test_any_schema_text_compiles_or_raises_a_grammar_error(text: str) -> None:
    with suppress(GrammarError):
        compile_json_schema(text, byte_vocabulary(), limits=SMALL)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PATTERN_PIECES), max_size=14).map("".join) | st.text(max_size=12))
def test_any_pattern_compiles_or_raises_a_grammar_error(pattern: str) -> None:
    with suppress(GrammarError):
        compile_regex(pattern, byte_vocabulary(), limits=SMALL)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PATTERN_PIECES), max_size=10).map("".join))
def test_any_schema_pattern_compiles_or_raises_a_grammar_error(pattern: str) -> None:
    with suppress(GrammarError):
        compile_json_schema({"type": "string", "pattern": pattern}, byte_vocabulary(), limits=SMALL)
