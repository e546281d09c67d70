"""Grammar states: what front ends write and the machine reads. A state expands to leaves and to
calls.

The machine keeps a stack of states. The top one is replaced by what it expands to; when a leaf has
read its text, the states that follow are pushed, the first of them on top. Nothing else exists:
alternatives, recursion, counters and sets of seen keys are all states.

Front ends subclass `RuleState` for states that are made as needed (an array with its count, an
object with the properties seen so far); `umbel.grammar.pushdown.build` has constructors for
sequences, alternatives, repetition and references, which are enough for fixed grammars.
"""

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Protocol

from umbel.grammar.pushdown.leaves import Leaf

# The closing cost of what no text can complete. Sums of costs may exceed it: compare with >=.
UNREACHABLE = 2**40

Sequence = tuple["RuleState", ...]  # states to go through one after the other; () is the empty text


# Heads and expansions do not change, but are made at every new place: frozen ones take three times
# as long.
@dataclass(slots=True, eq=False)
class Head:
    """A text of `leaf` comes next; then, by its tag, the states of `follow(tag)`; then whatever was
    below.

    follow must be pure and is asked only for tags that are needed. Give equal sequences for equal
    futures: threads with equal stacks are one thread. A tag that leads nowhere must not be in the
    leaf. closing: the tags that closing costs are computed over (None: all), for leaves with very
    many: for an object, one missing required property is enough. It must hold a tag with finite
    cost. is_sure: the front end has made sure that tokens complete the text behind every tag, so
    that it is not asked again for each one.
    """

    leaf: Leaf
    follow: Callable[[int], Sequence]
    closing: Collection[int] | None = None
    is_sure: bool = False


@dataclass(slots=True, eq=False)
class Expansion:
    """All ways to go on from a state, at the same time: nothing is decided until the text decides.

    heads: texts that may come next. calls: sequences of states that may take the place of this one;
    `()` among them means that the state may end here without text. Calls must not lead back to a
    longer stack of the same state without a text in between (left recursion): remove it before.
    """

    heads: tuple[Head, ...] = ()
    calls: tuple[Sequence, ...] = ()


class Measure(Protocol):
    """Closing costs for one vocabulary: upper bounds on tokens, `UNREACHABLE` or more where there
    is no way.
    """

    def leaf(self, leaf: Leaf, tag: int | None = None) -> int:
        """Tokens for the cheapest text of the leaf with the tag (None: any tag)."""

    def state(self, state: "RuleState") -> int:
        """Tokens for the cheapest text of a state; recursive questions are answered by a least
        fixed point.
        """


class RuleState:
    """What may come at one place of a grammar. Immutable; equal when type and `key` are equal.

    Equal states must have equal futures, and states with equal futures should be equal: masks are
    computed once per distinct stack. So keep out of the key what no longer matters (which optional
    properties were seen, if they can't come again anyway; a count beyond the last bound), and never
    put positions into it. A key holds everything the future depends on, by content, or by identity
    of an object of one grammar.
    """

    __slots__ = ("_hash", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self._hash = hash((type(self), key))

    def __eq__(self, other: object) -> bool:
        return self is other or (
            type(self) is type(other) and self._hash == other._hash and self.key == other.key
        )

    def __hash__(self) -> int:
        return self._hash

    def expand(self) -> Expansion:
        """Called once for each distinct stack top: should take microseconds. Pure."""
        raise NotImplementedError

    def cost(self, measure: Measure) -> int:
        """An upper bound on the tokens of the cheapest text of this state, from here to where it
        ends.

        It must be consistent: at least the cost of one way through the state's own expansion. The
        inherited answer is the minimum over all ways; it looks at everything that is reachable, so
        states that count or remember must give a formula: (low - count) * (separator + item) +
        close for an array, the sum over the required properties still missing for an object.
        Unreachable alternatives must not be expanded to.
        """
        expansion = self.expand()
        best = UNREACHABLE
        for head in expansion.heads:
            tags = head.leaf.tags_in_use if head.closing is None else head.closing
            for tag in tags:
                cost = measure.leaf(head.leaf, tag)
                if cost < best:
                    best = min(best, cost + sequence_cost(head.follow(tag), measure))
        for call in expansion.calls:
            best = min(best, sequence_cost(call, measure))
        return best


def sequence_cost(states: Sequence, measure: Measure) -> int:
    return sum(measure.state(state) for state in states)
