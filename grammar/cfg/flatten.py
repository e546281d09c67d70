"""Rules without recursion as terminals, for grammars without a lexer: one automaton instead of many
steps.

GBNF spells strings and numbers out in rules of single characters. Read character by character they
would cost a state for each; as one terminal they cost what a regular expression costs.
"""

from umbel.grammar.cfg.expressions import (
    Both,
    CharClass,
    Choice,
    Expression,
    Grammar,
    Literal,
    Not,
    Ref,
    Regex,
    Repeat,
    Sequence,
    Substring,
)
from umbel.grammar.cfg.terminals import quantifiers

_MAX_SIZE = 400  # characters after unrolling, of what is joined into one terminal
_TOO_LARGE = _MAX_SIZE + 1


class Flattener:
    """Knows of every name of a grammar whether it can be one terminal."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._sizes: dict[str, int] = {}
        for name in [*grammar.rules, *grammar.terminals]:
            self._measure(name)

    def turn_rules_into_terminals(self) -> None:
        """In place. The start stays a rule."""
        grammar = self._grammar
        for name, size in self._sizes.items():
            if size <= _MAX_SIZE and name != grammar.start and name in grammar.rules:
                grammar.terminals[name] = grammar.rules.pop(name)

    def is_flat(self, expression: Expression) -> bool:
        return _size(expression, self._sizes) <= _MAX_SIZE

    def joined(self, sequence: Sequence) -> Sequence:
        """The same texts, neighbours that can be one terminal put into sequences of their own."""
        groups: list[list[Expression]] = []
        last_size = _TOO_LARGE
        for item in sequence.items:
            size = _size(item, self._sizes) if self._is_bounded(item) else _TOO_LARGE
            if last_size + size <= _MAX_SIZE:
                groups[-1].append(item)
                last_size += size
            else:
                groups.append([item])
                last_size = size
        items = [g[0] if len(g) == 1 else Sequence(tuple(g), g[0].at) for g in groups]
        return Sequence(tuple(items), sequence.at)

    def _is_bounded(self, item: Expression) -> bool:
        """Whether its texts have a longest one. A string that is a terminal of its own is read once
        for all places where it stands."""
        match item:
            case Ref():
                definition = self._grammar.terminals.get(item.name)
                return definition is not None and self._is_bounded(definition.body)
            case Sequence():
                return all(self._is_bounded(part) for part in item.items)
            case Choice():
                return all(self._is_bounded(option) for option in item.options)
            case Repeat():
                return item.high is not None and self._is_bounded(item.item)
            case Regex():
                return not quantifiers(item.pattern)
            case _:
                return True

    def _measure(self, name: str) -> None:
        """Sizes of a name and all it uses, innermost first; what reaches itself is too large."""
        path = [name]
        while path:
            top = path[-1]
            definition = self._grammar.rules.get(top) or self._grammar.terminals.get(top)
            if top in self._sizes or definition is None:
                self._sizes.setdefault(top, _TOO_LARGE)
                path.pop()
                continue
            used = sorted(ref for ref in _names(definition.body) if ref not in self._sizes)
            if not used:
                self._sizes[top] = _size(definition.body, self._sizes)
            elif used[0] in path:
                self._sizes[used[0]] = _TOO_LARGE
            else:
                path.append(used[0])


def _names(expression: Expression) -> set[str]:
    match expression:
        case Ref():
            return {expression.name}
        case Sequence():
            return set().union(*(_names(item) for item in expression.items))
        case Choice():
            return set().union(*(_names(option) for option in expression.options))
        case Repeat() | Not():
            return _names(expression.item)
        case Both():
            return _names(expression.left) | _names(expression.right)
        case _:
            return set()


def _size(expression: Expression, sizes: dict[str, int]) -> int:
    match expression:
        case Literal():
            size = len(expression.text)
        case CharClass():
            size = 1
        case Regex():
            size = len(expression.pattern)
        case Substring():
            size = sum(map(len, expression.chunks))
        case Ref():
            size = _TOO_LARGE if expression.arguments else sizes.get(expression.name, _TOO_LARGE)
        case Sequence():
            size = sum(_size(item, sizes) for item in expression.items)
        case Choice():
            size = sum(_size(option, sizes) for option in expression.options)
        case Repeat():
            copies = expression.low if expression.high is None else expression.high
            size = _size(expression.item, sizes) * max(copies, 1)
        case _:
            size = _TOO_LARGE
    return min(size, _TOO_LARGE)
