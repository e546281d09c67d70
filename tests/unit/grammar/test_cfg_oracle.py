"""Random context-free grammars against a naive recognizer, in both notations, and through masks."""

import itertools
import random

import pytest
from unit.grammar.oracles import (
    byte_vocabulary,
    mask_ids,
    matches,
    random_walk,
    spiky_vocabulary,
    text_of,
)

from umbel.grammar import Constraint, UnsatisfiableGrammar, compile_gbnf, compile_lark

RULES = ["r0", "r1", "r2"]
# An expression: a letter, the name of a rule, or (operator, parts...).
Expression = str | tuple[object, ...]


def random_grammar(rng: random.Random) -> dict[str, Expression]:
    return {name: random_expression(rng, 3) for name in RULES}


def random_expression(rng: random.Random, depth: int) -> Expression:
    kind = rng.randrange(9) if depth else rng.randrange(2)
    if kind < 2:
        return rng.choice(["a", "b", "c", *RULES])
    parts = tuple(random_expression(rng, depth - 1) for _ in range(rng.randint(2, 3)))
    if kind < 5:
        return ("cat", *parts)
    if kind < 7:
        return ("alt", *parts)
    if kind == 7:
        return (rng.choice("?*+"), parts[0])
    low = rng.randint(0, 2)
    return ("{}", parts[0], low, low + rng.randint(0, 12))


def written(expression: Expression) -> str:
    if isinstance(expression, str):
        return expression if expression in RULES else f'"{expression}"'
    operator, *parts = expression
    if operator == "{}":
        return f"({written(parts[0])}){{{parts[1]},{parts[2]}}}"
    texts = [written(part) for part in parts]
    if operator in ("?", "*", "+"):
        return f"({texts[0]}){operator}"
    return f"({(' | ' if operator == 'alt' else ' ').join(texts)})"


class Recognizer:
    """All spans of a text that each rule derives, by repeating until nothing new is found."""

    def __init__(self, grammar: dict[str, Expression], text: str) -> None:
        self.text = text
        self.spans = {(name, start): set() for name in RULES for start in range(len(text) + 1)}
        before = -1
        while before != (count := sum(map(len, self.spans.values()))):
            before = count
            for name, start in self.spans:
                self.spans[name, start] |= self.ends(grammar[name], start)

    def ends(self, expression: Expression, start: int) -> set[int]:
        if isinstance(expression, str):
            if expression in RULES:
                return set(self.spans[expression, start])
            return {start + 1} if self.text[start : start + 1] == expression else set()
        operator, *parts = expression
        if operator == "alt":
            return set().union(*(self.ends(part, start) for part in parts))
        if operator == "cat":
            ends = {start}
            for part in parts:
                ends = set().union(*(self.ends(part, at) for at in ends))
            return ends
        low, high = {"?": (0, 1), "*": (0, 99), "+": (1, 99)}.get(operator, parts[1:])
        found = {start} if low == 0 else set()
        ends = {start}
        for count in range(1, min(high, len(self.text) + 3) + 1):
            ends = set().union(*(self.ends(parts[0], at) for at in ends))
            if count >= low:
                found |= ends
        return found

    def accepts(self) -> bool:
        return len(self.text) in self.spans["r0", 0]


def accepts(grammar: dict[str, Expression], text: str) -> bool:
    return Recognizer(grammar, text).accepts()


def compiled(grammar: dict[str, Expression], notation: str) -> Constraint | None:
    vocabulary = byte_vocabulary()
    try:
        if notation == "lark":
            text = "\n".join(f"{name}: {written(body)}" for name, body in grammar.items())
            return compile_lark(text, vocabulary, start="r0")
        text = "\n".join(f"{name} ::= {written(body)}" for name, body in grammar.items())
        return compile_gbnf(text, vocabulary, start="r0")
    except UnsatisfiableGrammar:
        return None


@pytest.mark.parametrize("notation", ["lark", "gbnf"])
@pytest.mark.parametrize("seed", range(25))
def test_languages_equal_a_naive_recognizer(seed: int, notation: str) -> None:
    grammar = random_grammar(random.Random(seed))
    constraint = compiled(grammar, notation)

    for length in range(5):
        for letters in itertools.product("abc", repeat=length):
            text = "".join(letters)
            expected = accepts(grammar, text)
            found = constraint is not None and matches(constraint, text)
            assert found == expected, (grammar, text)


@pytest.mark.parametrize("seed", range(15))
def test_walks_within_their_budget_end_in_the_language(seed: int) -> None:
    rng = random.Random(seed)
    grammar = random_grammar(rng)
    constraint = compiled(grammar, "lark")
    if constraint is None:
        assert not any(accepts(grammar, "".join(t)) for t in itertools.product("abc", repeat=3))
        return

    for _ in range(5):
        tokens, complete = random_walk(
            constraint, byte_vocabulary(), rng, soft_limit=rng.randint(0, 9), use_forced=True
        )
        assert complete
        assert accepts(grammar, text_of(tokens, byte_vocabulary()).decode())


@pytest.mark.parametrize("seed", range(12))
def test_masks_of_tokens_equal_brute_force(seed: int) -> None:
    rng = random.Random(100 + seed)
    grammar = random_grammar(rng)
    single = compiled(grammar, "lark")
    if single is None:
        return
    text = "\n".join(f"{name}: {written(body)}" for name, body in grammar.items())
    vocabulary = spiky_vocabulary()
    matcher = compile_lark(text, vocabulary, start="r0").start()

    done = b""
    for _ in range(8):
        expected = {
            i
            for i in range(vocabulary.size)
            if (t := vocabulary.text_of(i)) and alive(single, done + t)
        }
        if matcher.accepting:
            expected |= vocabulary.eos_ids
        assert mask_ids(matcher, vocabulary) == expected, (grammar, done)
        choices = sorted(expected - vocabulary.eos_ids)
        if not choices:
            break
        token = rng.choice(choices)
        assert matcher.advance(token)
        done += vocabulary.text_of(token) or b""


def alive(constraint: Constraint, text: bytes) -> bool:
    matcher = constraint.start()
    return all(matcher.advance(value) for value in text)
