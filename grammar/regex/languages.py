"""Boolean operations on languages of texts, and questions about them: finished character automata
with memory.

Automata are compared by identity; results are kept in bounded caches, since schemas combine the
same few patterns.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from umbel.grammar.limits import Limits
from umbel.grammar.regex import chardfa, syntax
from umbel.grammar.regex.chardfa import DEAD, CharDfa, determinize
from umbel.grammar.regex.charset import CharSet
from umbel.grammar.regex.classes import Dialect
from umbel.grammar.regex.lookaround import parse_with_lookahead
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.regex.syntax import ANY_CHAR

_KEPT = 512
_MAX_MINIMIZED = 4096  # states; larger automata come from counts, which minimizing would not shrink
_MAX_ROUNDS = 64
_MIN_COUNTED = 33  # shorter repetitions are unrolled: their automata are small
_UNLIMITED = 2**40
_MAX_EXAMPLES = 32  # characters tried of each class

ANY_TEXT = determinize(syntax.repeat(ANY_CHAR, 0, None), Limits())


@lru_cache(_KEPT)
def from_regex(pattern: str, limits: Limits) -> CharDfa:
    """The texts that match a whole pattern of Python's `re` syntax: for the formats of this
    package.
    """
    return minimized(determinize(parse_regex(pattern, limits=limits), limits))


@lru_cache(_KEPT)
def from_pattern(pattern: str, limits: Limits) -> CharDfa:
    """The texts that *contain* a match of an ECMA-262 pattern, as JSON Schema's `pattern` means
    it.
    """
    if "(?=" in pattern or "(?!" in pattern:
        return minimized(parse_with_lookahead(pattern, limits))
    return minimized(
        determinize(containing(parse_regex(pattern, dialect=Dialect.ECMA, limits=limits)), limits)
    )


@lru_cache(_KEPT)
def counted_pattern(pattern: str, limits: Limits) -> tuple[CharDfa, int, int | None] | None:
    """A pattern of the form ^x{low,high}$ for a class x and high counts: (the language of x*, low,
    high).
    """
    tree = parse_regex(pattern, dialect=Dialect.ECMA, limits=replace(limits, max_nodes=_UNLIMITED))
    body = tree.node if isinstance(tree, syntax.Scope) else tree
    if not (isinstance(body, syntax.Cat) and len(body.parts) == 3):
        return None
    start, item, end = body.parts
    if not (isinstance(start, syntax.Anchor) and isinstance(end, syntax.Anchor)):
        return None
    is_whole = start.kind is syntax.AnchorKind.START and end.kind is syntax.AnchorKind.END
    if not (is_whole and isinstance(item, syntax.Repeat) and isinstance(item.node, syntax.Chars)):
        return None
    if max(item.low, item.high or 0) < _MIN_COUNTED:
        return None
    loop = determinize(syntax.repeat(item.node, 0, None), limits)
    return loop, item.low, item.high


def containing(found: syntax.Node) -> syntax.Node:
    """Texts with a match anywhere; anchors refer to the ends of the text around it."""
    body = found.node if isinstance(found, syntax.Scope) else found
    around = syntax.repeat(ANY_CHAR, 0, None)
    return syntax.scope(syntax.cat([around, body, around]))


@lru_cache(_KEPT)
def from_texts(texts: frozenset[str], limits: Limits) -> CharDfa:
    return determinize(syntax.alt(syntax.literal(text) for text in sorted(texts)), limits)


@lru_cache(_KEPT)
def of_length(low: int, high: int | None, limits: Limits) -> CharDfa:
    return determinize(syntax.repeat(ANY_CHAR, low, high), limits)


@lru_cache(_KEPT)
def both(left: CharDfa, right: CharDfa, limits: Limits) -> CharDfa:
    if left is ANY_TEXT or right is ANY_TEXT or left is right:
        return right if left is ANY_TEXT else left
    return minimized(chardfa.intersection(left, right, limits))


@lru_cache(_KEPT)
def without(left: CharDfa, right: CharDfa, limits: Limits) -> CharDfa:
    if left is ANY_TEXT:
        return complement(right)
    return minimized(chardfa.difference(left, right, limits))


@lru_cache(_KEPT)
def either(left: CharDfa, right: CharDfa, limits: Limits) -> CharDfa:
    if left is ANY_TEXT or right is ANY_TEXT:
        return ANY_TEXT
    return minimized(chardfa.union(left, right, limits))


@lru_cache(_KEPT)
def complement(dfa: CharDfa) -> CharDfa:
    return minimized(chardfa.complement(dfa, ANY_TEXT.partition))


def minimized(dfa: CharDfa) -> CharDfa:
    """Merge equivalent states (Moore), unless the automaton is large; the start stays state 0."""
    num_states, _num_classes = dfa.table.shape
    if not 2 < num_states <= _MAX_MINIMIZED:
        return dfa
    table = np.where(dfa.table == DEAD, num_states, dfa.table)
    blocks = np.append(dfa.accepting.astype(np.int64), 2)
    count = len(np.unique(blocks))
    # Rows are told apart by hashes; `_agrees` makes sure that no collision merges wrongly.
    random = np.random.default_rng(0)
    weights = random.integers(1, 2**63, size=table.shape[1] + 1, dtype=np.uint64) | np.uint64(1)
    for _ in range(_MAX_ROUNDS):
        values = random.integers(0, 2**63, size=int(blocks.max()) + 1, dtype=np.uint64)[blocks]
        hashes = (values[table] * weights[1:]).sum(axis=1, dtype=np.uint64)
        _, refined = np.unique(hashes ^ (values[:-1] * weights[0]), return_inverse=True)
        refined = refined.reshape(-1)
        found = int(refined.max()) + 2
        if found == count:
            return _merged(dfa, refined) if _agrees(table, dfa.accepting, refined) else dfa
        blocks = np.append(refined, found - 1)
        count = found
    return dfa


def _agrees(
    table: npt.NDArray[np.integer], accepting: npt.NDArray[np.bool_], blocks: npt.NDArray[np.int64]
) -> bool:
    """Whether all states of a block accept alike and lead to the same blocks."""
    _, first, inverse = np.unique(blocks, return_index=True, return_inverse=True)
    representative = first[inverse.reshape(-1)]
    of_targets = np.append(blocks, blocks.max() + 1)[table]
    same_targets = np.array_equal(of_targets, of_targets[representative])
    return same_targets and np.array_equal(accepting, accepting[representative])


def _merged(dfa: CharDfa, blocks: npt.NDArray[np.int64]) -> CharDfa:
    _, first = np.unique(blocks, return_index=True)
    if len(first) == len(blocks):
        return dfa
    kept = np.sort(first)  # by first member: keeps the start at 0
    number = np.empty(len(first) + 1, np.int32)
    number[blocks[kept]] = np.arange(len(kept), dtype=np.int32)
    number[-1] = DEAD
    targets = dfa.table[kept]
    return CharDfa(
        dfa.partition,
        number[np.where(targets == DEAD, len(first), blocks[targets])].astype(np.int32),
        dfa.accepting[kept],
    )


def count_texts(dfa: CharDfa, low: int, high: int | None, cap: int) -> int:
    """How many texts of `low` to `high` characters the language has; at least `cap` is reported as
    `cap`.
    """
    sizes = [sum(end - start + 1 for start, end in members) for members in dfa.partition.members()]
    rows = _weighted_rows(dfa, sizes)
    accepting = dfa.accepting.tolist()
    counts = {0: 1}
    seen: set[frozenset[int]] = set()
    total = length = 0
    while counts and (high is None or length <= high):
        if length >= low:
            total += sum(count for state, count in counts.items() if accepting[state])
            if total >= cap:
                return cap
        elif length < low:
            # Below `low` only the set of states matters once it repeats: skip ahead.
            states = frozenset(counts)
            if states in seen and total == 0 and all(count >= cap for count in counts.values()):
                skipped = _skip_to(rows, states, low - length)
                counts = dict.fromkeys(skipped, cap)
                length = low
                continue
            seen.add(states)
        following: dict[int, int] = {}
        for state, count in counts.items():
            for target, size in rows[state]:
                following[target] = min(following.get(target, 0) + count * size, cap)
        counts = following
        length += 1
        if length > low and high is None and length > low + len(rows) * (cap + 1):
            break  # an infinite language would have reached the cap
    return total


def _weighted_rows(dfa: CharDfa, sizes: list[int]) -> list[list[tuple[int, int]]]:
    rows = []
    for row in dfa.table.tolist():
        merged: dict[int, int] = {}
        for class_id, target in enumerate(row):
            if target != DEAD:
                merged[target] = merged.get(target, 0) + sizes[class_id]
        rows.append(list(merged.items()))
    return rows


def _skip_to(
    rows: list[list[tuple[int, int]]], states: frozenset[int], steps: int
) -> frozenset[int]:
    """The states after `steps` more characters, by the period of the sets on the way."""
    order, index = [states], {states: 0}
    while len(order) <= steps:
        following = frozenset(target for state in order[-1] for target, _ in rows[state])
        if following in index:
            start = index[following]
            period = len(order) - start
            return order[start + (steps - start) % period]
        index[following] = len(order)
        order.append(following)
    return order[steps]


def some_texts(dfa: CharDfa, limit: int) -> list[str]:
    """Up to `limit` texts of the language, the shortest first; a few characters, printable ones if
    there are any, stand for each class.
    """
    chars = [_examples(members, limit) for members in dfa.partition.members()]
    rows, accepting = dfa.table.tolist(), dfa.accepting.tolist()
    level: list[tuple[str, int]] = [("", 0)]
    found: list[str] = []
    for _ in range(len(rows) + limit):
        found += [text for text, state in level if accepting[state]]
        if len(found) >= limit or not level:
            break
        following = [
            (text + char, target)
            for text, state in level
            for class_id, target in enumerate(rows[state])
            if target != DEAD
            for char in chars[class_id]
        ]
        level = following[: 4 * limit] if len(found) else _by_state(following, limit)
    return found[:limit]


def _examples(members: CharSet, limit: int) -> str:
    """Characters of a class: letters first, and mostly none that JSON has to escape."""
    plain = [chr(c) for low, high in members for c in range(max(low, 0x20), min(high, 0x7E) + 1)]
    plain = [char for char in plain if char not in '"\\']
    plain.sort(key=lambda char: not char.isalpha())
    return "".join(plain[: min(limit, _MAX_EXAMPLES)]) or chr(members[0][0])


def _by_state(level: list[tuple[str, int]], limit: int) -> list[tuple[str, int]]:
    """At most `limit` texts for each state, so that no state is lost."""
    kept: dict[int, list[tuple[str, int]]] = {}
    for text, state in level:
        group = kept.setdefault(state, [])
        if len(group) < limit:
            group.append((text, state))
    return [entry for group in kept.values() for entry in group]
