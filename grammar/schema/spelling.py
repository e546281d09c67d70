"""Strings as JSON text: languages of decoded texts to byte automata of their spellings, with the
quotes.

A string without constraints may use every escape of JSON. Wherever the text matters (patterns,
enums, property names,
unique items) each character has one spelling, the one of `json.dumps(ensure_ascii=False)`: raw
where it can be, else the
short escape, else \\u00xx. So the same text is always the same bytes.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from umbel.grammar.automaton import ByteDfa, shared_columns
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
from umbel.grammar.regex import languages
from umbel.grammar.regex.chardfa import CharDfa, Partition
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.regex.utf8 import (
    INVALID,
    DecodingTree,
    class_entry,
    decoding_tree,
    in_spelling,
)
from umbel.grammar.values.literals import spell_text
from umbel.grammar.values.strings import Texts

_SHORT = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
_ESCAPED = (*range(0x20), 0x22, 0x5C)
_QUOTE = 0x22
_BEFORE, _AFTER, _FIRST_CHAR = 0, 1, 2  # states of a string
_RAW = '[^"\\\\\\x00-\\x1f]'
_HEX = "[0-9A-Fa-f]"
_UNIT = (
    f"u(?:[0-9A-Ca-cEFef]{_HEX}{{3}}|[Dd][0-7]{_HEX}{{2}}"
    f"|[Dd][89ABab]{_HEX}{{2}}\\\\u[Dd][C-Fc-f]{_HEX}{{2}})"
)
_ANY_CHAR = f'(?:{_RAW}|\\\\(?:["\\\\/bfnrt]|{_UNIT}))'
_MAX_PRODUCT = (
    100  # states of a language times a length that are multiplied out; above, lengths are counted
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


def _first_bytes(dfa: ByteDfa, between: Iterable[int]) -> npt.NDArray[np.bool_]:
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
    return dfa_leaf(_spelled(language))


@lru_cache(512)
def name_leaf(language: CharDfa) -> DfaLeaf:
    """As `language_leaf` after the opening quote: names are read behind the punctuation that has
    it.
    """
    dfa = _spelled(language)
    old = np.array([_FIRST_CHAR, _AFTER, *range(_FIRST_CHAR + 1, len(dfa.table))])
    new = np.zeros(len(dfa.table), np.int32)
    new[old] = np.arange(len(old))
    return dfa_leaf(ByteDfa(dfa.byte_class, new[dfa.table[old]], dfa.accepting[old]))


@lru_cache(256)
def _counted_language(language: CharDfa, low: int, high: int | None) -> CountedLeaf:
    dfa = _spelled(language)
    between = range(_FIRST_CHAR, _FIRST_CHAR + len(language.table))
    return CountedLeaf(dfa_leaf(dfa), _first_bytes(dfa, between), low, high)


def _spelled(language: CharDfa) -> ByteDfa:
    """The JSON strings of a language of decoded texts. State 0 is before the opening quote, 1 after
    the closing one; the states of the language follow in their order.
    """
    inside = in_spelling(language, _spelling_tree(language.partition), _LIMITS)
    dead = inside.dead + _FIRST_CHAR
    # The quote's own column: it may share one with other bytes that are never raw.
    num_columns = inside.table.shape[1]
    byte_class = inside.byte_class.copy()
    table = np.full((dead + 1, num_columns + 1), dead, np.int32)
    table[_FIRST_CHAR:, :num_columns] = inside.table + _FIRST_CHAR
    table[_FIRST_CHAR:, num_columns] = inside.table[:, byte_class[_QUOTE]] + _FIRST_CHAR
    byte_class[_QUOTE] = num_columns
    table[_BEFORE, num_columns] = _FIRST_CHAR
    table[_FIRST_CHAR:][inside.accepting, num_columns] = _AFTER
    accepting = np.zeros(dead + 1, bool)
    accepting[_AFTER] = True
    table, joined = shared_columns(table)
    return ByteDfa(joined[byte_class], table, accepting)


@lru_cache(256)
def _spelling_tree(partition: Partition) -> DecodingTree:
    """Characters as JSON spells them: raw in UTF-8 where they can be, else escaped."""
    rows = list(decoding_tree(partition).rows)
    root = rows[0] = rows[0].copy()
    root[list(_ESCAPED)] = INVALID

    def node() -> int:
        rows.append(np.full(256, INVALID, np.int32))
        return len(rows) - 1

    def child(at: int, char: str) -> int:
        if rows[at][ord(char)] == INVALID:
            rows[at][ord(char)] = node()
        return int(rows[at][ord(char)])

    for code in _ESCAPED:
        class_id = partition.class_of(code)
        if class_id >= 0:
            at = child(0, "\\")
            spelling = _SHORT.get(code) or f"u{code:04x}"
            for char in spelling[:-1]:
                at = child(at, char)
            rows[at][ord(spelling[-1])] = class_entry(class_id)
    return DecodingTree(np.array(rows))


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
