"""Rules as automata over symbols: expressions to one automaton per rule, without empty moves or
left recursion.

A symbol >= 0 is something read from the text (`Network.shifts`); a negative one, ~r, is rule r. A
rule's automaton never accepts the empty text: where a rule may be empty, the edge to it may be
skipped. Then left recursion is removed exactly, by joining the automata of rules that begin with
each other (see `recursion`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from umbel.grammar.automaton import ByteDfa
from umbel.grammar.interrupt import check_interrupt

Edge = tuple[int, int]  # (symbol, target)


@dataclass(slots=True)
class RuleAutomaton:
    """edges[s]: what leads from state s; state 0 is the start and is never entered or accepting."""

    name: str
    edges: list[list[Edge]]
    final: set[int]


@dataclass(slots=True)
class Counter:
    """A rule that is `item` between `low` and `high` times; its states are made when they are
    reached.
    """

    item: int
    low: int
    high: int


@dataclass(slots=True)
class Draft:
    """A rule's automaton while it is built: with empty moves, the start 0 and the end 1."""

    name: str
    edges: list[list[Edge]] = field(default_factory=lambda: [[], []])
    skips: list[list[int]] = field(default_factory=lambda: [[], []])

    def state(self) -> int:
        self.edges.append([])
        self.skips.append([])
        return len(self.edges) - 1


@dataclass(frozen=True, slots=True)
class CapturedRule:
    """A rule whose text is given by name. body, ending: the automata of its two parts, if it has an
    ending of its own; ending_name: the name of what that one has read.
    """

    name: str | None
    ending_name: str | None
    body: ByteDfa | None
    ending: ByteDfa | None


def nullable_rules(drafts: list[Draft | Counter]) -> set[int]:
    """The rules that derive the empty text. Edges to them may be skipped."""
    users: dict[int, set[int]] = {}
    for rule, draft in enumerate(drafts):
        for symbol in _symbols(draft):
            if symbol < 0:
                users.setdefault(~symbol, set()).add(rule)
    nullable: set[int] = set()
    pending = list(range(len(drafts)))
    while pending:
        rule = pending.pop()
        if rule not in nullable and _is_nullable(drafts[rule], nullable):
            nullable.add(rule)
            pending += users.get(rule, ())
    return nullable


def _symbols(draft: Draft | Counter) -> Iterable[int]:
    if isinstance(draft, Counter):
        return (draft.item,)
    return (symbol for edges in draft.edges for symbol, _ in edges)


def _is_nullable(draft: Draft | Counter, nullable: set[int]) -> bool:
    if isinstance(draft, Counter):
        return draft.low == 0 or (draft.item < 0 and ~draft.item in nullable)
    seen, pending = {0}, [0]
    while pending:
        state = pending.pop()
        for target in _skipped(draft, state, nullable):
            if target not in seen:
                seen.add(target)
                pending.append(target)
    return 1 in seen


def _skipped(draft: Draft, state: int, nullable: set[int]) -> list[int]:
    passed = [t for symbol, t in draft.edges[state] if symbol < 0 and ~symbol in nullable]
    return draft.skips[state] + passed


def without_skips(draft: Draft, nullable: set[int]) -> RuleAutomaton:
    """The automaton of the non-empty texts of a draft. The start keeps its number and is not
    entered.
    """
    size = len(draft.edges)
    closures: list[list[int]] = []
    for state in range(size):
        seen, pending = {state}, [state]
        while pending:
            for target in _skipped(draft, pending.pop(), nullable):
                if target not in seen:
                    seen.add(target)
                    pending.append(target)
        closures.append(sorted(seen))
    edges = [
        list(dict.fromkeys(edge for member in closure for edge in draft.edges[member]))
        for closure in closures
    ]
    final = {state for state in range(size) if 1 in closures[state]}
    return fresh_start(RuleAutomaton(draft.name, edges, final))


def fresh_start(rule: RuleAutomaton) -> RuleAutomaton:
    """State 0 as a copy of itself that nothing enters and that does not accept; unreachable states
    dropped.
    """
    edges = [list(rule.edges[0]), *rule.edges]
    shifted = [[(symbol, target + 1) for symbol, target in leaving] for leaving in edges]
    return reachable(RuleAutomaton(rule.name, shifted, {state + 1 for state in rule.final}))


def reachable(rule: RuleAutomaton) -> RuleAutomaton:
    number, order = {0: 0}, [0]
    for state in order:
        for _, target in rule.edges[state]:
            if target not in number:
                number[target] = len(order)
                order.append(target)
    edges = [[(symbol, number[t]) for symbol, t in rule.edges[state]] for state in order]
    return RuleAutomaton(rule.name, edges, {number[s] for s in rule.final if s in number})


def productive_rules(rules: list[RuleAutomaton | Counter]) -> set[int]:
    """The rules that some text completes, if every shift has texts."""
    users: dict[int, set[int]] = {}
    for at, rule in enumerate(rules):
        for symbol in _rule_symbols(rule):
            if symbol < 0:
                users.setdefault(~symbol, set()).add(at)
    productive: set[int] = set()
    pending = list(range(len(rules)))
    while pending:
        at = pending.pop()
        if at not in productive and _is_productive(rules[at], productive):
            productive.add(at)
            pending += users.get(at, ())
    return productive


def _rule_symbols(rule: RuleAutomaton | Counter) -> Iterable[int]:
    if isinstance(rule, Counter):
        return (rule.item,)
    return (symbol for edges in rule.edges for symbol, _ in edges)


def _is_productive(rule: RuleAutomaton | Counter, productive: set[int]) -> bool:
    if isinstance(rule, Counter):
        return rule.item >= 0 or ~rule.item in productive
    seen, pending = {0}, [0]
    while pending:
        state = pending.pop()
        if state in rule.final:
            return True
        for symbol, target in rule.edges[state]:
            if target not in seen and (symbol >= 0 or ~symbol in productive):
                seen.add(target)
                pending.append(target)
    return False


def trimmed(rule: RuleAutomaton, productive: set[int]) -> RuleAutomaton:
    """Without edges to rules that nothing completes, and without states that lead nowhere."""
    edges = [
        [(symbol, t) for symbol, t in leaving if symbol >= 0 or ~symbol in productive]
        for leaving in rule.edges
    ]
    backward: dict[int, list[int]] = {}
    for state, leaving in enumerate(edges):
        for _, target in leaving:
            backward.setdefault(target, []).append(state)
    alive, pending = set(rule.final), list(rule.final)
    while pending:
        for source in backward.get(pending.pop(), ()):
            if source not in alive:
                alive.add(source)
                pending.append(source)
    kept = [[(symbol, t) for symbol, t in leaving if t in alive] for leaving in edges]
    return reachable(RuleAutomaton(rule.name, kept, rule.final))


def determinized(rule: RuleAutomaton) -> RuleAutomaton:
    """At most one edge per state and symbol, equivalent states merged; the input where that would
    grow it.
    """
    budget = 2 * len(rule.edges) + 32  # states
    work_left = 40 * (sum(map(len, rule.edges)) + 100)  # edges looked at
    number: dict[tuple[int, ...], int] = {(0,): 0}
    order: list[tuple[int, ...]] = [(0,)]
    edges: list[list[Edge]] = []
    for members in order:
        check_interrupt()
        targets: dict[int, set[int]] = {}
        for member in members:
            for symbol, target in rule.edges[member]:
                targets.setdefault(symbol, set()).add(target)
            work_left -= len(rule.edges[member])
        leaving = []
        for symbol, found in targets.items():
            key = tuple(sorted(found))
            if key not in number:
                number[key] = len(order)
                order.append(key)
            leaving.append((symbol, number[key]))
        edges.append(leaving)
        if len(order) > budget or work_left < 0:
            return rule
    final = {at for at, members in enumerate(order) if not rule.final.isdisjoint(members)}
    return _merged(RuleAutomaton(rule.name, edges, final))


def _merged(rule: RuleAutomaton) -> RuleAutomaton:
    """Equivalent states of a deterministic automaton as one (Moore); the start stays apart."""
    block = [
        0 if state == 0 else 2 if state in rule.final else 1 for state in range(len(rule.edges))
    ]
    count = len(set(block))
    while True:
        signatures: dict[object, int] = {}
        refined = []
        for state, leaving in enumerate(rule.edges):
            key = (block[state], frozenset((symbol, block[t]) for symbol, t in leaving))
            refined.append(signatures.setdefault(key, len(signatures)))
        block = refined
        if len(signatures) == count:
            break
        count = len(signatures)
    first: dict[int, int] = {}
    for state, name in enumerate(block):
        first.setdefault(name, state)
    edges = [[(symbol, block[t]) for symbol, t in rule.edges[state]] for state in first.values()]
    return reachable(RuleAutomaton(rule.name, edges, {block[state] for state in rule.final}))
