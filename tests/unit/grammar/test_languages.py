"""Boolean operations on languages of texts, against the patterns they were made of."""

import random
import re

import pytest
from unit.grammar.oracles import random_pattern, random_text

from umbel.grammar import Limits
from umbel.grammar.regex import languages

LIMITS = Limits()


@pytest.mark.parametrize("seed", range(150))
def test_operations_equal_those_on_the_answers_of_re(seed: int) -> None:
    rng = random.Random(seed)
    left, right = random_pattern(rng), random_pattern(rng)
    a, b = languages.from_regex(left, LIMITS), languages.from_regex(right, LIMITS)
    made = {
        "both": languages.both(a, b, LIMITS),
        "either": languages.either(a, b, LIMITS),
        "without": languages.without(a, b, LIMITS),
        "complement": languages.complement(a),
    }

    for text in ["", *(random_text(rng) for _ in range(60))]:
        in_a, in_b = (re.fullmatch(p, text) is not None for p in (left, right))
        expected = {
            "both": in_a and in_b,
            "either": in_a or in_b,
            "without": in_a and not in_b,
            "complement": not in_a,
        }
        found = {name: language.accepts(text) for name, language in made.items()}
        assert found == expected, (left, right, text)


@pytest.mark.parametrize("seed", range(60))
def test_equal_languages_have_equally_many_states(seed: int) -> None:
    """De Morgan's two sides are minimized to automata of one size, by different ways."""
    rng = random.Random(seed)
    a, b = (languages.from_regex(random_pattern(rng), LIMITS) for _ in range(2))
    outside = languages.both(languages.complement(a), languages.complement(b), LIMITS)

    one, other = languages.either(a, b, LIMITS), languages.complement(outside)

    assert len(one.table) == len(other.table)
