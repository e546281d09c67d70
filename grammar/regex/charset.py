"""Sets of Unicode characters as sorted, disjoint, non-adjacent inclusive ranges of code points.

Surrogates are never members: they have no UTF-8 form, so no output can hold one.
"""

from collections.abc import Iterable

CharSet = tuple[tuple[int, int], ...]

MAX_CODE_POINT = 0x10FFFF
FIRST_SURROGATE, LAST_SURROGATE = 0xD800, 0xDFFF
EMPTY: CharSet = ()
ALL: CharSet = ((0, FIRST_SURROGATE - 1), (LAST_SURROGATE + 1, MAX_CODE_POINT))


def from_ranges(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """Normalize inclusive ranges given in any order; surrogates are cut out."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(_without_surrogates(ranges)):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    # Neighbours of the surrogate gap must stay two ranges, or the gap would become a member.
    return tuple(_without_surrogates(merged))


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    for low, high in ranges:
        if high < FIRST_SURROGATE or low > LAST_SURROGATE:
            yield low, high
            continue
        if low < FIRST_SURROGATE:
            yield low, FIRST_SURROGATE - 1
        if high > LAST_SURROGATE:
            yield LAST_SURROGATE + 1, high


def of(chars: str) -> CharSet:
    """The set of the characters of a string."""
    return from_ranges((ord(char), ord(char)) for char in chars)


def union(*sets: CharSet) -> CharSet:
    return from_ranges(span for chars in sets for span in chars)


def complement(chars: CharSet) -> CharSet:
    gaps, start = [], 0
    for low, high in chars:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        gaps.append((start, MAX_CODE_POINT))
    return from_ranges(gaps)


def difference(left: CharSet, right: CharSet) -> CharSet:
    return complement(union(complement(left), right))


def intersection(left: CharSet, right: CharSet) -> CharSet:
    return complement(union(complement(left), complement(right)))
