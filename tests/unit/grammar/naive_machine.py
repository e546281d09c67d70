"""The token machine's oracle: grammar states run byte by byte, by their definition. No caches.

A thread is (head, state of its leaf, text of the leaf so far, stack of states below).
"""

from functools import cache
from typing import Any

from umbel.grammar import Vocabulary
from umbel.grammar.pushdown.leaves import (
    NO_TAG,
    CountedLeaf,
    DfaLeaf,
    Leaf,
    LiteralLeaf,
    OverrideLeaf,
    SelectedLeaf,
    TokenLeaf,
)
from umbel.grammar.pushdown.recorded import RecordedHead
from umbel.grammar.pushdown.rules import Head, RuleState, Sequence

NaiveThread = tuple[Head | RecordedHead, Any, bytes, Sequence]


class NaiveMachine:
    """All threads after a text; can_end: the text may end there. Immutable."""

    def __init__(self, threads: list[NaiveThread], *, can_end: bool) -> None:
        self.threads = threads
        self.can_end = can_end

    @classmethod
    def start(cls, root: RuleState) -> "NaiveMachine":
        return cls.of([(root,)], [])

    @classmethod
    def of(cls, stacks: list[Sequence], inside: list[NaiveThread]) -> "NaiveMachine":
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
                state = _start(head.leaf)
                threads.append((head, state, b"", stack[1:]))
                tag = _tag(head.leaf, state)
                if tag != NO_TAG:
                    stacks.append(_follow(head, tag, b"") + stack[1:])
        return cls(threads, can_end=can_end)

    def step(self, value: int) -> "NaiveMachine":
        inside: list[NaiveThread] = []
        ended: list[Sequence] = []
        seen = set()
        for head, state, text, below in self.threads:
            after = _step(head.leaf, state, value)
            if after is None:
                continue
            text = text + bytes([value]) if isinstance(head, RecordedHead) else b""
            if (head, after, text, below) in seen:
                continue
            seen.add((head, after, text, below))
            inside.append((head, after, text, below))
            tag = _tag(head.leaf, after)
            if tag != NO_TAG:
                ended.append(_follow(head, tag, text) + below)
        return NaiveMachine.of(ended, inside)

    def run(self, text: bytes) -> "NaiveMachine":
        at = self
        for value in text:
            at = at.step(value)
        return at

    def take(self, token_id: int, vocabulary: Vocabulary) -> "NaiveMachine":
        text = vocabulary.text_of(token_id)
        if text is not None:
            return self.run(text)
        named = [
            _follow(head, 0, b"") + below
            for head, state, _, below in self.threads
            if isinstance(head.leaf, TokenLeaf) and token_id in head.leaf.token_ids and not state
        ]
        return NaiveMachine.of(named, [])

    @property
    def is_dead(self) -> bool:
        return not self.can_end and not self.threads

    def next_bytes(self) -> list[int]:
        return [
            value
            for value in range(256)
            if any(_step(head.leaf, state, value) is not None for head, state, *_ in self.threads)
        ]

    def allowed(self, vocabulary: Vocabulary) -> set[int]:
        ids = {i for i in range(vocabulary.size) if not self.take(i, vocabulary).is_dead}
        ids -= {i for i in ids if i in vocabulary.eos_ids}
        return ids | (set(vocabulary.eos_ids) if self.can_end else set())


def accepts(start: RuleState, text: bytes) -> bool:
    return NaiveMachine.start(start).run(text).can_end


def _follow(head: Head | RecordedHead, tag: int, text: bytes) -> Sequence:
    return head.follow(tag, text) if isinstance(head, RecordedHead) else head.follow(tag)


# Leaves: a state is whatever the definition needs. ------------------------------------------------


def _start(leaf: Leaf) -> Any:
    match leaf:
        case DfaLeaf():
            return 0
        case LiteralLeaf() | TokenLeaf():
            return b""
        case SelectedLeaf():
            return _start(leaf.plain())
        case OverrideLeaf():
            return (b"", _start(leaf.base))
        case CountedLeaf():
            return (0, 0)
    raise AssertionError(type(leaf))


def _step(leaf: Leaf, state: Any, value: int) -> Any:
    """The next state; None if no text of the leaf begins so."""
    match leaf:
        case DfaLeaf():
            target = int(leaf.dfa.table[state, leaf.dfa.byte_class[value]])
            return None if target == leaf.dfa.dead else target
        case LiteralLeaf():
            text = state + bytes([value])
            return text if any(entry.startswith(text) for entry, _ in leaf.literals) else None
        case SelectedLeaf():
            return _step(leaf.plain(), state, value)
        case OverrideLeaf():
            text = state[0] + bytes([value])
            base = None if state[1] is None else _step(leaf.base, state[1], value)
            inside = any(entry.startswith(text) and tag != NO_TAG for entry, tag in leaf.literals)
            if base is not None and not _leads_on(leaf, text, base):
                base = None  # all that follows is banned
            return (text, base) if base is not None or inside else None
        case CountedLeaf():
            at, count = state
            column = leaf.base.dfa.byte_class[value]
            count += int(leaf.counts[at, column])
            target = int(leaf.base.dfa.table[at, column])
            return (target, count) if _can_complete(leaf, target, count) else None
        case TokenLeaf():
            return None
    raise AssertionError(type(leaf))


@cache
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


@cache
def _can_complete(leaf: CountedLeaf, state: int, count: int) -> bool:
    """Whether the base reaches an end with a count between the bounds."""
    dfa = leaf.base.dfa
    pending = [(state, count)]
    seen = set(pending)
    for at, items in pending:
        if at == dfa.dead or (leaf.high is not None and items > leaf.high):
            continue
        if items >= leaf.low and leaf.base.tags[at] != NO_TAG:
            return True
        for column in range(dfa.table.shape[1]):
            more = items + int(leaf.counts[at, column])
            after = (int(dfa.table[at, column]), more if leaf.high else min(more, leaf.low))
            if after not in seen:
                seen.add(after)
                pending.append(after)
    return False


def _tag(leaf: Leaf, state: Any) -> int:
    match leaf:
        case DfaLeaf():
            return int(leaf.tags[state])
        case LiteralLeaf():
            return dict(leaf.literals).get(state, NO_TAG)
        case SelectedLeaf():
            return _tag(leaf.plain(), state)
        case OverrideLeaf():
            own = dict(leaf.literals)
            if state[0] in own:
                return own[state[0]]
            return NO_TAG if state[1] is None else _tag(leaf.base, state[1])
        case CountedLeaf():
            at, count = state
            inside = leaf.low <= count and (leaf.high is None or count <= leaf.high)
            return int(leaf.base.tags[at]) if inside else NO_TAG
        case TokenLeaf():
            return NO_TAG
    raise AssertionError(type(leaf))
