"""The token machine's oracle: rules interpreted byte by byte with explicit stacks, and random rules
for it.
"""

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
    LiteralLeaf,
    OverrideLeaf,
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


def tag_of(leaf: Leaf, text: bytes) -> int:
    """By definition; the automaton of a `DfaLeaf` is taken at its word."""
    match leaf:
        case DfaLeaf():
            return int(leaf.tags[leaf.dfa.run(text)])
        case LiteralLeaf():
            return dict(leaf.literals).get(text, NO_TAG)
        case OverrideLeaf():
            named = dict(leaf.literals)
            return named[text] if text in named else tag_of(leaf.base, text)
        case CountedLeaf():
            dfa, state, count = leaf.base.dfa, 0, 0
            for value in text:
                count += bool(leaf.counts[state, dfa.byte_class[value]])
                state = dfa.run(bytes([value]), state)
            inside = leaf.low <= count and (leaf.high is None or count <= leaf.high)
            return int(leaf.base.tags[state]) if inside else NO_TAG
    return NO_TAG


@cache
def is_viable(leaf: Leaf, text: bytes, more: int = 5) -> bool:
    """Whether some text of the leaf begins so, tried out: a few bytes are enough for the leaves
    below.
    """
    if isinstance(leaf, DfaLeaf):
        return leaf.dfa.run(text) != leaf.dfa.dead
    return tag_of(leaf, text) >= 0 or (
        more > 0 and any(is_viable(leaf, text + bytes([v]), more - 1) for v in ALPHABET)
    )


# A way to read the text: (head, what its leaf has read, the states below, first on top).
NaiveThread = tuple[Head | RecordedHead, bytes, Sequence]


class NaiveRules:
    """All threads after a text; `can_end`: the text may end there."""

    def __init__(self, threads: list[NaiveThread], can_end: bool) -> None:
        self.threads = threads
        self.can_end = can_end

    @classmethod
    def start(cls, root: RuleState) -> "NaiveRules":
        return cls.of([(root,)], [])

    @classmethod
    def of(cls, stacks: list[Sequence], inside: list[NaiveThread]) -> "NaiveRules":
        """The threads that stacks of states open, beside those inside their leaves."""
        threads = list(inside)
        can_end = False
        seen = set()
        for stack in stacks:
            if stack in seen:
                continue
            seen.add(stack)
            if not stack:
                can_end = True
                continue
            expansion = stack[0].expand()
            stacks += [call + stack[1:] for call in expansion.calls]
            for head in expansion.heads:
                threads.append((head, b"", stack[1:]))
                tag = tag_of(head.leaf, b"")
                if tag >= 0:
                    stacks.append(_follow(head, tag, b"") + stack[1:])
        return cls(threads, can_end)

    def step(self, value: int) -> "NaiveRules":
        inside: list[NaiveThread] = []
        ended: list[Sequence] = []
        for head, text, below in self.threads:
            after = text + bytes([value])
            if is_viable(head.leaf, after):
                inside.append((head, after, below))
                tag = tag_of(head.leaf, after)
                if tag >= 0:
                    ended.append(_follow(head, tag, after) + below)
        return NaiveRules.of(ended, inside)

    def run(self, text: bytes) -> "NaiveRules":
        at = self
        for value in text:
            at = at.step(value)
        return at

    def take(self, token_id: int, vocabulary: Vocabulary) -> "NaiveRules":
        text = vocabulary.text_of(token_id)
        if text is not None:
            return self.run(text)
        named = [
            _follow(head, 0, b"") + below
            for head, text, below in self.threads
            if isinstance(head.leaf, TokenLeaf) and token_id in head.leaf.token_ids and not text
        ]
        return NaiveRules.of(named, [])

    @property
    def is_dead(self) -> bool:
        return not self.can_end and not self.threads

    def allowed(self, vocabulary: Vocabulary) -> set[int]:
        ids = {i for i in range(vocabulary.size) if not self.take(i, vocabulary).is_dead}
        ids -= {i for i in ids if i in vocabulary.eos_ids}
        return ids | (set(vocabulary.eos_ids) if self.can_end else set())


def _follow(head: Head | RecordedHead, tag: int, text: bytes) -> Sequence:
    return head.follow(tag, text) if isinstance(head, RecordedHead) else head.follow(tag)


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
    kind = rng.randrange(6)
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
    texts = [b"a", b"ab", b"b", b"-", b'"', b"aab", b"ba", b'a"', b"--"]
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
    leaf = literal_leaf([(b"a", 0), (b"ab", 1), (b'"', 2)])
    return TaggedState(leaf, ((inner(),), (), (build.literal("b"),)))
