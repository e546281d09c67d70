"""Strings as JSON text: languages of decoded texts to byte automata of their spellings, with the
quotes.

A string without constraints may use every escape of JSON. Wherever the text matters (patterns,
enums, property names,
unique items) each character has one spelling, the one of `json.dumps(ensure_ascii=False)`: raw
where it can be, else the
short escape, else \\u00xx. So the same text is always the same bytes.
"""

from functools import lru_cache
from json.encoder import encode_basestring

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa, minimize, shared_columns
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.build import tree_dfa
from umbel.grammar.pushdown.leaves import (
    NO_TAG,
    CountedLeaf,
    DfaLeaf,
    Leaf,
    dfa_leaf,
    override_leaf,
)
from umbel.grammar.regex import chardfa, languages
from umbel.grammar.regex.chardfa import CharDfa
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.regex.utf8 import to_bytes
from umbel.grammar.values.literals import spell_text
from umbel.grammar.values.strings import Texts

_SHORT = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
_ESCAPED = (*range(0x20), 0x22, 0x5C)
_QUOTE, _BACKSLASH = 0x22, 0x5C
_RAW = '[^"\\\\\\x00-\\x1f]'
_HEX = "[0-9A-Fa-f]"
_UNIT = (
    f"u(?:[0-9A-Ca-cEFef]{_HEX}{{3}}|[Dd][0-7]{_HEX}{{2}}"
    f"|[Dd][89ABab]{_HEX}{{2}}\\\\u[Dd][C-Fc-f]{_HEX}{{2}})"
)
_ANY_CHAR = f'(?:{_RAW}|\\\\(?:["\\\\/bfnrt]|{_UNIT}))'
_MAX_PRODUCT = (
    400  # states of a language times a length that are multiplied out; above, lengths are counted
)
_LIMITS = Limits()


@lru_cache(1)
def any_string() -> DfaLeaf:
    """Every JSON string, in every spelling; no lone surrogates."""
    return dfa_leaf(tree_dfa(parse_regex(f'"{_ANY_CHAR}*"'), _LIMITS))


@lru_cache(256)
def counted_string(low: int, high: int | None) -> CountedLeaf:
    """Every JSON string of so many characters. A character counts at its first byte: so it must be
    one item.
    """
    base = any_string()
    return CountedLeaf(base, _first_bytes(base.dfa, (base.dfa.run(b'"'),)), low, high)


def _first_bytes(dfa: ByteDfa, between: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    counts = np.zeros(dfa.table.shape, bool)
    quote = dfa.byte_class[_QUOTE]
    for state in between:
        counts[state] = dfa.table[state] != dfa.dead
        counts[state, quote] = False
    return counts


@lru_cache(512)
def text_leaf(texts: Texts) -> Leaf:
    """The JSON strings of an atom, which must not be empty."""
    if texts.language is None and not texts.excluded:
        if texts.low == 0 and texts.high is None:
            return any_string()
        return counted_string(texts.low, texts.high)
    base = _bounded(texts)
    return override_leaf(base, [(spell_text(text), NO_TAG) for text in texts.excluded])


@lru_cache(512)
def plain_leaf(texts: Texts) -> "DfaLeaf | CountedLeaf":
    """As `text_leaf` without the exclusions, in the one spelling that unique texts need."""
    return _bounded(Texts(texts.language, texts.low, texts.high))


def _bounded(texts: Texts) -> "DfaLeaf | CountedLeaf":
    language = texts.language or languages.ANY_TEXT
    low, high = texts.low, texts.high
    if texts.language is not None and (low > 0 or high is not None):
        shortest, longest = _length_range(language)
        if shortest >= low:
            low = 0
        if high is not None and longest is not None and longest <= high:
            high = None
        bound = max(low, high or 0)
        if bound and bound * len(language.table) <= _MAX_PRODUCT:
            language = languages.both(language, languages.of_length(low, high, _LIMITS), _LIMITS)
            low, high = 0, None
    if low == 0 and high is None:
        return language_leaf(language)
    return _counted_language(language, low, high)


@lru_cache(512)
def language_leaf(language: CharDfa) -> DfaLeaf:
    return dfa_leaf(minimize(spelled(to_bytes(language, _LIMITS))))


@lru_cache(256)
def _counted_language(language: CharDfa, low: int, high: int | None) -> CountedLeaf:
    dfa = spelled(to_bytes(language, _LIMITS))
    return CountedLeaf(dfa_leaf(dfa), _first_bytes(dfa, _boundaries(dfa, language)), low, high)


def _boundaries(dfa: ByteDfa, language: CharDfa) -> tuple[int, ...]:
    """The states between two characters: where the automaton of characters is when one is read."""
    samples = [
        encode_basestring(chr(members[0][0])).encode()[1:-1]
        for members in language.partition.members()
    ]
    place_of = {0: dfa.run(b'"')}
    pending = [0]
    while pending:
        state = pending.pop()
        for class_id, target in enumerate(language.table[state].tolist()):
            if target != chardfa.DEAD and target not in place_of:
                place_of[target] = dfa.run(samples[class_id], place_of[state])
                pending.append(target)
    return tuple(place_of.values())


def spelled(dfa: ByteDfa) -> ByteDfa:
    """The automaton of decoded UTF-8 texts to that of their JSON strings, quotes included."""
    num_states, dead = dfa.num_states, dfa.dead
    wide = dfa.table[:, dfa.byte_class]  # [S + 1, 256]
    rows: list[dict[int, int]] = []  # of the states added behind the old ones
    raw = wide[:num_states].copy()
    raw[:, list(_ESCAPED)] = dead
    first_new = num_states + 2  # the old states, then the start and the end
    escapes: dict[int, dict[int, int]] = {}
    for state, code in zip(*np.nonzero(wide[:num_states, list(_ESCAPED)] != dead), strict=True):
        value = _ESCAPED[code]
        escapes.setdefault(int(state), {})[value] = int(wide[state, value])
    shared: dict[tuple[tuple[int, int], ...], int] = {}
    for state, targets in escapes.items():
        key = tuple(sorted(targets.items()))
        if key not in shared:
            shared[key] = _add_escapes(rows, first_new, targets)
        raw[state, _BACKSLASH] = shared[key]
    start, end = num_states, num_states + 1
    total = first_new + len(rows)
    table = np.full((total + 1, 256), total, np.int32)
    table[:num_states] = np.where(raw == dead, total, raw)
    table[:num_states][dfa.accepting[:num_states], _QUOTE] = end
    table[start, _QUOTE] = 0
    for at, row in enumerate(rows):
        for value, target in row.items():
            table[first_new + at, value] = target
    return _started(table, start, end)


def _add_escapes(rows: list[dict[int, int]], first_new: int, targets: dict[int, int]) -> int:
    """States that read what follows a backslash; returns the first."""
    entry: dict[int, int] = {}
    rows.append(entry)
    number = first_new + len(rows) - 1
    long = {code: target for code, target in targets.items() if code not in _SHORT}
    for code, target in targets.items():
        if code in _SHORT:
            entry[ord(_SHORT[code])] = target
    if long:
        chain = [entry]
        for value in b"u00":
            row: dict[int, int] = {}
            rows.append(row)
            chain[-1][value] = first_new + len(rows) - 1
            chain.append(row)
        for digit in {code >> 4 for code in long}:
            row = {}
            rows.append(row)
            chain[-1][ord(f"{digit:x}")] = first_new + len(rows) - 1
            for code, target in long.items():
                if code >> 4 == digit:
                    row[ord(f"{code & 15:x}")] = target
    return number


def _started(table: npt.NDArray[np.int32], start: int, end: int) -> ByteDfa:
    """Put the start first and leave out what the start does not reach."""
    total = len(table) - 1
    reached, pending = {start}, [start]
    order = [start]
    while pending:
        for target in set(table[pending.pop()].tolist()):
            if target != total and target not in reached:
                reached.add(target)
                pending.append(target)
                order.append(target)
    number = np.full(total + 1, len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    kept = number[table[[*order, total]]]
    columns, byte_class = shared_columns(kept)
    accepting = np.zeros(len(order) + 1, bool)
    if end in reached:
        accepting[number[end]] = True
    return ByteDfa(byte_class, columns.astype(np.int32), accepting)


@lru_cache(512)
def _length_range(language: CharDfa) -> tuple[int, int | None]:
    """The lengths of the shortest and of the longest text; None when there is no longest."""
    rows = [set(row) - {-1} for row in language.table.tolist()]
    accepting = language.accepting.tolist()
    level, shortest, longest = {0}, None, 0
    for length in range(len(rows) + 1):
        if not level:
            return shortest or 0, longest
        if any(accepting[state] for state in level):
            shortest = length if shortest is None else shortest
            longest = length
        level = {target for state in level for target in rows[state]}
    return shortest or 0, None
