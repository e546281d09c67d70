"""White space between the parts of a JSON text: which leaf stands for which punctuation."""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.build import tree_dfa
from umbel.grammar.pushdown.leaves import DfaLeaf, dfa_leaf
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


@dataclass(frozen=True, slots=True)
class Spacing:
    """Leaves with the tag 0: punctuation and the white space around it.

    *_end: a bracket after an item; *_empty: a bracket right after the opening one.
    """

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
    comma_before = _SOME if whitespace is Whitespace.ANY else ""
    return Spacing(
        _leaf(f"\\{{{inside}"),
        _leaf(f"{before}\\}}"),
        _leaf("\\}"),
        _leaf(f"\\[{inside}"),
        _leaf(f"{before}\\]"),
        _leaf("\\]"),
        _leaf(f"{comma_before},{after}"),
        _leaf(colon),
    )


_LINE = "(?:\\n[ \\t]{0,64})?"
_SOME = "[ \\t\\n\\r]{0,16}"


def _leaf(pattern: str) -> DfaLeaf:
    return dfa_leaf(tree_dfa(parse_regex(pattern), Limits()))
