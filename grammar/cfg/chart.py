"""One way to derive a sequence of terminals from rules: a chart of what derives what, and the way
through it that takes the first alternative that fits, and of every part the longest.

The chart is Earley's (1970), with the correction of Aycock and Horspool (2002) for rules that may
be empty. It works on rules as they were written, before left recursion is taken out of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from umbel.grammar.cfg.network import Counter, Draft, Edge, nullable_rules
from umbel.grammar.errors import UnsupportedGrammar

_START, _END = 0, 1  # states of drafts
_MAX_ITEMS = 500_000  # a second or two

Item = tuple[int, int, int]  # rule, its state, where it began


@dataclass(frozen=True, slots=True)
class Node:
    """`rule` derives terminals [start, end) of the sequence."""

    rule: int
    start: int
    end: int


class Rules:
    """The rules of a grammar as they were written, and what may follow each of them."""

    def __init__(self, drafts: Sequence[Draft | Counter]) -> None:
        self._drafts = drafts
        self.nullable = nullable_rules(list(drafts))
        self.follow: list[set[int]] = [set() for _ in drafts]  # terminals; the end always may
        self._find_followers()

    def edges(self, rule: int, state: int) -> Sequence[Edge]:
        draft = self._drafts[rule]
        if isinstance(draft, Draft):
            return draft.edges[state]
        return ((draft.item, state + 1),) if state < draft.high else ()

    def skips(self, rule: int, state: int) -> Sequence[int]:
        draft = self._drafts[rule]
        return draft.skips[state] if isinstance(draft, Draft) else ()

    def is_end(self, rule: int, state: int) -> bool:
        draft = self._drafts[rule]
        if isinstance(draft, Draft):
            return state == _END
        return state >= draft.low or (draft.item < 0 and ~draft.item in self.nullable)

    def _find_followers(self) -> None:
        """For each rule the terminals that it may begin with, then those that may follow: repeated
        until nothing is new, as in every textbook.
        """
        first: list[set[int]] = [set() for _ in self._drafts]
        before = -1
        while before != (size := sum(map(len, first))):
            before = size
            for rule in range(len(self._drafts)):
                first[rule] |= self._begins(rule, _START, first)[0]
        before = -1
        while before != (size := sum(map(len, self.follow))):
            before = size
            for rule, draft in enumerate(self._drafts):
                # Any state of a counter stands for all of its states.
                states = range(len(draft.edges)) if isinstance(draft, Draft) else (_START,)
                for state in states:
                    for symbol, target in self.edges(rule, state):
                        if symbol < 0:
                            then, may_end = self._begins(rule, target, first)
                            self.follow[~symbol] |= then
                            if may_end or isinstance(draft, Counter):
                                self.follow[~symbol] |= self.follow[rule]

    def _begins(self, rule: int, state: int, first: list[set[int]]) -> tuple[set[int], bool]:
        """The terminals that may come next in a rule, and whether it may be over."""
        found: set[int] = set()
        seen, pending, may_end = {state}, [state], False
        while pending:
            at = pending.pop()
            may_end = may_end or self.is_end(rule, at)
            targets = list(self.skips(rule, at))
            for symbol, target in self.edges(rule, at):
                if symbol >= 0:
                    found.add(symbol)
                else:
                    found |= first[~symbol]
                    if ~symbol in self.nullable and isinstance(self._drafts[rule], Draft):
                        targets.append(target)
            pending += [target for target in targets if target not in seen]
            seen.update(targets)
        return found, may_end


class Chart:
    """Of one sequence. terminals[i]: the symbols that the i-th terminal may be; is_skippable[i]: it
    may be ignored text.
    """

    def __init__(
        self,
        rules: Rules,
        terminals: Sequence[frozenset[int]],
        is_skippable: Sequence[bool],
    ) -> None:
        self._rules = rules
        self._terminals = terminals
        self._is_skippable = is_skippable
        self._ends: dict[tuple[int, int], set[int]] = {}  # (rule, start): where it may end
        self._waiting: dict[tuple[int, int], list[Item]] = {}
        self._num_items = 0
        self._fill()

    def nodes(self) -> list[Node]:
        """The rules of the derivation, outer ones first; [] if rule 0 does not derive the sequence.

        A rule that is empty is there, but not what it consists of.
        """
        root = self._root()
        if root is None:
            return []
        found = [root]
        above: list[frozenset[int]] = [
            frozenset()
        ]  # for each: the rules around it of the same span
        for node, around in zip(found, above, strict=False):  # both grow on the way
            children = self._children(node, around) if node.start < node.end else []
            assert children is not None, "what the chart holds can be derived"
            for child in children:
                is_same = (child.start, child.end) == (node.start, node.end)
                found.append(child)
                above.append(around | {node.rule} if is_same else frozenset())
        return found

    def _root(self) -> Node | None:
        num_terminals = len(self._terminals)
        starts = [0]
        while starts[-1] < num_terminals and self._is_skippable[starts[-1]]:
            starts.append(starts[-1] + 1)
        for start in starts:
            for end in sorted(self._ends.get((0, start), ()), reverse=True):
                if all(self._is_skippable[end:]):
                    return Node(0, start, end)
        is_empty = starts[-1] == num_terminals and 0 in self._rules.nullable
        return Node(0, 0, 0) if is_empty else None

    def _fill(self) -> None:
        """Items that were carried over ignored text go on, but end nothing: a rule ends with its
        last terminal.
        """
        num_terminals = len(self._terminals)
        fresh: dict[Item, None] = {}
        carried: dict[Item, None] = {}
        may_begin = True
        for at in range(num_terminals + 1):
            if may_begin:
                fresh[(0, _START, at)] = None
            scanned: dict[Item, None] = {}
            self._close(at, fresh, scanned, may_end=True)
            self._close(at, carried, scanned, may_end=False)
            is_skippable = at < num_terminals and self._is_skippable[at]
            may_begin = may_begin and is_skippable
            both = {**fresh, **carried} if is_skippable else {}
            carried = {item: None for item in both if item[2] < at}
            fresh = scanned

    def _close(
        self, at: int, items: dict[Item, None], scanned: dict[Item, None], *, may_end: bool
    ) -> None:
        pending = list(items)
        begun: dict[Item, None] = {}  # predicted from carried items: these are fresh
        for item in pending:
            rule, state, origin = item
            self._count()
            more = [(rule, target, origin) for target in self._rules.skips(rule, state)]
            for symbol, target in self._rules.edges(rule, state):
                moved = (rule, target, origin)
                if symbol >= 0:
                    if at < len(self._terminals) and symbol in self._terminals[at]:
                        scanned[moved] = None
                    continue
                waiting = self._waiting.setdefault((~symbol, at), [])
                if not waiting:
                    begun[(~symbol, _START, at)] = None
                waiting.append(moved)
                if ~symbol in self._rules.nullable:
                    more.append(moved)
            if may_end:
                more += begun
                begun = {}
                is_end = origin < at and self._rules.is_end(rule, state)
                if is_end and self._may_follow(rule, at):
                    more += self._found(rule, origin, at)
            for one in more:
                if one not in items:
                    items[one] = None
                    pending.append(one)
        if begun:
            self._close(at, begun, scanned, may_end=True)

    def _may_follow(self, rule: int, at: int) -> bool:
        """Whether the next terminal may stand behind the rule: without this look-ahead, lists that
        are right recursive would take quadratic time.
        """
        if at == len(self._terminals) or self._is_skippable[at]:
            return True
        return not self._rules.follow[rule].isdisjoint(self._terminals[at])

    def _count(self) -> None:
        self._num_items += 1
        if self._num_items > _MAX_ITEMS:
            raise UnsupportedGrammar(
                f"naming the parts of the output needs more than {_MAX_ITEMS} steps; make the "
                "grammar less ambiguous, or its captured rules smaller",
                keyword="capture",
            )

    def _found(self, rule: int, start: int, end: int) -> list[Item]:
        ends = self._ends.setdefault((rule, start), set())
        if end in ends:
            return []
        ends.add(end)
        return self._waiting.get((rule, start), [])

    def _children(self, node: Node, around: frozenset[int]) -> list[Node] | None:
        """The rules on the first way through a node's rule, in order. No rule derives its own span
        by way of `around`, rules of the same span; None: it does not derive it without them.
        """
        first = (_START, node.start)
        way: list[tuple[Iterator[tuple[int, int, Node | None]], Node | None]]
        way = [(self._steps(node, around, *first), None)]
        seen = {first}
        at = first
        while not (at[1] == node.end and self._rules.is_end(node.rule, at[0])):
            for state, position, child in way[-1][0]:
                if (state, position) not in seen:
                    at = (state, position)
                    seen.add(at)
                    way.append((self._steps(node, around, state, position), child))
                    break
            else:
                way.pop()
                if not way:
                    return None
        return [child for _, child in way if child is not None]

    def _steps(
        self, node: Node, around: frozenset[int], state: int, position: int
    ) -> Iterator[tuple[int, int, Node | None]]:
        """(state, position, the rule passed) after one step inside a node: what reads something
        first.
        """
        edges = self._rules.edges(node.rule, state)
        starts = [position]
        if position > node.start:
            while starts[-1] < node.end and self._is_skippable[starts[-1]]:
                starts.append(starts[-1] + 1)
        for symbol, target in edges:
            for start in starts:
                if symbol >= 0:
                    if start < node.end and symbol in self._terminals[start]:
                        yield target, start + 1, None
                    continue
                for end in sorted(self._ends.get((~symbol, start), ()), reverse=True):
                    child = Node(~symbol, start, end)
                    if end <= node.end and self._is_below(child, node, around):
                        yield target, end, child
        for target in self._rules.skips(node.rule, state):
            yield target, position, None
        for symbol, target in edges:
            if symbol < 0 and ~symbol in self._rules.nullable:
                yield target, position, Node(~symbol, position, position)

    def _is_below(self, child: Node, node: Node, around: frozenset[int]) -> bool:
        if (child.start, child.end) != (node.start, node.end):
            return True
        around = around | {node.rule}
        return child.rule not in around and self._children(child, around) is not None
