"""Terminals to byte automata: expressions are inlined into one regular expression each.

A terminal's rank decides between terminals that match the same text: priority first, then a fixed
text before a pattern, as in Lark.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from umbel.grammar.automaton import ByteDfa, minimize
from umbel.grammar.cfg.expressions import (
    Both,
    CharClass,
    Choice,
    Expression,
    Grammar,
    Literal,
    Named,
    Nested,
    Not,
    Ref,
    Regex,
    Repeat,
    Schema,
    Sequence,
    Special,
    Substring,
    Whole,
)
from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.leaves import BoundedLeaf, DfaLeaf, dfa_leaf
from umbel.grammar.regex import chardfa, charset, syntax
from umbel.grammar.regex.chardfa import determinize
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.regex.syntax import Node
from umbel.grammar.regex.utf8 import to_bytes

_MAX_SUBSTRING_STATES = 20_000
_MAX_KEPT_AUTOMATA = 256  # of terminals, for all grammars: most use the same few


@dataclass(frozen=True, slots=True)
class Terminal:
    """A non-empty regular language of non-empty texts.

    is_fixed: written as a string, and not as a pattern. literal: its text, if case matters.
    is_lazy: the shortest match ends it. name: for messages. max_tokens: see `BoundedLeaf`; such a
    terminal is read apart from the others, and every way to cut it counts.
    """

    name: str
    dfa: ByteDfa
    literal: bytes | None
    is_fixed: bool
    priority: int
    is_lazy: bool
    max_tokens: int | None = None

    @property
    def rank(self) -> tuple[int, bool]:
        return self.priority, self.is_fixed

    def leaf(self) -> DfaLeaf | BoundedLeaf:
        """Its language as a leaf that is not greedy."""
        if self.max_tokens is None:
            return dfa_leaf(self.dfa)
        dfa = shortest_matches(self.dfa) if self.is_lazy else self.dfa
        return BoundedLeaf(dfa_leaf(dfa), self.max_tokens)


@dataclass(frozen=True, slots=True)
class Reading:
    """A terminal as read: `is_nullable` says that the empty text was taken out; None: nothing else
    is in it.
    """

    terminal: Terminal | None
    is_nullable: bool


class TerminalReader:
    """Reads the terminals of one grammar; equal expressions are read once."""

    def __init__(self, grammar: Grammar, limits: Limits) -> None:
        self.grammar = grammar
        self.limits = limits
        self._nodes: dict[str, Node] = {}
        self._open: list[str] = []
        self._automata: dict[Node, tuple[ByteDfa | None, bool]] = {}
        self._fixed: dict[bytes, ByteDfa] = {}

    def read(
        self,
        expression: Expression,
        *,
        priority: int = 0,
        is_lazy: bool = False,
        max_tokens: int | None = None,
    ) -> Reading:
        """Raises `GrammarError` and `UnsupportedGrammar` with the place in the grammar's text."""
        name = expression.name if isinstance(expression, Ref) else ""
        if isinstance(expression, Ref) and expression.name in self.grammar.terminals:
            definition = self.grammar.terminals[expression.name]
            priority = definition.priority
        node = self.node(expression)
        written = self._written(expression)
        if written is not None and written.text and not written.ignore_case:
            text = written.text.encode()
            found = self._fixed.setdefault(text, literal_dfa(text))
            shown = name or repr(written.text)
            fixed = Terminal(shown, found, text, True, priority, is_lazy, max_tokens)
            return Reading(fixed, False)
        is_lazy = is_lazy or self._is_lazy(expression)
        try:
            dfa, is_nullable = self._automaton(node)
        except UnsupportedGrammar as exc:
            raise self.grammar.source.unsupported(
                exc.message, expression.at, exc.keyword or "terminal"
            ) from exc
        if dfa is None:
            return Reading(None, is_nullable)
        shown = repr(written.text) if written else f"at {expression.at}"
        is_fixed = written is not None
        terminal = Terminal(name or shown, dfa, None, is_fixed, priority, is_lazy, max_tokens)
        return Reading(terminal, is_nullable)

    def _automaton(self, node: Node) -> tuple[ByteDfa | None, bool]:
        found = self._automata.get(node)
        if found is None:
            found = self._automata[node] = _compiled(node, self.limits)
        return found

    def _written(self, expression: Expression) -> Literal | None:
        """The literal that the expression is, also by the name of a terminal."""
        for _ in range(100):
            if not isinstance(expression, Ref):
                break
            definition = self.grammar.terminals.get(expression.name)
            if definition is None:
                return None
            expression = definition.body
        return expression if isinstance(expression, Literal) else None

    def node(self, expression: Expression) -> Node:
        """The syntax tree of an expression in which every name is a terminal."""
        source = self.grammar.source
        match expression:
            case Literal():
                return self._literal_node(expression)
            case Regex():
                return self._regex_node(expression)
            case CharClass():
                return syntax.chars(expression.chars)
            case Substring():
                return self._substring_node(expression)
            case Sequence():
                return self._sized(syntax.cat([self.node(i) for i in expression.items]), expression)
            case Choice():
                return syntax.alt([self.node(option) for option in expression.options])
            case Repeat():
                inner = self.node(expression.item)
                return self._sized(
                    syntax.repeat(inner, expression.low, expression.high), expression
                )
            case Both():
                left, right = self._charts(expression.left, expression.right)
                return chardfa.to_tree(chardfa.intersection(left, right, self.limits))
            case Not():
                everything = syntax.repeat(syntax.ANY_CHAR, 0, None)
                whole = determinize(everything, self.limits)
                (inner_dfa,) = self._charts(expression.item)
                return chardfa.to_tree(chardfa.difference(whole, inner_dfa, self.limits))
            case Ref():
                return self._named_node(expression)
            case Special() | Schema() | Nested() | Named() | Whole():
                kind = type(expression).__name__.lower()
                raise source.unsupported(
                    f"a {kind} cannot be part of a terminal; use it in a rule (lower case)",
                    expression.at,
                    kind,
                )

    def _charts(self, *expressions: Expression) -> list[chardfa.CharDfa]:
        return [determinize(self.node(expression), self.limits) for expression in expressions]

    def _sized(self, node: Node, expression: Expression) -> Node:
        if node.size > self.limits.max_nodes:
            raise self.grammar.source.unsupported(
                f"the terminal unrolls to {node.size} character positions, more than the "
                f"{self.limits.max_nodes} allowed; use smaller repetition counts",
                expression.at,
                "repetition",
            )
        return node

    def _literal_node(self, expression: Literal) -> Node:
        if not expression.ignore_case:
            try:
                expression.text.encode()
            except UnicodeEncodeError as exc:
                message = "a surrogate, which no UTF-8 text can hold"
                raise self.grammar.source.unsupported(message, expression.at, "surrogate") from exc
            return syntax.literal(expression.text)
        return syntax.cat([self._any_case(char, expression.at) for char in expression.text])

    def _any_case(self, char: str, at: int) -> Node:
        """ASCII letters stand for their two ASCII forms only, without U+017F and U+212A.

        As names are mostly ASCII, every keyword then is a name, so that all places of a grammar
        share one leaf for names and keywords.
        """
        if char.isascii():
            return syntax.chars(charset.of(char.lower() + char.upper()))
        return self._parsed(f"(?i:\\U{ord(char):08x})", at)

    def _regex_node(self, expression: Regex) -> Node:
        flags = "".join(sorted(set(expression.flags) - {"u"}))
        if "l" in flags:
            message = "flag l (locale) is not supported"
            raise self.grammar.source.unsupported(message, expression.at, "l")
        pattern = expression.pattern
        if "x" in flags:
            pattern += "\n"  # a comment at the end must not swallow the parenthesis
        return self._parsed(f"(?{flags}:{pattern})" if flags else pattern, expression.at)

    def _parsed(self, pattern: str, at: int) -> Node:
        try:
            return parse_regex(pattern, limits=self.limits)
        except UnsupportedGrammar as exc:
            raise self.grammar.source.unsupported(
                f"{exc.message} ({exc.where})", at, exc.keyword or "regex"
            ) from exc
        except GrammarError as exc:
            raise self.grammar.source.error(f"{exc.message} ({exc.where})", at) from exc

    def _named_node(self, expression: Ref) -> Node:
        source = self.grammar.source
        name = expression.name
        found = self._nodes.get(name)
        if found is not None:
            return found
        definition = self.grammar.terminals.get(name)
        if definition is None:
            reason = "a rule, which" if name in self.grammar.rules else "not defined, and"
            raise source.error(f"{name} is {reason} cannot be part of a terminal", expression.at)
        if definition.params or expression.arguments:
            raise source.unsupported("terminals cannot be templates", expression.at, "template")
        if name in self._open:
            raise source.error(f"terminal {name} refers to itself; make it a rule", definition.at)
        self._open.append(name)
        found = self._nodes[name] = self.node(definition.body)
        self._open.pop()
        return found

    def _substring_node(self, expression: Substring) -> Node:
        """Runs of chunks: the suffix automaton over chunks, every state of which accepts."""
        edges = suffix_automaton(expression.chunks)
        if len(edges) > _MAX_SUBSTRING_STATES:
            raise self.grammar.source.unsupported(
                f"a substring of {len(expression.chunks)} chunks is too large",
                expression.at,
                "%regex",
            )
        try:
            triples = [
                (source, syntax.literal(chunk), target)
                for source, following in enumerate(edges)
                for chunk, target in following.items()
            ]
        except ValueError as exc:
            raise self.grammar.source.error("a chunk holds a surrogate", expression.at) from exc
        if not triples:
            return syntax.EPSILON
        return syntax.graph(triples, frozenset(range(len(edges))))

    def _is_lazy(self, expression: Expression) -> bool:
        """Whether a lazy quantifier decides where the text ends. Refused where a greedy one
        follows.
        """
        marks = self._quantifiers(expression, 0)
        if "lazy" not in marks:
            return False
        if "greedy" in marks[marks.index("lazy") :]:
            raise self.grammar.source.unsupported(
                "a lazy quantifier followed by a greedy one; make the rest of the terminal lazy "
                "too, or write the text so that it cannot contain its end",
                expression.at,
                "lazy quantifier",
            )
        return True

    def _quantifiers(self, expression: Expression, depth: int) -> list[str]:
        if depth > self.limits.max_nesting:
            return []
        match expression:
            case Regex():
                return quantifiers(expression.pattern)
            case Sequence():
                parts = [self._quantifiers(item, depth + 1) for item in expression.items]
            case Choice():
                parts = [self._quantifiers(item, depth + 1) for item in expression.options]
            case Repeat():
                is_fixed = expression.low == expression.high
                parts = [
                    self._quantifiers(expression.item, depth + 1),
                    [] if is_fixed else ["greedy"],
                ]
            case Ref() if expression.name in self.grammar.terminals:
                return self._quantifiers(self.grammar.terminals[expression.name].body, depth + 1)
            case _:
                return []
        return [mark for part in parts for mark in part]


@lru_cache(maxsize=_MAX_KEPT_AUTOMATA)
def _compiled(node: Node, limits: Limits) -> tuple[ByteDfa | None, bool]:
    """The automaton of the non-empty texts, and whether the empty text is one too."""
    characters = determinize(node, limits)
    if characters.is_empty:
        return None, False
    dfa = minimize(to_bytes(characters, limits))
    return _without_empty(dfa), bool(dfa.accepting[0])


def shortest_matches(dfa: ByteDfa) -> ByteDfa:
    """The texts no beginning of which is one."""
    table = dfa.table.copy()
    table[dfa.accepting] = dfa.dead
    return minimize(ByteDfa(dfa.byte_class, table, dfa.accepting))


def literal_dfa(text: bytes) -> ByteDfa:
    """The automaton of one text: a chain of len(text) + 1 states."""
    used = sorted(set(text))
    byte_class = np.full(256, len(used), np.uint8)
    byte_class[used] = np.arange(len(used))
    dead = len(text) + 1
    table = np.full((dead + 1, len(used) + 1), dead, np.int32)
    table[np.arange(len(text)), byte_class[list(text)]] = np.arange(1, dead)
    accepting = np.zeros(dead + 1, bool)
    accepting[len(text)] = True
    return ByteDfa(byte_class, table, accepting)


def quantifiers(pattern: str) -> list[str]:
    """ "lazy" or "greedy" for every quantifier of variable length in a pattern, in order."""
    found: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "\\":
            at += 1
        elif char == "[":
            at = _end_of_class(pattern, at)
        elif char == "(" and pattern[at : at + 1] == "?":
            at += 1
        else:
            end = pattern.find("}", at) if char == "{" else at - 1
            counts = pattern[at:end] if char == "{" else ""
            if char in "*+?" or (end > 0 and char == "{" and set(counts) <= set("0123456789,")):
                at = end + 1
                is_lazy = pattern[at : at + 1] == "?"
                at += is_lazy
                if char != "{" or "," in counts:
                    found.append("lazy" if is_lazy else "greedy")
    return found


def _end_of_class(pattern: str, at: int) -> int:
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def suffix_automaton(chunks: tuple[str, ...]) -> list[dict[str, int]]:
    """The minimal automaton of all runs of consecutive chunks (Blumer et al., 1985): edges by
    state, start 0.
    """
    edges: list[dict[str, int]] = [{}]
    link, length, last = [-1], [0], 0
    for chunk in chunks:
        new = len(edges)
        edges.append({})
        link.append(0)
        length.append(length[last] + 1)
        at = last
        while at >= 0 and chunk not in edges[at]:
            edges[at][chunk] = new
            at = link[at]
        if at >= 0:
            target = edges[at][chunk]
            if length[target] == length[at] + 1:
                link[new] = target
            else:
                clone = len(edges)
                edges.append(dict(edges[target]))
                link.append(link[target])
                length.append(length[at] + 1)
                link[target] = link[new] = clone
                while at >= 0 and edges[at].get(chunk) == target:
                    edges[at][chunk] = clone
                    at = link[at]
        last = new
    return edges


def _without_empty(dfa: ByteDfa) -> ByteDfa | None:
    """The automaton without the empty text; None when that was all. The start is not entered
    again.
    """
    if not dfa.accepting[0]:
        return dfa
    if (dfa.table[0] == dfa.dead).all():
        return None
    if not (dfa.table == 0).any():
        accepting = dfa.accepting.copy()
        accepting[0] = False
        return replace(dfa, accepting=accepting)
    table = np.vstack([dfa.table[:1], dfa.table])
    table = (table + 1).astype(np.int32)
    accepting = np.concatenate([[False], dfa.accepting])
    return ByteDfa(dfa.byte_class, table, accepting)
