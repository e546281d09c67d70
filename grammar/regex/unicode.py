"""Unicode tables: the Perl classes, `\\p{...}` properties and case variants. Computed on first use,
then kept.

Properties come from the tables of outlines-core's regex engine, which reads them off the automaton
of a
single class: the same names (general categories, scripts, Alphabetic, ...) without a copy of the
data here.
"""

import re
import sys
from functools import cache

import numpy as np
import outlines_core

from umbel.grammar.regex import charset
from umbel.grammar.regex.charset import CharSet

DIGIT_ASCII: CharSet = charset.of("0123456789")
WORD_ASCII: CharSet = charset.from_ranges([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
SPACE_ASCII: CharSet = charset.of(" \t\n\r\f\v")
# ECMA-262 WhiteSpace and LineTerminator.
SPACE_ECMA: CharSet = charset.union(
    charset.of("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"),
    ((0x2000, 0x200A),),
)
_LAST_CASED = 0x1FFFF  # no character beyond the supplementary multilingual plane has case


@cache
def perl_class(letter: str) -> CharSet:
    """`\\d`, `\\w` or `\\s` as Python's `re` has them on text."""
    code_points = np.arange(sys.maxunicode + 1, dtype="<u4").tobytes()
    everything = code_points.decode("utf-32-le", "surrogatepass")
    spans = (found.span() for found in re.finditer(rf"\{letter}+", everything))
    return charset.from_ranges((start, end - 1) for start, end in spans)


@cache
def unicode_property(name: str) -> CharSet | None:
    """The characters of `\\p{name}`; None when there is no such property."""
    if not re.fullmatch(r"\^?[A-Za-z_ ]+[A-Za-z0-9_ ]*(=[A-Za-z0-9_ ]+)?", name):
        return None
    byte_vocabulary = outlines_core.Vocabulary(
        256, {bytes([value]): [value] for value in range(256)}
    )
    try:
        index = outlines_core.Index(rf"\p{{{name}}}", byte_vocabulary)
    except ValueError:
        return None
    transitions = index.get_transitions()
    ranges: list[tuple[int, int]] = []

    def collect(state: int, spelled: bytes) -> None:
        for value, target in transitions.get(state, {}).items():
            if value >= 256:
                continue
            text = spelled + bytes([value])
            if target in finals:
                ranges.append((ord(text.decode()),) * 2)
            else:
                collect(target, text)

    finals = index.get_final_states()
    collect(index.get_initial_state(), b"")
    return charset.from_ranges(ranges)


def fold_case(chars: CharSet) -> CharSet:
    """The characters of the set and every other case of them (one-to-one variants only)."""
    orbits = _case_orbits()
    extra = []
    for low, high in chars:
        if high - low > len(orbits):
            extra += [(v, v) for c, group in orbits.items() if low <= c <= high for v in group]
        else:
            extra += [(v, v) for c in range(low, high + 1) for v in orbits.get(c, ())]
    return charset.union(chars, charset.from_ranges(extra))


@cache
def _case_orbits() -> dict[int, tuple[int, ...]]:
    orbits: dict[int, set[int]] = {}
    for code_point in range(_LAST_CASED + 1):
        char = chr(code_point)
        variants = {char.lower(), char.upper(), char.title()} - {char}
        for variant in variants:
            if len(variant) == 1:
                merged = orbits.get(code_point, {code_point}) | orbits.get(
                    ord(variant), {ord(variant)}
                )
                for member in merged:
                    orbits[member] = merged
    return {member: tuple(sorted(group)) for member, group in orbits.items()}
