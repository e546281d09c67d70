"""The named parts of a finished output: what `rule[capture]` has written.

Nothing of this runs while text is generated. The finished text is cut into terminals and these are
put together by the rules, each in the first way that fits:

* of the terminals that may come next one of the highest priority is tried first, then the longest,
  then a fixed text before a pattern, as the lexer does it;
* of the alternatives of a rule the first one that fits, and of each of its parts the longest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from umbel.grammar.automaton import ByteDfa
from umbel.grammar.cfg.chart import Chart, Node, Rules
from umbel.grammar.cfg.network import CapturedRule
from umbel.grammar.cfg.states import ParserState
from umbel.grammar.cfg.terminals import Terminal
from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.machine import TokenMachine
from umbel.grammar.pushdown.leaves import TokenLeaf
from umbel.grammar.pushdown.rules import RuleState
from umbel.grammar.vocabulary import Vocabulary

_MAX_WORK = 1_000_000  # bytes read while a text is cut into terminals: a second or so


@dataclass(frozen=True, slots=True)
class Capture:
    """A named part of an output: its text, and where it stands in the output's, in characters."""

    name: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Cut:
    """One terminal of a text: bytes [start, end) of it (a special token counts as one), and what
    it may be.
    """

    start: int
    end: int
    shifts: frozenset[int]


class CaptureReader:
    """Finds the captures of one grammar. Thread-safe."""

    def __init__(self, start: ParserState, vocabulary: Vocabulary) -> None:
        self._start = start
        self._parser = start.parser
        self._vocabulary = vocabulary
        self._rules = Rules(start.parser.network.drafts)
        self._rows: dict[int, list[list[int]]] = {}  # of terminals, by shift
        self._machines: dict[int, TokenMachine] = {}  # of embedded grammars, by shift

    def captures(self, token_ids: Sequence[int]) -> tuple[Capture, ...]:
        """In the order of the text, outer ones first; () when the text is not complete. Raises
        `UnsupportedGrammar` where the text can be read in too many ways.
        """
        text = _Text(token_ids, self._vocabulary)
        cuts = self._cut(text)
        if cuts is None:
            return ()
        network = self._parser.network
        ignored = self._parser.ignored
        is_skippable = [not ignored.isdisjoint(cut.shifts) for cut in cuts]
        chart = Chart(self._rules, [cut.shifts for cut in cuts], is_skippable)
        found = []
        for node in chart.nodes():
            rule = network.captured.get(node.rule)
            if rule is not None:
                found += _named(rule, node, cuts, text)
        return tuple(sorted(found, key=lambda part: (part.start, -part.end)))

    def _cut(self, text: "_Text") -> list[Cut] | None:
        """The terminals of the text, depth first; None when there is no way to its end."""
        failed: set[tuple[int, ParserState]] = set()
        budget = [_MAX_WORK]
        way: list[tuple[Iterator[Cut], ParserState, Cut | None]] = []
        at, state, cut = 0, self._start, None
        while True:
            if (at, state) not in failed:
                failed.add((at, state))  # or on the way: it is not entered twice either
                if at == len(text.units) and state.ends:
                    last: list[Cut] = [] if cut is None else [cut]
                    return [taken for _, _, taken in way if taken is not None] + last
                way.append((self._next_cuts(text, at, state, budget), state, cut))
            while way:
                cuts, above, _ = way[-1]
                cut = next(cuts, None)
                if cut is not None:
                    at, state = cut.end, above.after(cut.shifts)
                    break
                way.pop()
            else:
                return None

    def _next_cuts(
        self, text: "_Text", at: int, state: ParserState, budget: list[int]
    ) -> Iterator[Cut]:
        """What may come next, the best first."""
        by_rank: dict[tuple[int, int, bool], set[int]] = {}
        terminals = self._parser.lexicon.terminals
        for number in state.view.terminals:
            terminal = terminals[number]
            for end in self._ends(text, at, number, terminal, budget):
                by_rank.setdefault((terminal.priority, end, terminal.is_fixed), set()).add(number)
        for number in state.view.grammars:
            for end in self._ends_of_grammar(text, at, number, budget):
                by_rank.setdefault((0, end, False), set()).add(number)
        for number in state.view.tokens:
            token = self._parser.network.shifts[number]
            assert isinstance(token, TokenLeaf)
            if at < len(text.units) and ~text.units[at] in token.token_ids:
                by_rank.setdefault((0, at + 1, True), set()).add(number)
        for rank in sorted(by_rank, reverse=True):
            yield Cut(at, rank[1], frozenset(by_rank[rank]))

    def _ends(
        self, text: "_Text", at: int, number: int, terminal: Terminal, budget: list[int]
    ) -> Iterator[int]:
        rows = self._rows.get(number)
        if rows is None:
            dfa = terminal.dfa
            rows = self._rows[number] = dfa.table[:, dfa.byte_class].tolist()
        dead, ends = terminal.dfa.dead, terminal.dfa.accepting
        last = text.last_within(at, terminal.max_tokens)
        state = 0
        for position in range(at, last):
            unit = text.units[position]
            state = dead if unit < 0 else rows[state][unit]
            if state == dead:
                _spend(budget, position - at)
                return
            if ends[state]:
                budget[0] -= 1
                yield position + 1
                if terminal.is_lazy:
                    break
        _spend(budget, last - at)

    def _ends_of_grammar(
        self, text: "_Text", at: int, number: int, budget: list[int]
    ) -> Iterator[int]:
        machine = self._machines.get(number)
        if machine is None:
            root = self._parser.network.shifts[number]
            assert isinstance(root, RuleState)
            machine = self._machines[number] = TokenMachine(root, self._vocabulary)
        place = machine.start
        for position in range(at, len(text.units)):
            unit = text.units[position]
            after = machine.move(place, ~unit) if unit < 0 else machine.move_byte(place, unit)
            if after is None:
                _spend(budget, 20 * (position - at))  # a move costs what many bytes do
                return
            place = after
            if place.can_end:
                yield position + 1
        _spend(budget, 20 * (len(text.units) - at))


def _spend(budget: list[int], amount: int) -> None:
    budget[0] -= amount
    if budget[0] < 0:
        raise UnsupportedGrammar(
            "the output can be cut into terminals in too many ways to name its parts; put fixed "
            "texts between terminals of free text",
            keyword="capture",
        )


class _Text:
    """An output as units: a byte, or ~id for a special token."""

    def __init__(self, token_ids: Sequence[int], vocabulary: Vocabulary) -> None:
        self.units: list[int] = []
        self.token_of: list[int] = []  # by unit
        for number, token_id in enumerate(token_ids):
            if token_id in vocabulary.eos_ids:
                break
            text = vocabulary.text_of(token_id)
            added = [~token_id] if text is None else list(text)
            self.units += added
            self.token_of += [number] * len(added)

    def last_within(self, at: int, num_tokens: int | None) -> int:
        """How far a text from `at` on may reach that so many tokens write."""
        end = len(self.units)
        if num_tokens is None or at == end:
            return end
        last_token = self.token_of[at] + num_tokens - 1
        while end > at and self.token_of[end - 1] > last_token:
            end -= 1
        return end

    def of(self, start: int, end: int) -> bytes:
        return bytes(unit for unit in self.units[start:end] if unit >= 0)

    @cached_property
    def chars_before(self) -> list[int]:
        """The characters that begin before each unit, and before the end."""
        counts = [0]
        for unit in self.units:
            counts.append(counts[-1] + (unit >= 0 and unit & 0xC0 != 0x80))
        return counts

    def capture(self, name: str, start: int, end: int) -> Capture:
        text = self.of(start, end).decode("utf-8", "replace")
        return Capture(name, text, self.chars_before[start], self.chars_before[end])


def _named(rule: CapturedRule, node: Node, cuts: Sequence[Cut], text: _Text) -> list[Capture]:
    if node.start < node.end:
        start, end = cuts[node.start].start, cuts[node.end - 1].end
    else:
        start = end = cuts[node.start - 1].end if node.start else 0
    split = end
    if rule.ending is not None and start < end:
        split = start + _body_length(text.of(start, end), rule.body, rule.ending)
    found = []
    if rule.name is not None:
        found.append(text.capture(rule.name, start, split))
    if rule.ending_name is not None:
        found.append(text.capture(rule.ending_name, split, end))
    return found


def _body_length(text: bytes, body: ByteDfa | None, ending: ByteDfa) -> int:
    """Where the ending begins: as early as possible, so that the body is short."""
    state = 0
    for at in range(len(text)):
        is_body = not at or (body is not None and bool(body.accepting[state]))
        if is_body and _reads(ending, text, at):
            return at
        if body is not None:
            state = int(body.table[state, body.byte_class[text[at]]])
    return len(text)


def _reads(dfa: ByteDfa, text: bytes, start: int) -> bool:
    """Whether the automaton accepts the text from `start` on; stops where it is stuck."""
    state = 0
    for at in range(start, len(text)):
        state = int(dfa.table[state, dfa.byte_class[text[at]]])
        if state == dfa.dead:
            return False
    return bool(dfa.accepting[state])
