"""The parser of one network: makes its states as they are reached, and keeps them."""

from collections.abc import Callable, Iterable

import numpy as np

from umbel.grammar.cfg.assemble import Network
from umbel.grammar.cfg.costs import Costs
from umbel.grammar.cfg.first_bytes import first_bytes, live_bytes
from umbel.grammar.cfg.frames import Frame, order
from umbel.grammar.cfg.lexer import Lexeme, Lexicon
from umbel.grammar.cfg.states import ParserState
from umbel.grammar.cfg.tables import Tables
from umbel.grammar.cfg.terminals import Terminal
from umbel.grammar.cfg.views import Plan, Target, View
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.leaves import DfaLeaf, Leaf, LexerLeaf, LiteralLeaf
from umbel.grammar.pushdown.rules import RuleState

_MAX_STACKS = 400  # of one state; the deepest are dropped: the language is narrowed, never widened

Exists = Callable[[Leaf], bool]  # whether the vocabulary's tokens can spell a leaf


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
        self._joined: dict[tuple[int, ...], LexerLeaf] = {}  # by the identities of leaves
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

    def start(self, *, may_end: bool) -> ParserState:
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
    ) -> ParserState:
        """touches: no separator lies directly before, so that one may be needed."""
        members = frozenset(frames)
        if len(members) > _MAX_STACKS:
            members = frozenset(sorted(members, key=order)[:_MAX_STACKS])
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

    def is_varying(self, lexeme: Lexeme) -> bool:
        """Whether the lexeme's leaf depends on what follows it."""
        if self.network.scannerless or lexeme.literals is not None or lexeme.bounded is not None:
            return False
        return bool(lexeme.fallbacks or self.doubtful_tags(lexeme))

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

    def joined(self, plans: list[Plan]) -> list[Plan]:
        """One leaf for all, which begin with different bytes and are greedy or fixed texts."""
        if len(plans) < 2:
            return plans
        key = tuple([id(leaf) for leaf, _ in plans])
        leaf = self._joined.get(key)
        if leaf is None:
            members: list[DfaLeaf | LiteralLeaf] = []
            for member, _ in plans:
                assert isinstance(member, DfaLeaf | LiteralLeaf | LexerLeaf)
                members += member.leaves if isinstance(member, LexerLeaf) else (member,)
            leaf = self._joined.setdefault(key, LexerLeaf(tuple(members)))
        targets: tuple[Target, ...] = ()
        for _, of_tag in plans:
            targets += of_tag
        return [(leaf, targets)]
