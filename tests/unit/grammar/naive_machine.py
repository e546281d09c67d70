"""Grammar states run byte by byte, by their definition: the oracle for what a text may be. No
tokens, no caches.

A thread is (leaf, leaf state, head, text of the leaf so far, stack of states below).
"""

from typing import Any

from umbel.grammar.pushdown.leaves import (
    NO_TAG,
    CountedLeaf,
    DfaLeaf,
    Leaf,
    LiteralLeaf,
    OverrideLeaf,
)
from umbel.grammar.pushdown.recorded import RecordedHead
from umbel.grammar.pushdown.rules import Head, RuleState

Thread = tuple[Leaf, Any, Head | RecordedHead, bytes, tuple[RuleState, ...]]


def _start(leaf: Leaf) -> Any:
    match leaf:
        case DfaLeaf():
            return 0
        case LiteralLeaf():
            return b""
        case OverrideLeaf():
            return (b"", _start(leaf.base))
        case CountedLeaf():
            return (0, 0)
    raise AssertionError(type(leaf))


def _step(leaf: Leaf, state: Any, value: int) -> Any:
    """The next state, or None."""
    match leaf:
        case DfaLeaf():
            target = int(leaf.dfa.table[state, leaf.dfa.byte_class[value]])
            return None if target == leaf.dfa.dead else target
        case LiteralLeaf():
            text = state + bytes([value])
            return text if any(entry.startswith(text) for entry, _ in leaf.literals) else None
        case OverrideLeaf():
            text = state[0] + bytes([value])
            base = None if state[1] is None else _step(leaf.base, state[1], value)
            inside = any(entry.startswith(text) and tag != NO_TAG for entry, tag in leaf.literals)
            if base is not None and not _leads_on(leaf, text, base):
                base = None  # all that follows is banned
            return (text, base) if base is not None or inside else None
        case CountedLeaf():
            at, count = state
            base_dfa = leaf.base.dfa
            column = base_dfa.byte_class[value]
            count += int(leaf.counts[at, column])
            target = int(base_dfa.table[at, column])
            if target == base_dfa.dead or (leaf.high is not None and count > leaf.high):
                return None
            too_few = count < leaf.low and leaf.base.tags[target] != NO_TAG
            return None if too_few and not _goes_on(leaf.base, target) else (target, count)
    raise AssertionError(type(leaf))


def _leads_on(leaf: OverrideLeaf, text: bytes, base: Any) -> bool:
    """Whether some text of the base that begins like this is not banned."""
    banned = {entry for entry, tag in leaf.literals if tag == NO_TAG and entry.startswith(text)}
    if not banned:
        return True
    if _tag(leaf.base, base) != NO_TAG and text not in banned:
        return True
    for value in range(256):
        target = _step(leaf.base, base, value)
        if target is not None and _leads_on(leaf, text + bytes([value]), target):
            return True
    return False


def _goes_on(leaf: Leaf, state: Any) -> bool:
    return any(_step(leaf, state, value) is not None for value in range(256))


def _tag(leaf: Leaf, state: Any) -> int:
    match leaf:
        case DfaLeaf():
            return int(leaf.tags[state])
        case LiteralLeaf():
            return dict(leaf.literals).get(state, NO_TAG)
        case OverrideLeaf():
            own = dict(leaf.literals)
            if state[0] in own:
                return own[state[0]]
            return NO_TAG if state[1] is None else _tag(leaf.base, state[1])
        case CountedLeaf():
            return NO_TAG if state[1] < leaf.low else int(leaf.base.tags[state[0]])
    raise AssertionError(type(leaf))


class NaiveMachine:
    def __init__(self, start: RuleState) -> None:
        self.threads, self.can_end = self._open((start,))

    def _open(self, stack: tuple[RuleState, ...]) -> tuple[set[Thread], bool]:
        threads: set[Thread] = set()
        can_end = False
        pending, seen = [stack], {stack}
        while pending:
            states = pending.pop()
            if not states:
                can_end = True
                continue
            top, below = states[0], states[1:]
            expansion = top.expand()
            for head in expansion.heads:
                threads.add((head.leaf, _start(head.leaf), head, b"", below))
            for call in expansion.calls:
                target = (*call, *below)
                if target not in seen:
                    seen.add(target)
                    pending.append(target)
        return threads, can_end

    def advance(self, value: int) -> bool:
        """Read one byte; False if nothing goes on with it (then the machine is stuck)."""
        after: set[Thread] = set()
        self.can_end = False
        for leaf, state, head, text, below in self.threads:
            target = _step(leaf, state, value)
            if target is None:
                continue
            read = text + bytes([value]) if isinstance(head, RecordedHead) else b""
            after.add((leaf, target, head, read, below))
            tag = _tag(leaf, target)
            if tag != NO_TAG:
                then = (
                    head.follow(tag, read) if isinstance(head, RecordedHead) else head.follow(tag)
                )
                opened, ends = self._open((*then, *below))
                after |= opened
                self.can_end |= ends
        self.threads = after
        return bool(after) or self.can_end

    def next_bytes(self) -> list[int]:
        return [
            value
            for value in range(256)
            if any(_step(leaf, state, value) is not None for leaf, state, *_ in self.threads)
        ]


def accepts(start: RuleState, text: bytes) -> bool:
    machine = NaiveMachine(start)
    return all(machine.advance(value) for value in text) and machine.can_end
