"""Left recursion removed from rule automata, exactly: direct, indirect, and hidden behind empty
rules.

Rules that begin with each other form a left-linear system: a text of A is a text that some rule of
the group begins without the group, then the rests of rules that begin with what was read, the last
of them A's. So A's new automaton consists of the automata of the whole group, entered where they
begin without the group; where one of them, B, accepts, every edge that began a rule with B goes on.
"""

from umbel.grammar.cfg.network import Counter, Edge, RuleAutomaton, reachable
from umbel.grammar.interrupt import check_interrupt


def without_left_recursion(
    rules: list[RuleAutomaton | Counter], max_states: int
) -> list[RuleAutomaton | Counter] | None:
    """None: more than `max_states` states would be needed."""
    begins = [_first_rules(rule) for rule in rules]
    result = list(rules)
    total = 0
    for group in _components(begins):
        if not any(member in begins[other] for member in group for other in group):
            continue
        total += sum(_num_states(rules[member]) for member in group) * len(group)
        if total > max_states:
            return None
        automata = {member: _unrolled(rules[member]) for member in group}
        for member in group:
            check_interrupt()
            result[member] = _joined(member, automata)
    return result


def _num_states(rule: RuleAutomaton | Counter) -> int:
    return len(rule.edges) if isinstance(rule, RuleAutomaton) else rule.high + 1


def _unrolled(rule: RuleAutomaton | Counter) -> RuleAutomaton:
    """A counted repetition with a state for every count; its empty text is left out, as
    everywhere.
    """
    if isinstance(rule, RuleAutomaton):
        return rule
    edges = [[(rule.item, count + 1)] for count in range(rule.high)]
    return RuleAutomaton("a repetition", [*edges, []], set(range(max(rule.low, 1), rule.high + 1)))


def _first_rules(rule: RuleAutomaton | Counter) -> set[int]:
    symbols = [rule.item] if isinstance(rule, Counter) else [symbol for symbol, _ in rule.edges[0]]
    return {~symbol for symbol in symbols if symbol < 0}


def _joined(wanted: int, group: dict[int, RuleAutomaton]) -> RuleAutomaton:
    offsets: dict[int, int] = {}
    edges: list[list[Edge]] = [[]]  # the start; the copies of the rules follow
    for member, rule in group.items():
        offsets[member] = len(edges)
        edges += [
            [(symbol, t + offsets[member]) for symbol, t in leaving] for leaving in rule.edges
        ]
    onward: dict[int, list[int]] = {
        member: [] for member in group
    }  # where a rule begun with it goes on
    for member, rule in group.items():
        for symbol, target in rule.edges[0]:
            if symbol < 0 and ~symbol in group:
                onward[~symbol].append(target + offsets[member])
            else:
                edges[0].append((symbol, target + offsets[member]))
    skips: dict[int, list[int]] = {
        state + offsets[member]: onward[member]
        for member, rule in group.items()
        for state in rule.final
    }
    name = group[wanted].name
    final = {state + offsets[wanted] for state in group[wanted].final}
    joined = _followed(edges, skips, final)
    return reachable(RuleAutomaton(name, joined[0], joined[1]))


def _followed(
    edges: list[list[Edge]], skips: dict[int, list[int]], final: set[int]
) -> tuple[list[list[Edge]], set[int]]:
    """The empty moves of `skips` taken out."""
    accepting = set(final)
    result: list[list[Edge]] = []
    for state in range(len(edges)):
        if state not in skips:
            result.append(edges[state])
            continue
        seen, pending = {state}, [state]
        while pending:
            for target in skips.get(pending.pop(), ()):
                if target not in seen:
                    seen.add(target)
                    pending.append(target)
        result.append(
            list(dict.fromkeys(edge for member in sorted(seen) for edge in edges[member]))
        )
        if not final.isdisjoint(seen):
            accepting.add(state)
    return result, accepting


def _components(graph: list[set[int]]) -> list[list[int]]:
    """Strongly connected components (Tarjan, 1972), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    components: list[list[int]] = []
    for root in range(len(graph)):
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(sorted(graph[successor]))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    components.append(component)
    return components
