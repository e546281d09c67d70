"""What can be read next at a set of places, whatever lies below on the stacks."""

from typing import TYPE_CHECKING

from umbel.grammar.cfg.lexer import Lexeme, Terminals
from umbel.grammar.pushdown.leaves import Leaf, TokenLeaf
from umbel.grammar.pushdown.rules import RuleState, Sequence

if TYPE_CHECKING:
    from umbel.grammar.cfg.parser import Parser

# What a leaf's tag stands for: shifts, or the states that follow at once.
Target = Terminals | Sequence
Plan = tuple[Leaf, tuple[Target, ...]]


class View:
    """Shared by all parser states whose stacks have the same network states on top.

    possible: all shifts. terminals, tokens, grammars: by kind. lexer: the terminals as lexemes. Of
    these, `varying` have leaves that depend on what follows, `apart` has the leaves of those with
    max_tokens, and `plans` the leaves of the others. first: the bytes that may come next, as a bit
    set; first_in_lexer: without embedded grammars.
    """

    __slots__ = (
        "_meant",
        "_parser",
        "apart",
        "first",
        "first_in_lexer",
        "grammars",
        "lexer",
        "plans",
        "possible",
        "terminals",
        "tokens",
        "varying",
    )

    def __init__(self, parser: "Parser", tops: frozenset[int]) -> None:
        self._parser = parser
        self._meant: dict[Terminals, Terminals] = {}
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
        self.first = 0
        for lexeme in self.lexer:
            self.first |= lexeme.first
        self.first_in_lexer = self.first
        for number in self.grammars:
            self.first |= parser.first_of_grammar(number)
        self.varying = [lexeme for lexeme in self.lexer if parser.is_varying(lexeme)]
        self.plans = self._plans()
        self.apart: list[Plan] = [
            (lexeme.bounded, self.shifts_of(lexeme))
            for lexeme in self.lexer
            if lexeme.bounded is not None
        ]

    def _plans(self) -> list[Plan]:
        plain = [x for x in self.lexer if x not in self.varying and x.bounded is None]
        scannerless = self._parser.network.scannerless
        plans: list[Plan] = [
            (lexeme.leaf(greedy=not scannerless), self.shifts_of(lexeme)) for lexeme in plain
        ]
        return plans if scannerless else self._parser.joined(plans)

    def shifts_of(self, lexeme: Lexeme) -> tuple[Terminals, ...]:
        """By tag, what its texts count as here."""
        return tuple(self.meant(meaning) for meaning in lexeme.meanings)

    def meant(self, meaning: Terminals) -> Terminals:
        """Which of a text's terminals count here: possible ones, of these the ones of the highest
        rank.
        """
        found = self._meant.get(meaning)
        if found is None:
            possible = meaning & self.terminals
            if len(possible) > 1:
                terminals = self._parser.lexicon.terminals
                best = max(terminals[number].rank for number in possible)
                possible = frozenset(n for n in possible if terminals[n].rank == best)
            found = self._meant[meaning] = possible
        return found
