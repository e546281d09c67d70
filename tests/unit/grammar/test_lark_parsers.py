"""Outputs of larger Lark grammars are parsed by Lark itself; texts that Lark parses are allowed."""

import json
import random
from functools import cache
from pathlib import Path

import lark
import pytest
from unit.grammar.oracles import random_walk, text_of, trained_vocabulary

from umbel.grammar import Constraint, compile_lark

GRAMMARS = Path(__file__).parents[3] / "benchmarks" / "grammars"
NAMES = ["arithmetic", "json", "sql", "python_like"]
LALR = {"arithmetic", "json"}  # the others have conflicts for a parser with one token of look-ahead


@cache
def compiled(name: str) -> Constraint:
    return compile_lark((GRAMMARS / f"{name}.lark").read_text(), trained_vocabulary())


@cache
def parser(name: str) -> lark.Lark:
    kind = ("lalr", "contextual") if name in LALR else ("earley", "dynamic")
    return lark.Lark((GRAMMARS / f"{name}.lark").read_text(), parser=kind[0], lexer=kind[1])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_random_outputs_are_parsed_by_lark(name: str, seed: int) -> None:
    rng = random.Random(seed)

    tokens, complete = random_walk(
        compiled(name), trained_vocabulary(), rng, soft_limit=12, use_forced=bool(seed % 2)
    )

    assert complete
    parser(name).parse(text_of(tokens, trained_vocabulary()).decode())


@pytest.mark.parametrize("name", NAMES)
def test_texts_that_lark_parses_are_allowed_token_by_token(name: str) -> None:
    encode = trained_vocabulary().encode
    assert encode is not None
    for text in json.loads((GRAMMARS / "texts" / f"{name}.json").read_text()):
        matcher = compiled(name).start()
        assert all(matcher.advance(token) for token in encode(text)), text
        assert matcher.accepting
        parser(name).parse(text)


@pytest.mark.parametrize("name", sorted(LALR))
def test_every_prefix_is_alive_for_lark(name: str) -> None:
    """After the terminals read so far, Lark's parser accepts at least one more, or the end."""
    rng = random.Random(7)
    for _ in range(3):
        tokens, _ = random_walk(compiled(name), trained_vocabulary(), rng, soft_limit=15)
        interactive = parser(name).parse_interactive(text_of(tokens, trained_vocabulary()).decode())
        for _ in interactive.iter_parse():
            assert interactive.accepts()
