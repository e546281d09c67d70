"""Parser states: sets of stacks over a network, which the token machine expands as it reaches them.

A state stands for everything that the grammar may have in mind after a text: like a state of an LR
parser that is built on the way, without look-ahead and so without conflicts, for any context-free
grammar.
"""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from umbel.grammar.cfg.assemble import Network
from umbel.grammar.cfg.costs import Costs
from umbel.grammar.cfg.lexer import Lexeme, Lexicon, live_bytes, starting_at
from umbel.grammar.cfg.tables import Tables
from umbel.grammar.cfg.terminals import Terminal
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.leaves import (
    NO_TAG,
    CountedLeaf,
    DfaLeaf,
    Leaf,
    LiteralLeaf,
    OverrideLeaf,
    TokenLeaf,
    literal_leaf,
)
from umbel.grammar.pushdown.rules import Expansion, Head, Measure, RuleState, Sequence

_MAX_STACKS = 400  # of one state; the deepest are dropped: the language is narrowed, never widened


Exists = Callable[[Leaf], bool]  # whether the vocabulary's tokens can spell a leaf


class Frame:
    """A stack: where one rule goes on (`state`), and below it the rule that used it. Interned by
    the parser.
    """

    __slots__ = ("below", "depth", "state")

    def __init__(self, state: int, below: "Frame | None") -> None:
        self.state = state
        self.below = below
        self.depth: int = 0 if below is None else below.depth + 1


class View:
    """What a set of network states can read, whatever lies below: shared by all stacks on top of
    it.
    """

    __slots__ = ("first", "first_in_lexer", "grammars", "lexer", "possible", "terminals", "tokens")

    def __init__(self, parser: "Parser", tops: frozenset[int]) -> None:
        shifts: set[int] = set()
        for state in tops:
            shifts.update(parser.tables.beginnings(state))
        self.possible = frozenset(shifts | parser.ignored)
        self.terminals = frozenset(n for n in self.possible if n in parser.lexicon.terminals)
        self.lexer = parser.lexicon.lexer(self.terminals)
        rest = sorted(self.possible - self.terminals)
        kinds = parser.network.shifts
        self.tokens = [n for n in rest if isinstance(kinds[n], TokenLeaf)]
        self.grammars = [n for n in rest if isinstance(kinds[n], RuleState)]
        self.first = 0  # the bytes that may come next, as a bit set
        for lexeme in self.lexer:
            self.first |= lexeme.first
        self.first_in_lexer = self.first
        for number in self.grammars:
            self.first |= parser.first_of_grammar(number)


class Parser:
    """Makes and keeps the states of one network."""

    def __init__(self, network: Network, limits: Limits, exists: Exists) -> None:
        self.network = network
        self._exists = exists
        self.tables = Tables(network)
        self.ignored = network.ignored
        terminals = {
            n: shift for n, shift in enumerate(network.shifts) if isinstance(shift, Terminal)
        }
        self.lexicon = Lexicon(terminals, limits, scannerless=network.scannerless)
        self.separators = self._separators()
        self.costs = Costs(network, self.tables, self.separators)
        self._ignored_first = 0
        for number in self.ignored & terminals.keys():
            self._ignored_first |= self.lexicon.first[number]
        self._frames: dict[tuple[int, Frame | None], Frame] = {}
        self._states: dict[tuple[frozenset[Frame], bool, bool], ParserState] = {}
        self._views: dict[frozenset[int], View] = {}
        self._grammar_first: dict[int, int] = {}
        self._doubtful: dict[int, list[int]] = {}  # by the identity of a lexeme of the lexicon
        for state in range(len(self.tables.edges)):
            self.tables.beginnings(state)  # tells now what would be too ambiguous later

    def _separators(self) -> frozenset[int]:
        """Ignored terminals behind which anything else may begin: white space, but not a comment up
        to the end of the line.
        """
        lexicon = self.lexicon
        other_first = 0
        for number, first in lexicon.first.items():
            if number not in self.ignored:
                other_first |= first
        found = set()
        for number in self.ignored & lexicon.terminals.keys():
            dfa = lexicon.terminals[number].dfa
            ends = np.flatnonzero(dfa.accepting[:-1]).tolist()
            if not any(live_bytes(dfa, state) & other_first for state in ends):
                found.add(number)
        return frozenset(found)

    def start(self, *, may_end: bool) -> "ParserState":
        """may_end: whether the empty text counts, if the grammar allows it."""
        frame = self.frame(self.tables.entry[0], None)
        ends_now = may_end and self.network.is_nullable
        return self.state([frame], touches=False, ends_now=ends_now)

    def frame(self, state: int, below: Frame | None) -> Frame:
        key = state, below
        found = self._frames.get(key)
        if found is None:
            found = self._frames.setdefault(key, Frame(state, below))
        return found

    def state(
        self, frames: Iterable[Frame], *, touches: bool, ends_now: bool = False
    ) -> "ParserState":
        """touches: no separator lies directly before, so that one may be needed."""
        members = frozenset(frames)
        if len(members) > _MAX_STACKS:
            kept = sorted(members, key=lambda frame: (frame.depth, frame.state))[:_MAX_STACKS]
            members = frozenset(kept)
        key = members, touches and bool(self.separators), ends_now
        found = self._states.get(key)
        if found is None:
            found = self._states.setdefault(key, ParserState(self, *key))
        return found

    def leaf_exists(self, leaf: Leaf) -> bool:
        return self._exists(leaf)

    def state_exists(self, state: RuleState) -> bool:
        """Of a state that restricts another: whether some of its first leaves can be spelled."""
        expansion = state.expand()
        return bool(expansion.calls) or any(self._exists(head.leaf) for head in expansion.heads)

    def view(self, tops: frozenset[int]) -> View:
        found = self._views.get(tops)
        if found is None:
            found = self._views.setdefault(tops, View(self, tops))
        return found

    def first_of_grammar(self, number: int) -> int:
        found = self._grammar_first.get(number)
        if found is None:
            state = self.network.shifts[number]
            assert isinstance(state, RuleState)
            found = self._grammar_first[number] = first_bytes(state)
        return found

    def doubtful_tags(self, lexeme: Lexeme) -> list[int]:
        """The tags with a longest match that could leave nothing to follow; ignored text mostly
        rules it out.
        """
        found = self._doubtful.get(id(lexeme))
        if found is None:
            found = self._doubtful[id(lexeme)] = [
                tag
                for tag, open_bytes in enumerate(lexeme.open_bytes)
                if any(bytes_ and not self._ignored_first & ~bytes_ for bytes_ in open_bytes)
            ]
        return found


class ParserState(RuleState):
    __slots__ = (
        "_behind",
        "_expansion",
        "_next",
        "ends",
        "ends_now",
        "frames",
        "parser",
        "stacks",
        "touches",
        "view",
    )

    def __init__(
        self, parser: Parser, frames: frozenset[Frame], touches: bool, ends_now: bool
    ) -> None:
        super().__init__((frames, touches, ends_now))
        self.parser = parser
        self.frames = frames
        self.touches = touches
        self.ends_now = ends_now
        self.stacks, ends = _with_returns(parser.tables, frames)
        self.ends = ends or ends_now
        self.view = parser.view(frozenset(frame.state for frame in self.stacks))
        self._next: dict[frozenset[int], ParserState] = {}
        self._behind: dict[bytes, Sequence | None] = {}
        self._expansion: Expansion | None = None

    def expand(self) -> Expansion:
        found = self._expansion
        if found is None:
            found = self._expansion = self.expanded(with_fallbacks=True)
        return found

    def expanded(self, *, with_fallbacks: bool) -> Expansion:
        """Fallbacks look at the states that follow: those are asked without, or it would not
        end.
        """
        shifts = self.parser.network.shifts
        heads = [self._head(lexeme, with_fallbacks=with_fallbacks) for lexeme in self.view.lexer]
        for number in self.view.tokens:
            token = shifts[number]
            assert isinstance(token, TokenLeaf)
            heads.append(Head(token, partial(self._after_token, frozenset((number,)))))
        calls: list[Sequence] = [()] if self.ends else []
        for number in self.view.grammars:
            state = shifts[number]
            assert isinstance(state, RuleState)
            calls.append((state, *self.following(frozenset((number,)))))
        return Expansion(tuple(heads), tuple(calls))

    def _head(self, lexeme: Lexeme, *, with_fallbacks: bool) -> Head:
        if lexeme.literals is not None:
            leaf = lexeme.leaf(greedy=False)
            return Head(leaf, partial(self._after_tag, lexeme.meanings), is_sure=True)
        greedy = not self.parser.network.scannerless and not any(
            self._leaves_nothing(lexeme, tag) for tag in self.parser.doubtful_tags(lexeme)
        )
        kept: dict[int, Sequence] = {}
        if greedy and with_fallbacks and lexeme.fallbacks:
            kept = self._fallbacks(lexeme)
        leaf = lexeme.leaf(greedy=greedy, kept=tuple(kept))
        follow = partial(self._after_lexeme, lexeme.meanings, tuple(kept.values()))
        return Head(leaf, follow, is_sure=True)

    def _leaves_nothing(self, lexeme: Lexeme, tag: int) -> bool:
        """Whether after some text with the tag every byte that may follow would make it longer."""
        if not lexeme.meanings[tag] & self.view.terminals:
            return False
        state = self.after(self._meant(lexeme.meanings[tag]))
        if state.ends or state.view.tokens:
            return False
        return any(not state.view.first & ~bytes_ for bytes_ in lexeme.open_bytes[tag])

    def _fallbacks(self, lexeme: Lexeme) -> dict[int, Sequence]:
        """The fallbacks that lead somewhere, by tag, and what follows them."""
        kept: dict[int, Sequence] = {}
        for tag, fallbacks in lexeme.fallbacks.items():
            meant = self._meant(lexeme.meanings[tag])
            if not meant:
                continue
            state = self.after(meant)
            first = state.view.first_in_lexer
            for number, pending in fallbacks:
                if first >> pending[0] & 1:
                    found = state.behind(pending)
                    if found is not None:
                        kept[number] = found
        return kept

    def _after_tag(self, meanings: list[frozenset[int]], tag: int) -> Sequence:
        return self.following(self._meant(meanings[tag]))

    def _after_token(self, shifts: frozenset[int], tag: int) -> Sequence:
        return self.following(shifts)

    def _after_lexeme(
        self, meanings: list[frozenset[int]], kept: tuple[Sequence, ...], tag: int
    ) -> Sequence:
        if tag >= len(meanings):
            return kept[tag - len(meanings)]
        return self.following(self._meant(meanings[tag]))

    def following(self, shifts: frozenset[int]) -> Sequence:
        state = self.after(shifts)
        return (state,) if state.view.possible else ()

    def _meant(self, meaning: frozenset[int]) -> frozenset[int]:
        """Which of a text's terminals count here: possible ones, of these the ones of the highest
        rank.
        """
        possible = meaning & self.view.terminals
        if len(possible) < 2:
            return possible
        terminals = self.parser.lexicon.terminals
        best = max(terminals[number].rank for number in possible)
        return frozenset(number for number in possible if terminals[number].rank == best)

    def after(self, shifts: frozenset[int]) -> "ParserState":
        """The state after something that can be understood as any of the shifts."""
        found = self._next.get(shifts)
        if found is None:
            found = self._next[shifts] = self._after(shifts)
        return found

    def _after(self, shifts: frozenset[int]) -> "ParserState":
        parser, tables = self.parser, self.parser.tables
        frames: set[Frame] = set()
        ignored = shifts & parser.ignored
        if ignored:
            frames |= self.frames
        for stack in self.stacks:
            beginnings = tables.beginnings(stack.state)
            for shift in shifts:
                for pushed, target in beginnings.get(shift, ()):
                    below = stack.below
                    # The stack's own state is replaced by where the shift leads inside its rule.
                    for state in pushed:
                        below = parser.frame(state, below)
                    if below is None or tables.has_more(target):
                        below = parser.frame(target, below)
                    frames.add(below)
        ends_now = bool(ignored) and self.ends_now
        return parser.state(frames, touches=not shifts <= parser.separators, ends_now=ends_now)

    def behind(self, text: bytes) -> Sequence | None:
        """What follows when `text` is read from here on and may be a part of a longer terminal;
        None: nothing.
        """
        if text not in self._behind:
            self._behind[text] = self._found_behind(text)
        return self._behind[text]

    def _found_behind(self, text: bytes) -> Sequence | None:
        for lexeme in self.view.lexer:
            if lexeme.first >> text[0] & 1:
                break
        else:
            return None
        head = self._head(lexeme, with_fallbacks=False)
        leaf = head.leaf
        if isinstance(leaf, LiteralLeaf):
            return self._behind_literal(leaf, head, text)
        assert isinstance(leaf, DfaLeaf)
        state = 0
        for at, value in enumerate(text):
            target = int(leaf.dfa.table[state, leaf.dfa.byte_class[value]])
            if target == leaf.dfa.dead:
                return _go_on(head, int(leaf.tags[state]), text[at:])
            state = target
        rest = starting_at(leaf, state)
        tag = int(leaf.tags[state])
        ended = None
        if tag >= 0:
            live = leaf.dfa.table[state, leaf.dfa.byte_class] != leaf.dfa.dead
            taken = int.from_bytes(np.packbits(live, bitorder="little").tobytes(), "little")
            ended = _without_first(head.follow(tag), taken)
            if ended and not self.parser.state_exists(ended[0]):
                ended = None
        return self._remainder(rest, head, ended)

    def _remainder(
        self, rest: DfaLeaf | LiteralLeaf | None, head: Head, ended: Sequence | None
    ) -> Sequence | None:
        if rest is not None and not self.parser.leaf_exists(rest):
            rest = None
        return None if rest is None and ended is None else (Remainder(rest, head, ended),)

    def _behind_literal(self, leaf: LiteralLeaf, head: Head, text: bytes) -> Sequence | None:
        rests = [(full[len(text) :], tag) for full, tag in leaf.literals if full.startswith(text)]
        for full, tag in leaf.literals:
            if text.startswith(full) and full != text:
                return _go_on(head, tag, text[len(full) :])
        if not rests:
            return None
        missing = [(rest, tag) for rest, tag in rests if rest]
        ended = next((head.follow(tag) for rest, tag in rests if not rest), None)
        return self._remainder(literal_leaf(missing) if missing else None, head, ended)

    def cost(self, measure: Measure) -> int:
        return self.parser.costs.of_state(self, measure)


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

    def __init__(self, state: ParserState, taken: int) -> None:
        super().__init__((state, taken))
        self.state = state
        self.taken = taken

    def expand(self) -> Expansion:
        heads = []
        whole = self.state.expanded(with_fallbacks=False)
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
    if isinstance(leaf, LiteralLeaf):
        kept = [(text, tag) for text, tag in leaf.literals if not taken >> text[0] & 1]
        return literal_leaf(kept) if kept else None
    return leaf


def _without_first(states: Sequence, taken: int) -> Sequence | None:
    if not states:
        return ()
    (state,) = states
    if not isinstance(state, ParserState):
        return None
    if not state.ends and not state.view.tokens and not state.view.first & ~taken:
        return None
    return (Restricted(state, taken),)


def _go_on(head: Head, tag: int, text: bytes) -> Sequence | None:
    """The longest match ended before the text did: the rest belongs to what follows."""
    states = head.follow(tag) if tag >= 0 else ()
    if len(states) == 1 and isinstance(states[0], ParserState):
        return states[0].behind(text)
    return None


def _with_returns(tables: Tables, frames: Iterable[Frame]) -> tuple[tuple[Frame, ...], bool]:
    """The stacks after any number of returns from finished rules, and whether all may be
    finished.
    """
    stacks: dict[Frame, None] = {}
    ends = False
    for frame in sorted(frames, key=lambda frame: (frame.depth, frame.state)):
        stack: Frame | None = frame
        while stack is not None and stack not in stacks:
            stacks[stack] = None
            if not tables.is_final[stack.state]:
                break
            stack = stack.below
        else:
            ends = ends or stack is None
    return tuple(stacks), ends


def first_bytes(state: RuleState) -> int:
    """The bytes that texts of a state begin with, as a bit set."""
    first = 0
    seen: set[RuleState] = set()
    pending: list[Sequence] = [(state,)]
    while pending:
        sequence = pending.pop()
        if not sequence or sequence[0] in seen:
            continue
        seen.add(sequence[0])
        expansion = sequence[0].expand()
        for head in expansion.heads:
            first |= _first_of_leaf(head.leaf)
        pending += expansion.calls
        if () in expansion.calls:
            pending.append(sequence[1:])
    return first


def _first_of_leaf(leaf: Leaf) -> int:
    if isinstance(leaf, DfaLeaf):
        return live_bytes(leaf.dfa, 0)
    if isinstance(leaf, OverrideLeaf):
        return _first_of_leaf(leaf.base) | _first_of_literals(leaf.literals)
    if isinstance(leaf, CountedLeaf):
        return _first_of_leaf(leaf.base)
    if isinstance(leaf, LiteralLeaf):
        return _first_of_literals(leaf.literals)
    return 0


def _first_of_literals(literals: Iterable[tuple[bytes, int]]) -> int:
    first = 0
    for text, tag in literals:
        if tag != NO_TAG:
            first |= 1 << text[0]
    return first
