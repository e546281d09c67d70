"""Random grammars over five bytes, for the token machine and its oracle."""

import random
from functools import cache

import numpy as np

from umbel.grammar import Vocabulary
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown import build
from umbel.grammar.pushdown.leaves import (
    NO_TAG,
    CountedLeaf,
    DfaLeaf,
    Leaf,
    OverrideLeaf,
    SelectedLeaf,
    TokenLeaf,
    dfa_leaf,
    literal_leaf,
    override_leaf,
)
from umbel.grammar.pushdown.recorded import RecordedHead
from umbel.grammar.pushdown.rules import Expansion, Head, RuleState, Sequence
from umbel.grammar.regex.parser import parse_regex

ALPHABET = b'ab"-'
SPECIAL, EOS = 40, 41


@cache
def rule_vocabulary() -> Vocabulary:
    texts: list[bytes | None] = [bytes([value]) for value in ALPHABET]
    texts += [
        b"ab",
        b"aab",
        b'a"',
        b'"-',
        b'-"',
        b'"-"',
        b'a"-"b',
        b"--",
        b"ba",
        b'b"-"b"',
        b"ab",
        b"aaaa",
    ]
    texts += [b'""', b'"a"-"', b'"a"-"a', b'"a"-"a"', b"bab", b"a-a", b"a-b-a", b"b-b"]
    texts += [None] * (42 - len(texts))
    return Vocabulary(texts, [EOS], size=45, special_ids={"<|x|>": SPECIAL})


class TaggedState(RuleState):
    """A leaf with several tags, each with a sequence of its own."""

    __slots__ = ("leaf", "sequences")

    def __init__(self, leaf: Leaf, sequences: tuple[Sequence, ...]) -> None:
        super().__init__((leaf, sequences))
        self.leaf, self.sequences = leaf, sequences

    def expand(self) -> Expansion:
        return Expansion((Head(self.leaf, self.sequences.__getitem__),))


class DistinctState(RuleState):
    """Quoted texts with dashes between, none of them twice: a head whose future depends on its
    text.
    """

    __slots__ = ("seen", "starts")

    def __init__(self, seen: frozenset[bytes], *, starts: bool) -> None:
        super().__init__((seen, starts))
        self.seen, self.starts = seen, starts

    def expand(self) -> Expansion:
        if self.starts:
            leaf = override_leaf(quoted(), [(text, NO_TAG) for text in sorted(self.seen)])
            return Expansion((RecordedHead(leaf, self._after),))  # type: ignore[arg-type]
        return Expansion(calls=((), (build.literal("-"), DistinctState(self.seen, starts=True))))

    def _after(self, tag: int, text: bytes | None) -> Sequence:
        seen = self.seen if text is None else self.seen | {text}
        return (DistinctState(seen, starts=False),)

    def cost(self, measure: object) -> int:
        return 4 if self.starts else 0


@cache
def pattern_leaf(pattern: str, *, greedy: bool = False) -> DfaLeaf:
    limits = Limits()
    return dfa_leaf(build.tree_dfa(parse_regex(pattern, limits=limits), limits), greedy=greedy)


def quoted() -> DfaLeaf:
    return pattern_leaf('"[ab-]*"')


def counted(low: int, high: int | None, pattern: str = '"[ab-]*"') -> CountedLeaf:
    """Counts the characters between quotes."""
    base = pattern_leaf(pattern)
    table = base.dfa.table
    counts = np.zeros(table.shape, bool)
    inside = [s for s in range(base.dfa.num_states) if s != 0]
    for value in b"ab-":
        counts[inside, base.dfa.byte_class[value]] = True
    return CountedLeaf(base, counts, low, high)


def random_leaf(rng: random.Random) -> Leaf:
    kind = rng.randrange(8)
    if kind == 0:
        return pattern_leaf(
            rng.choice(["a+", "[ab]", "-?a", "(ab|b)*-", '"[^"]*"', "a|ab", "b{2,3}"])
        )
    if kind == 1:
        low = rng.randrange(3)
        return counted(low, rng.choice([None, low, low + 1, low + 3]))
    if kind == 2:
        texts = [b'"a"', b'"ab"', b'"', b'"b', b'"a"-']
        return override_leaf(quoted(), [(t, rng.choice([NO_TAG, 0])) for t in rng.sample(texts, 2)])
    if kind == 3:
        return TokenLeaf(frozenset({SPECIAL}))
    if kind == 4:
        texts = [b'"a"', b'"ab"', b'"ba"', b'"-"']
        named = rng.sample(texts, 3)
        tags = [0, 0, 0] if rng.random() < 0.5 else [0, NO_TAG, 0]
        whole = OverrideLeaf(quoted(), tuple(sorted(zip(named, tags, strict=True))))
        return SelectedLeaf(whole, rng.randrange(8))
    texts = [b"a", b"ab", b"b", b"-", b'"', b"aab", b"ba", b'a"', b"--"]
    if kind == 5:
        whole_literals = literal_leaf([(text, 0) for text in rng.sample(texts, 4)])
        return SelectedLeaf(whole_literals, rng.randint(1, 15))
    return literal_leaf([(text, 0) for text in rng.sample(texts, rng.randint(1, 3))])


def random_rules(rng: random.Random, *, depth: int = 3) -> RuleState:
    """A random grammar over `ALPHABET`, recursive now and then."""
    rule = build.Reference("rule")
    body = _random_state(rng, depth, rule)
    # Recursion is always guarded by a text, and there is a way without it.
    rule.define(
        build.alt(build.literal(rng.choice(["b", "-", '"'])), build.seq(build.literal("a"), body))
    )
    return rule if rng.random() < 0.3 else body


def _random_state(rng: random.Random, depth: int, rule: build.Reference) -> RuleState:
    def inner() -> RuleState:
        return _random_state(rng, depth - 1, rule)

    kind = rng.randrange(9) if depth else 0
    if kind in (0, 1):
        return build.leaf(random_leaf(rng))
    if kind == 2:
        return build.seq(inner(), inner())
    if kind == 3:
        return build.alt(inner(), inner())
    if kind == 4:
        return build.optional(inner())
    if kind == 5:
        low = rng.randrange(3)
        separator = build.literal("-") if rng.random() < 0.5 else None
        item = build.seq(build.leaf(random_leaf(rng)), inner())
        return build.repeat(item, low, rng.choice([None, low + 2]), separator=separator)
    if kind == 6:
        return build.seq(build.literal("a"), rule)
    if kind == 7:
        return DistinctState(frozenset(), starts=True)
    leaf: Leaf = literal_leaf([(b"a", 0), (b"ab", 1), (b'"', 2)])
    if rng.random() < 0.5:
        leaf = SelectedLeaf(leaf, rng.randint(1, 7))
    return TaggedState(leaf, ((inner(),), (), (build.literal("b"),)))
