"""Parser states: sets of stacks over a network, which the token machine expands as it reaches them.

A state stands for everything that the grammar may have in mind after a text: like a state of an LR
parser that is built on the way, without look-ahead and so without conflicts, for any context-free
grammar.
"""

from functools import partial
from typing import TYPE_CHECKING

from umbel.grammar.cfg.fallbacks import found_behind, kept_fallbacks
from umbel.grammar.cfg.frames import Frame, with_returns
from umbel.grammar.cfg.lexer import Lexeme, Terminals
from umbel.grammar.pushdown.leaves import TokenLeaf
from umbel.grammar.pushdown.rules import Expansion, Head, Measure, RuleState, Sequence

if TYPE_CHECKING:
    from umbel.grammar.cfg.parser import Parser
    from umbel.grammar.cfg.views import Plan, Target


class ParserState(RuleState):
    """Made by `Parser.state` only. ends: the whole text may end here."""

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
        self, parser: "Parser", frames: frozenset[Frame], touches: bool, ends_now: bool
    ) -> None:
        super().__init__((frames, touches, ends_now))
        self.parser = parser
        self.frames = frames
        self.touches = touches
        self.ends_now = ends_now
        self.stacks, ends = with_returns(parser.tables, frames)
        self.ends = ends or ends_now
        self.view = parser.view(frozenset([frame.state for frame in self.stacks]))
        self._next: dict[Terminals, ParserState] = {}
        self._behind: dict[bytes, Sequence | None] = {}
        self._expansion: Expansion | None = None

    def expand(self) -> Expansion:
        found = self._expansion
        if found is None:
            heads = (*self._heads(), *self._token_heads())
            found = self._expansion = Expansion(heads, self._calls())
        return found

    def expanded_plainly(self) -> Expansion:
        """One head for each lexeme, and without fallbacks: those look at the states that follow,
        and it would not end.
        """
        heads = [self.head(lexeme) for lexeme in self.view.lexer]
        return Expansion((*heads, *self._token_heads()), self._calls())

    def head(self, lexeme: Lexeme) -> Head:
        """Of one lexeme, without fallbacks."""
        leaf = lexeme.leaf(greedy=self._is_greedy(lexeme))
        return Head(leaf, partial(self._follow, self.view.shifts_of(lexeme)), is_sure=True)

    def _heads(self) -> list[Head]:
        """Greedy leaves and fixed texts are one head: see `LexerLeaf`."""
        view = self.view
        plans = view.plans
        if view.varying:
            joined: list[Plan] = list(plans)
            apart: list[Plan] = []
            for lexeme in view.varying:
                greedy = self._is_greedy(lexeme)
                kept = kept_fallbacks(self, lexeme) if greedy else {}
                leaf = lexeme.leaf(greedy=greedy, kept=tuple(kept))
                targets: tuple[Target, ...] = (*view.shifts_of(lexeme), *kept.values())
                (joined if greedy else apart).append((leaf, targets))
            plans = [*self.parser.joined(joined), *apart]
        return [
            Head(leaf, partial(self._follow, targets), is_sure=True)
            for leaf, targets in (*plans, *view.apart)
        ]

    def _token_heads(self) -> list[Head]:
        heads = []
        for number in self.view.tokens:
            token = self.parser.network.shifts[number]
            assert isinstance(token, TokenLeaf)
            heads.append(Head(token, partial(self._follow, (frozenset((number,)),))))
        return heads

    def _calls(self) -> tuple[Sequence, ...]:
        calls: list[Sequence] = [()] if self.ends else []
        for number in self.view.grammars:
            state = self.parser.network.shifts[number]
            assert isinstance(state, RuleState)
            calls.append((state, *self.following(frozenset((number,)))))
        return tuple(calls)

    def _follow(self, targets: "tuple[Target, ...]", tag: int) -> Sequence:
        target = targets[tag]
        return target if isinstance(target, tuple) else self.following(target)

    def _is_greedy(self, lexeme: Lexeme) -> bool:
        parser = self.parser
        return not parser.network.scannerless and not any(
            self._leaves_nothing(lexeme, tag) for tag in parser.doubtful_tags(lexeme)
        )

    def _leaves_nothing(self, lexeme: Lexeme, tag: int) -> bool:
        """Whether after some text with the tag every byte that may follow would make it longer."""
        meant = self.view.meant(lexeme.meanings[tag])
        if not meant:
            return False
        state = self.after(meant)
        if state.ends or state.view.tokens:
            return False
        return any(not state.view.first & ~bytes_ for bytes_ in lexeme.open_bytes[tag])

    def following(self, shifts: Terminals) -> Sequence:
        state = self.after(shifts)
        return (state,) if state.view.possible else ()

    def after(self, shifts: Terminals) -> "ParserState":
        """The state after something that can be understood as any of the shifts."""
        found = self._next.get(shifts)
        if found is None:
            found = self._next[shifts] = self._after(shifts)
        return found

    def _after(self, shifts: Terminals) -> "ParserState":
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
            self._behind[text] = found_behind(self, text)
        return self._behind[text]

    def cost(self, measure: Measure) -> int:
        return self.parser.costs.of_state(self, measure)
