"""A network's states with numbers of their own: edges, ends, and what each state can read next.

The states of counted repetitions are made when they are reached; everything else is there from the
start.
"""

from collections.abc import Iterator

from umbel.grammar.cfg.assemble import Network
from umbel.grammar.cfg.network import Counter, Edge
from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.interrupt import check_interrupt

_MAX_WAYS = 5_000  # ways to begin one state with one shift: more is hopelessly ambiguous
_MAX_COUNTER_STATES = 1_000_000

# For a shift: the states to return to later, lowest first, and the state after the shift.
Way = tuple[tuple[int, ...], int]


class Tables:
    """edges[s], is_final[s]; entry[r]: the start of rule r. For counters: (rule, low, high) by
    state.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.edges: list[list[Edge]] = []
        self.is_final: list[bool] = []
        self.entry: list[int] = []
        self.rule_of: list[int] = []
        self._counts: dict[int, tuple[int, int]] = {}  # counter states: low, high still to come
        self._counter_states: dict[tuple[int, int, int], int] = {}
        self._beginnings: dict[int, dict[int, tuple[Way, ...]]] = {}
        for rule, automaton in enumerate(network.rules):
            base = len(self.edges)
            if isinstance(automaton, Counter):
                self.entry.append(base)
                self._add(rule, False)
                self._counts[base] = automaton.low, automaton.high
                continue
            self.entry.append(base)
            for state, leaving in enumerate(automaton.edges):
                self._add(rule, state in automaton.final)
                self.edges[-1] = [(symbol, target + base) for symbol, target in leaving]

    def _add(self, rule: int, is_final: bool) -> int:
        self.edges.append([])
        self.is_final.append(is_final)
        self.rule_of.append(rule)
        return len(self.edges) - 1

    def leaving(self, state: int) -> list[Edge]:
        if state in self._counts and not self.edges[state]:
            rule = self.rule_of[state]
            counter = self.network.rules[rule]
            assert isinstance(counter, Counter)
            low, high = self._counts[state]
            if high > 0:
                target = self._counter_state(rule, max(low - 1, 0), high - 1)
                self.edges[state].append((counter.item, target))
        return self.edges[state]

    def count_at(self, state: int) -> int | None:
        """How many items a counter's state still needs; None for other states."""
        counts = self._counts.get(state)
        return None if counts is None else counts[0]

    def has_more(self, state: int) -> bool:
        """Whether anything leads on from the state."""
        counts = self._counts.get(state)
        return bool(self.edges[state]) if counts is None else counts[1] > 0

    def _counter_state(self, rule: int, low: int, high: int) -> int:
        key = rule, low, high
        state = self._counter_states.get(key)
        if state is None:
            if len(self._counter_states) >= _MAX_COUNTER_STATES:
                self._forget_counters()
            state = self._counter_states[key] = self._add(rule, low == 0)
            self._counts[state] = low, high
        return state

    def _forget_counters(self) -> None:
        raise UnsupportedGrammar(
            f"counted repetitions reached more than {_MAX_COUNTER_STATES} states",
            keyword="repetition",
        )

    def beginnings(self, state: int) -> dict[int, tuple[Way, ...]]:
        """What may be read next inside the state's rule, by shift. Finite, since no rule begins
        with itself.
        """
        found = self._beginnings.get(state)
        if found is None:
            for waiting in self._inner_first(state):
                if waiting not in self._beginnings:
                    self._beginnings[waiting] = self._merged_beginnings(waiting)
            found = self._beginnings[state]
        return found

    def _inner_first(self, state: int) -> list[int]:
        """The state and the starts of the rules that it can begin with, innermost first."""
        order: list[int] = []
        seen = {state}
        work: list[tuple[int, Iterator[int]]] = [(state, self._called(state))]
        while work:
            top, called = work[-1]
            entry = next((e for e in called if e not in seen and e not in self._beginnings), None)
            if entry is None:
                order.append(top)
                work.pop()
            else:
                seen.add(entry)
                work.append((entry, self._called(entry)))
        return order

    def _called(self, state: int) -> Iterator[int]:
        return iter([self.entry[~symbol] for symbol, _ in self.leaving(state) if symbol < 0])

    def _merged_beginnings(self, state: int) -> dict[int, tuple[Way, ...]]:
        ways: dict[int, dict[Way, None]] = {}
        check_interrupt()
        for symbol, target in self.leaving(state):
            if symbol >= 0:
                ways.setdefault(symbol, {})[(), target] = None
                continue
            # Returning to a state that can only return itself is left out: right recursion stays
            # flat.
            returns = (target,) if self.has_more(target) else ()
            for shift, inner in self._beginnings[self.entry[~symbol]].items():
                known = ways.setdefault(shift, {})
                for pushed, reached in inner:
                    known[returns + pushed, reached] = None
                if len(known) > _MAX_WAYS:
                    name = getattr(self.network.rules[self.rule_of[state]], "name", "a repetition")
                    raise UnsupportedGrammar(
                        f"rule {name} can begin in more than {_MAX_WAYS} ways: the grammar is too "
                        "ambiguous; merge alternatives that begin alike",
                        keyword="ambiguity",
                    )
        return {shift: tuple(known) for shift, known in ways.items()}
