"""White space between the parts of a JSON text: which leaf stands for which punctuation."""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np

from umbel.grammar.automaton import ByteDfa, shared_columns
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.build import tree_dfa
from umbel.grammar.pushdown.leaves import NO_TAG, DfaLeaf, dfa_leaf
from umbel.grammar.pushdown.rules import Head, Sequence
from umbel.grammar.regex.parser import parse_regex


class Whitespace(Enum):
    """How much white space the output may hold. Always bounded: endless white space is how models
    get stuck.
    """

    COMPACT = "compact"  # at most one space after ":" and ",": both styles of `json.dumps`
    NONE = "none"
    # As COMPACT, and a line end with up to 64 blanks where `json.dumps(indent=...)` has one.
    INDENTED = "indented"
    ANY = "any"  # up to 16 characters of white space between any two tokens


END, NEXT = 0, 1


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a container ends or goes on: `end` and `next` are the two kinds of text, each with the
    tag 0; `both` has them as the tags END and NEXT, so that one leaf is read instead of two.
    """

    end: DfaLeaf
    next: DfaLeaf
    both: DfaLeaf

    def heads(self, following: Sequence | None, *, may_end: bool) -> tuple[Head, ...]:
        """following: what comes next where the container goes on, None if it cannot."""
        if following is None:
            return (Head(self.end, _nothing),) if may_end else ()
        if may_end:
            return (Head(self.both, ((), following).__getitem__),)
        return (Head(self.next, (following,).__getitem__),)


@dataclass(frozen=True, slots=True)
class Spacing:
    """Leaves of punctuation and the white space around it.

    object_first: an opened object up to its first name's opening quote, or all of an empty one.
    object_after: after a property, up to the quote of the next name, or the closing bracket.
    array_first: an opened array, or all of an empty one. array_after: after an item, up to the next
    one, or the closing bracket. The others have the tag 0; *_end: a bracket after an item;
    *_empty: a bracket right after the opening one.
    """

    object_first: Fork
    object_after: Fork
    array_first: Fork
    array_after: Fork

    object_start: DfaLeaf
    object_end: DfaLeaf
    object_empty: DfaLeaf
    array_start: DfaLeaf
    array_end: DfaLeaf
    array_empty: DfaLeaf
    comma: DfaLeaf
    colon: DfaLeaf


@lru_cache(8)
def spacing_of(whitespace: Whitespace) -> Spacing:
    inside, before, after, colon = {
        Whitespace.COMPACT: ("", "", " ?", ": ?"),
        Whitespace.NONE: ("", "", "", ":"),
        Whitespace.INDENTED: (_LINE, _LINE, f"(?: |{_LINE})", ": ?"),
        Whitespace.ANY: (_SOME, _SOME, _SOME, f"{_SOME}:{_SOME}"),
    }[whitespace]
    comma = f"{_SOME if whitespace is Whitespace.ANY else ''},{after}"
    return Spacing(
        object_first=_fork("\\{\\}", f'\\{{{inside}"'),
        object_after=_fork(f"{before}\\}}", f'{comma}"'),
        array_first=_fork(f"\\[{inside}\\]", f"\\[{inside}"),
        array_after=_fork(f"{before}\\]", comma),
        object_start=_leaf(f"\\{{{inside}"),
        object_end=_leaf(f"{before}\\}}"),
        object_empty=_leaf("\\}"),
        array_start=_leaf(f"\\[{inside}"),
        array_end=_leaf(f"{before}\\]"),
        array_empty=_leaf("\\]"),
        comma=_leaf(comma),
        colon=_leaf(colon),
    )


_LINE = "(?:\\n[ \\t]{0,64})?"
_SOME = "[ \\t\\n\\r]{0,16}"


def _leaf(pattern: str) -> DfaLeaf:
    return dfa_leaf(tree_dfa(parse_regex(pattern), Limits()))


def _fork(end: str, following: str) -> Fork:
    ends, goes_on = _leaf(end), _leaf(following)
    return Fork(ends, goes_on, _tagged(ends.dfa, goes_on.dfa))


def _tagged(first: ByteDfa, second: ByteDfa) -> DfaLeaf:
    """The texts of both, which have none in common: with the tags 0 and 1."""
    numbers = {(0, 0): 0}
    rows: list[list[int]] = []
    pairs = list(numbers)
    for left, right in pairs:
        row = []
        for value in range(256):
            after = (
                int(first.table[left, first.byte_class[value]]),
                int(second.table[right, second.byte_class[value]]),
            )
            if after == (first.dead, second.dead):
                row.append(-1)
                continue
            if after not in numbers:
                numbers[after] = len(numbers)
                pairs.append(after)
            row.append(numbers[after])
        rows.append(row)
    table = np.array([*rows, [-1] * 256], np.int32)
    table[table < 0] = len(rows)
    table, byte_class = shared_columns(table)
    tags = [
        END if first.accepting[left] else NEXT if second.accepting[right] else NO_TAG
        for left, right in pairs
    ]
    tag_array = np.array([*tags, NO_TAG], np.int32)
    return DfaLeaf(ByteDfa(byte_class, table, tag_array >= 0), tag_array)


def _nothing(tag: int) -> Sequence:
    return ()
