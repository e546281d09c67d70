"""What a longest match falls back to when it fails: `1..2` is 1, .., 2 though `1.` begins a number.

A text that may be the beginning of a longer terminal is kept in mind by the terminal's leaf (see
`lexer.with_fallbacks`); here is what follows when the longer one fails: the bytes read too much are
read by what comes after the shorter one.
"""

from typing import TYPE_CHECKING

from umbel.grammar.cfg.first_bytes import first_bytes, live_bytes
from umbel.grammar.cfg.lexer import Lexeme, starting_at
from umbel.grammar.pushdown.leaves import BoundedLeaf, DfaLeaf, Leaf, LiteralLeaf, literal_leaf
from umbel.grammar.pushdown.rules import Expansion, Head, RuleState, Sequence

if TYPE_CHECKING:
    from umbel.grammar.cfg.states import ParserState


def kept_fallbacks(state: "ParserState", lexeme: Lexeme) -> dict[int, Sequence]:
    """The fallbacks of a lexeme that lead somewhere, by ascending tag, and what follows them."""
    kept: dict[int, Sequence] = {}
    for tag, fallbacks in lexeme.fallbacks.items():
        meant = state.view.meant(lexeme.meanings[tag])
        if not meant:
            continue
        after = state.after(meant)
        first = after.view.first_in_lexer
        for number, pending in fallbacks:
            if first >> pending[0] & 1:
                found = after.behind(pending)
                if found is not None:
                    kept[number] = found
    return dict(sorted(kept.items()))


def found_behind(state: "ParserState", text: bytes) -> Sequence | None:
    """See `ParserState.behind`."""
    for lexeme in state.view.lexer:
        if lexeme.first >> text[0] & 1 and lexeme.bounded is None:
            break
    else:
        return None
    head = state.head(lexeme)
    leaf = head.leaf
    if isinstance(leaf, LiteralLeaf):
        return _behind_literal(state, lexeme, leaf, text)
    assert isinstance(leaf, DfaLeaf)
    at_state = 0
    for at, value in enumerate(text):
        target = int(leaf.dfa.table[at_state, leaf.dfa.byte_class[value]])
        if target == leaf.dfa.dead:
            return _go_on(state, lexeme, int(leaf.tags[at_state]), text[at:])
        at_state = target
    rest = starting_at(leaf, at_state)
    tag = int(leaf.tags[at_state])
    ended = None
    if tag >= 0:
        ended = _without_first(_after(state, lexeme, tag), live_bytes(leaf.dfa, at_state))
        if ended and not state.parser.state_exists(ended[0]):
            ended = None
    return _remainder(state, rest, head, ended)


def _after(state: "ParserState", lexeme: Lexeme, tag: int) -> "ParserState":
    return state.after(state.view.meant(lexeme.meanings[tag]))


def _go_on(state: "ParserState", lexeme: Lexeme, tag: int, text: bytes) -> Sequence | None:
    """The longest match ended before the text did: the rest belongs to what follows."""
    if tag < 0:
        return None
    after = _after(state, lexeme, tag)
    return after.behind(text) if after.view.possible else None


def _remainder(
    state: "ParserState", rest: DfaLeaf | LiteralLeaf | None, head: Head, ended: Sequence | None
) -> Sequence | None:
    if rest is not None and not state.parser.leaf_exists(rest):
        rest = None
    return None if rest is None and ended is None else (Remainder(rest, head, ended),)


def _behind_literal(
    state: "ParserState", lexeme: Lexeme, leaf: LiteralLeaf, text: bytes
) -> Sequence | None:
    rests = [(full[len(text) :], tag) for full, tag in leaf.literals if full.startswith(text)]
    for full, tag in leaf.literals:
        if text.startswith(full) and full != text:
            return _go_on(state, lexeme, tag, text[len(full) :])
    if not rests:
        return None
    head = state.head(lexeme)
    missing = [(rest, tag) for rest, tag in rests if rest]
    ended = next((head.follow(tag) for rest, tag in rests if not rest), None)
    return _remainder(state, literal_leaf(missing) if missing else None, head, ended)


class Remainder(RuleState):
    """The rest of a terminal whose beginning has been read: what is missing, or the end as it
    is.
    """

    __slots__ = ("_expansion",)

    def __init__(
        self, leaf: DfaLeaf | LiteralLeaf | None, head: Head, ended: Sequence | None
    ) -> None:
        super().__init__((leaf, id(head), ended))
        heads = () if leaf is None else (Head(leaf, head.follow),)
        self._expansion = Expansion(heads, () if ended is None else (ended,))

    def expand(self) -> Expansion:
        return self._expansion


class Restricted(RuleState):
    """A parser state whose text may not begin with certain bytes: they would have made a longer
    match.
    """

    __slots__ = ("state", "taken")

    def __init__(self, state: "ParserState", taken: int) -> None:
        super().__init__((state, taken))
        self.state = state
        self.taken = taken

    def expand(self) -> Expansion:
        heads = []
        whole = self.state.expanded_plainly()
        for head in whole.heads:
            leaf = _leaf_without_first(head.leaf, self.taken)
            if leaf is not None:
                heads.append(Head(leaf, head.follow))
        calls = tuple(
            call for call in whole.calls if not call or not first_bytes(call[0]) & self.taken
        )
        return Expansion(tuple(heads), calls)


def _leaf_without_first(leaf: Leaf, taken: int) -> Leaf | None:
    if isinstance(leaf, DfaLeaf):
        return starting_at(leaf, 0, taken)
    if isinstance(leaf, BoundedLeaf):
        base = starting_at(leaf.base, 0, taken)
        return None if base is None else BoundedLeaf(base, leaf.max_tokens)
    if isinstance(leaf, LiteralLeaf):
        kept = [(text, tag) for text, tag in leaf.literals if not taken >> text[0] & 1]
        return literal_leaf(kept) if kept else None
    return leaf


def _without_first(state: "ParserState", taken: int) -> Sequence | None:
    view = state.view
    if not view.possible:
        return ()
    if not state.ends and not view.tokens and not view.first & ~taken:
        return None
    return (Restricted(state, taken),)
