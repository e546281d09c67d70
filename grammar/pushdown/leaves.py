"""Leaves: the byte automata that grammar states read text with. Contents only; vocabularies come in
later.

A leaf accepts texts and says by a *tag* how one was accepted; what follows depends on the tag.
Leaves are immutable and equal by content (`key`), so grammars that use equal leaves share
everything computed for them: build them so that equal languages get equal leaves (minimized
automata, sorted literals), and put what does not vary (a whole JSON string with its quotes) into
one leaf rather than several.

A leaf ends where its text is accepted *and* what follows goes on: an automaton that accepts at
nearly every byte (`[a-z]*`) leaves nearly every token open at its end. Let a leaf include its
terminator (the closing quote) where there is one, or be `greedy` where the grammar has a lexer.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa

NO_TAG = -1


class Leaf:
    """A language of byte strings with tags 0 .. num_tags - 1; at most one tag for every text.

    key: a digest of all that the leaf's behaviour depends on. Subclasses: below, and no others: the
    machine has one routine for each.
    """

    key: bytes
    num_tags: int

    @property
    def tags_in_use(self) -> Iterable[int]:
        """The tags that texts of the leaf may have."""
        return range(self.num_tags)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leaf) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True, eq=False)
class DfaLeaf(Leaf):
    """The language of an automaton. Every state but the dead one must reach an accepting one.

    tags: [S + 1] int32, the tag of each state, NO_TAG where a text may not end. (`dfa.accepting` is
    not looked at.) greedy: maximal munch; the leaf ends before a byte only if no text of it goes on
    with that byte. base: a greedy leaf with one tag, all of whose texts this leaf has, too, most of
    them with one tag: a hint that makes readings cheap, and no part of the key.
    """

    dfa: ByteDfa
    tags: npt.NDArray[np.int32]
    greedy: bool = False
    base: "DfaLeaf | None" = None

    @cached_property
    def key(self) -> bytes:  # type: ignore[override]  # computed once, then like a field
        dfa = self.dfa
        head = f"dfa {dfa.table.shape} {self.greedy}".encode()
        return _digest([head, dfa.byte_class.tobytes(), dfa.table.tobytes(), self.tags.tobytes()])

    @cached_property
    def num_tags(self) -> int:  # type: ignore[override]
        return int(self.tags.max(initial=NO_TAG)) + 1


def dfa_leaf(dfa: ByteDfa, *, greedy: bool = False) -> DfaLeaf:
    """A leaf with the one tag 0, where the automaton accepts."""
    return DfaLeaf(dfa, np.where(dfa.accepting, 0, NO_TAG).astype(np.int32), greedy)


@dataclass(frozen=True, eq=False)
class LiteralLeaf(Leaf):
    """A finite set of non-empty literals: property names, enum members, keywords. Thousands are
    fine.

    literals: (text, tag) sorted by text, texts distinct; a text may be a prefix of another. Several
    texts may have one tag.
    """

    literals: tuple[tuple[bytes, int], ...]

    @cached_property
    def key(self) -> bytes:  # type: ignore[override]
        return _digest([b"literals", repr(self.literals).encode()])

    @cached_property
    def num_tags(self) -> int:  # type: ignore[override]
        return max(tag for _, tag in self.literals) + 1

    @property
    def tags_in_use(self) -> Iterable[int]:
        return {tag for _, tag in self.literals}


def literal_leaf(literals: Iterable[tuple[bytes, int]] | bytes) -> LiteralLeaf:
    """From (text, tag) pairs in any order; from one text: with tag 0."""
    pairs = [(literals, 0)] if isinstance(literals, bytes) else list(literals)
    found = dict(pairs)
    assert found, "a leaf of literals needs at least one"
    assert b"" not in found, "a literal must not be empty: let the state end instead"
    assert len(found) == len(set(pairs)), "a literal has two tags"
    return LiteralLeaf(tuple(sorted(found.items())))


@dataclass(frozen=True, eq=False)
class OverrideLeaf(Leaf):
    """The texts of `base` with its tags, except that the listed literals have tags of their own.

    literals: (text, tag) sorted by text, texts distinct and not empty; NO_TAG: the text is not
    accepted at all (a banned name, `not enum`). A literal need not be a text of `base`. Tags of
    base keep their numbers, so literals normally use tags from `base.num_tags` on. Cheap for large
    bases: base's masks are shared. base must not be greedy.
    """

    base: "DfaLeaf | CountedLeaf"
    literals: tuple[tuple[bytes, int], ...]

    @cached_property
    def key(self) -> bytes:  # type: ignore[override]
        return _digest([b"override", self.base.key, repr(self.literals).encode()])

    @cached_property
    def num_tags(self) -> int:  # type: ignore[override]
        return max([self.base.num_tags, *(tag + 1 for _, tag in self.literals)])

    @property
    def tags_in_use(self) -> Iterable[int]:
        named = {tag for _, tag in self.literals if tag != NO_TAG}
        return named.union(self.base.tags_in_use)


def override_leaf(
    base: "DfaLeaf | CountedLeaf", literals: Iterable[tuple[bytes, int]]
) -> "OverrideLeaf | DfaLeaf | CountedLeaf":
    """`base` itself when there is nothing to override."""
    pairs = tuple(sorted(dict(literals).items()))
    return OverrideLeaf(base, pairs) if pairs else base


class SelectedLeaf(Leaf):
    """`whole` without some of its literals: what an object has left of its property names.

    chosen: bit n stands for the n-th literal of `whole`; without it the text is not accepted. A
    leaf of literals needs at least one. All selections share what is read where they do not differ.
    """

    def __init__(self, whole: "LiteralLeaf | OverrideLeaf", chosen: int) -> None:
        size = (len(whole.literals) + 7) // 8
        self.whole = whole
        self.chosen = chosen
        self.key = whole.key + chosen.to_bytes(size, "little")
        self.num_tags = whole.num_tags

    @property
    def tags_in_use(self) -> Iterable[int]:
        return self.plain().tags_in_use

    def plain(self) -> "LiteralLeaf | OverrideLeaf":
        """The same language without sharing."""
        pairs = enumerate(self.whole.literals)
        if isinstance(self.whole, LiteralLeaf):
            return LiteralLeaf(tuple(pair for at, pair in pairs if self.chosen >> at & 1))
        kept = tuple((t, tag if self.chosen >> at & 1 else NO_TAG) for at, (t, tag) in pairs)
        return OverrideLeaf(self.whole.base, kept)


@dataclass(frozen=True, eq=False)
class CountedLeaf(Leaf):
    """The texts of `base` that hold between `low` and `high` items. Counts may be large: nothing is
    unrolled.

    counts: [S + 1, C] bool over base's states and byte classes: reading a byte of the class in the
    state starts an item. Count an item at its first byte, so that a text that ends inside an item
    holds it already: for `"(char)*"`, all bytes but the quote in the states between two characters.
    high=None: no upper bound. base may be any automaton that is not greedy (a pattern, spelled in
    JSON): the count is kept beside its state.
    """

    base: DfaLeaf
    counts: npt.NDArray[np.bool_]
    low: int
    high: int | None

    @cached_property
    def key(self) -> bytes:  # type: ignore[override]
        head = f"counted {self.low} {self.high}".encode()
        return _digest([head, self.base.key, np.packbits(self.counts).tobytes()])

    @cached_property
    def num_tags(self) -> int:  # type: ignore[override]
        return self.base.num_tags


@dataclass(frozen=True, eq=False)
class LexerLeaf(Leaf):
    """The texts of all leaves, which begin with different bytes. The tags of each leaf come behind
    those of the leaves before it (`first_tags`).

    The leaves are greedy, or are literals of which none begins with another one.
    """

    leaves: "tuple[DfaLeaf | LiteralLeaf, ...]"

    @cached_property
    def key(self) -> bytes:  # type: ignore[override]
        return _digest([b"lexer", *(leaf.key for leaf in self.leaves)])

    @cached_property
    def first_tags(self) -> tuple[int, ...]:
        return tuple(accumulate((leaf.num_tags for leaf in self.leaves[:-1]), initial=0))

    @cached_property
    def num_tags(self) -> int:  # type: ignore[override]
        return self.first_tags[-1] + self.leaves[-1].num_tags


@dataclass(frozen=True, eq=False)
class BoundedLeaf(Leaf):
    """The texts of `base` of which at most `max_tokens` tokens (>= 1) hold a byte.

    A token that also holds what stands before or behind the text counts, too. A token may end
    inside the text only where further tokens that end inside or with it, no more than are left,
    complete it. base has the one tag 0, is not greedy, and does not accept the empty text.
    """

    base: DfaLeaf
    max_tokens: int
    num_tags: int = field(default=1, init=False)

    @cached_property
    def key(self) -> bytes:  # type: ignore[override]
        return _digest([b"bounded", self.base.key, str(self.max_tokens).encode()])


@dataclass(frozen=True, eq=False)
class TokenLeaf(Leaf):
    """One token out of a set of ids, read as a whole: how a grammar names special tokens. Its tag
    is 0.

    `Vocabulary.special_ids` has the ids by name. Such a token stands between texts, never inside a
    token.
    """

    token_ids: frozenset[int]
    num_tags: int = field(default=1, init=False)

    @cached_property
    def key(self) -> bytes:  # type: ignore[override]
        return _digest([b"token", repr(sorted(self.token_ids)).encode()])


def _digest(parts: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
