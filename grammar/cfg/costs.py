"""Closing costs of parser states: the tokens of the cheapest text that finishes all open rules.

Every terminal is counted together with one piece of ignored text after it, if the grammar has any:
neighbours that would grow together (`let` and a name) can then be kept apart, and the bound holds.
"""

from typing import TYPE_CHECKING

from umbel.grammar.cfg.assemble import Network
from umbel.grammar.cfg.network import Counter
from umbel.grammar.cfg.tables import Tables
from umbel.grammar.cfg.terminals import Terminal
from umbel.grammar.pushdown.leaves import TokenLeaf
from umbel.grammar.pushdown.rules import UNREACHABLE, Measure, RuleState

if TYPE_CHECKING:
    from umbel.grammar.cfg.frames import Frame
    from umbel.grammar.cfg.states import ParserState


class _Prices:
    """The costs for one vocabulary: of a separator, of rules from their start, of states to their
    rule's end.
    """

    def __init__(self, separator: int, shifts: list[int]) -> None:
        self.separator = separator
        self.shifts = shifts
        self.rules: list[int] = []
        self.states: dict[int, int] = {}
        self.frames: dict[Frame, int] = {}


class Costs:
    def __init__(self, network: Network, tables: Tables, separators: frozenset[int]) -> None:
        self._network = network
        self._tables = tables
        self._separators = separators
        self._prices: list[tuple[Measure, _Prices]] = []

    def of_state(self, state: "ParserState", measure: Measure) -> int:
        if state.ends:
            return 0
        prices = self._prices_for(measure)
        cheapest = min(
            (self._of_frame(frame, prices) for frame in state.frames), default=UNREACHABLE
        )
        return cheapest + (prices.separator if state.touches else 0)

    def _of_frame(self, frame: "Frame", prices: _Prices) -> int:
        """Along the stack, without recursion: stacks can be deep."""
        path = []
        at: Frame | None = frame
        while at is not None and at not in prices.frames:
            path.append(at)
            at = at.below
        total = 0 if at is None else prices.frames[at]
        for at in reversed(path):
            total += self._to_end(at.state, prices)
            prices.frames[at] = total
        return total

    def _to_end(self, state: int, prices: _Prices) -> int:
        count = self._tables.count_at(state)
        if count is None:
            return prices.states[state]
        counter = self._network.rules[self._tables.rule_of[state]]
        assert isinstance(counter, Counter)
        return count * self._of_symbol(counter.item, prices)

    def _of_symbol(self, symbol: int, prices: _Prices) -> int:
        return prices.shifts[symbol] + prices.separator if symbol >= 0 else prices.rules[~symbol]

    def _prices_for(self, measure: Measure) -> _Prices:
        for known, prices in self._prices:
            if known is measure:
                return prices
        prices = self._computed(measure)
        self._prices = [*self._prices[-3:], (measure, prices)]  # a grammar meets few vocabularies
        return prices

    def _computed(self, measure: Measure) -> _Prices:
        shifts = [self._of_shift(shift, measure) for shift in self._network.shifts]
        separator = min((shifts[number] for number in self._separators), default=0)
        prices = _Prices(separator, shifts)
        prices.rules = [UNREACHABLE] * len(self._network.rules)
        changed = True
        while changed:  # a rule's cost only falls; each round finishes at least one nesting depth
            changed = False
            for rule, automaton in enumerate(self._network.rules):
                if isinstance(automaton, Counter):
                    cost = max(automaton.low, 1) * self._of_symbol(automaton.item, prices)
                else:
                    cost = self._settle(rule, prices)
                cost = min(cost, UNREACHABLE)
                if cost < prices.rules[rule]:
                    prices.rules[rule] = cost
                    changed = True
        return prices

    def _settle(self, rule: int, prices: _Prices) -> int:
        """Costs of a rule's states to its end, given the rules' costs so far; returns the
        start's.
        """
        automaton = self._network.rules[rule]
        assert not isinstance(automaton, Counter)
        base = self._tables.entry[rule]
        costs = [
            0 if state in automaton.final else UNREACHABLE for state in range(len(automaton.edges))
        ]
        changed = True
        while changed:
            changed = False
            for state in range(len(automaton.edges) - 1, -1, -1):
                for symbol, target in automaton.edges[state]:
                    cost = self._of_symbol(symbol, prices) + costs[target]
                    if cost < costs[state]:
                        costs[state] = cost
                        changed = True
        for state, cost in enumerate(costs):
            prices.states[base + state] = cost
        return costs[0]

    def _of_shift(self, shift: object, measure: Measure) -> int:
        if isinstance(shift, Terminal):
            return measure.leaf(shift.leaf())
        if isinstance(shift, TokenLeaf):
            return measure.leaf(shift)
        assert isinstance(shift, RuleState)
        return measure.state(shift)
