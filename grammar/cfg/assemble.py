"""A `Grammar` to a `Network`: names resolved, templates instantiated, terminals read, rules as
automata.

What a rule reads from the text is a *shift*: a terminal, a special token, or a whole other grammar
(a state of the token machine, such as a JSON Schema).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from umbel.grammar.cfg import expressions as ex
from umbel.grammar.cfg.expressions import Expression, Grammar
from umbel.grammar.cfg.flatten import Flattener
from umbel.grammar.cfg.network import (
    CapturedRule,
    Counter,
    Draft,
    RuleAutomaton,
    determinized,
    nullable_rules,
    productive_rules,
    trimmed,
    without_skips,
)
from umbel.grammar.cfg.recursion import without_left_recursion
from umbel.grammar.cfg.terminals import Reading, Terminal, TerminalReader
from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.interrupt import check_interrupt
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.leaves import TokenLeaf
from umbel.grammar.pushdown.rules import RuleState

_COUNTED_FROM = 12  # repetitions of rules with more copies are counted instead of unrolled
_MAX_RULES = 20_000
_MAX_REMOVED_STATES = 1_500
_MAX_ARGUMENT_PARTS = 500
_MAX_BOUNDED_STATES = 1_000  # of a terminal with max_tokens: see `bounded_reader.fewest_tokens`

Shift = Terminal | TokenLeaf | RuleState
Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(slots=True)
class Network:
    """What the parser runs on. rules[0] is the start; a symbol s >= 0 is shifts[s], ~r is
    rules[r]. drafts: the rules as they were written, with the same numbers; captured: those that
    have a name in the result.
    """

    rules: list[RuleAutomaton | Counter]
    shifts: list[Shift]
    ignored: frozenset[int]
    is_nullable: bool
    scannerless: bool
    drafts: list[Draft | Counter]
    captured: dict[int, CapturedRule]


@dataclass(frozen=True, slots=True)
class Embedding:
    """How the parts that are no rules become states: JSON Schemas, special tokens, other
    grammars.
    """

    schema: Callable[[str], RuleState]  # from JSON text
    tokens: Callable[[ex.Special], frozenset[int]]
    nested: Callable[[Grammar], tuple[RuleState, bool]]  # the state, and whether it may be empty
    named: Callable[[str], tuple[RuleState, bool]]
    exists: Callable[[Shift], bool]  # whether the vocabulary's tokens can spell it


def assemble(grammar: Grammar, embedding: Embedding, limits: Limits) -> Network:
    """Raises `GrammarError` with the place in the grammar's text, or a subclass of it."""
    return _Assembler(grammar, embedding, limits).network()


class _Assembler:
    def __init__(self, grammar: Grammar, embedding: Embedding, limits: Limits) -> None:
        self.grammar = grammar
        self.embedding = embedding
        self.limits = limits
        self.drafts: list[Draft | Counter] = []
        self.shifts: list[Shift] = []
        self._terminals = TerminalReader(grammar, limits)
        self._rules: dict[tuple[str, tuple[Expression, ...]], int] = {}
        self._pending: list[tuple[int, Expression]] = []
        self._shift_ids: dict[object, int] = {}
        self._flattener: Flattener | None = None
        if grammar.scannerless:
            self._flattener = Flattener(grammar)
            self._flattener.turn_rules_into_terminals()
        self._priorities = {d.body: d.priority for d in grammar.terminals.values() if d.priority}
        self._num_states = 0
        self._captured: dict[int, CapturedRule] = {}

    def network(self) -> Network:
        grammar = self.grammar
        if grammar.start not in grammar.rules and grammar.start not in grammar.terminals:
            message = f"the grammar has no rule {grammar.start}"
            raise GrammarError(
                f"{message}; name the rule that outputs start with `{grammar.start}: ...`"
            )
        self._check_unused()
        start = self._new_draft(grammar.start)
        self._pending.append((start, ex.Ref(grammar.start)))
        while self._pending:
            check_interrupt()
            rule, body = self._pending.pop()
            draft = self.drafts[rule]
            assert isinstance(draft, Draft)
            self._build(draft, body, 0, 1)
        ignored = {shift for expression in grammar.ignored for shift in self._ignored(expression)}
        nullable = nullable_rules(self.drafts)
        rules = self._without_recursion([self._prepared(draft, nullable) for draft in self.drafts])
        productive = productive_rules(rules)
        is_nullable = start in nullable
        if start not in productive and not is_nullable:
            raise grammar.source.unsatisfiable(
                f"no text satisfies rule {grammar.start}: every alternative leads into "
                "endless recursion or to a terminal that matches nothing",
                self._at(grammar.start),
            )
        finished = [
            rule if isinstance(rule, Counter) else determinized(trimmed(rule, productive))
            for rule in rules
        ]
        return Network(
            finished,
            self.shifts,
            frozenset(ignored),
            is_nullable,
            grammar.scannerless,
            self.drafts if self._captured else [],
            self._captured,
        )

    def _check_unused(self) -> None:
        """Names in definitions that are never used must exist too: a typing error should not
        pass.
        """
        grammar = self.grammar
        for definition in [*grammar.rules.values(), *grammar.terminals.values()]:
            ending = definition.options.ending
            for ref in references(definition.body) + (references(ending) if ending else []):
                if ref.name not in definition.params:
                    self._resolve(ref)

    def _prepared(self, draft: Draft | Counter, nullable: set[int]) -> RuleAutomaton | Counter:
        if isinstance(draft, Counter):
            low = 0 if draft.item < 0 and ~draft.item in nullable else draft.low
            return Counter(draft.item, low, draft.high)
        return without_skips(draft, nullable)

    def _without_recursion(
        self, rules: list[RuleAutomaton | Counter]
    ) -> list[RuleAutomaton | Counter]:
        found = without_left_recursion(rules, _MAX_REMOVED_STATES)
        if found is None:
            raise self.grammar.source.unsupported(
                "left recursion through too many rules, or through a repetition with a large "
                "count; write the repetition as x* or put something before it",
                self._at(self.grammar.start),
                "left recursion",
            )
        return found

    def _at(self, name: str) -> int:
        definition = self.grammar.rules.get(name) or self.grammar.terminals.get(name)
        return definition.at if definition else 0

    def _new_draft(self, name: str) -> int:
        self.drafts.append(Draft(name))
        return self._checked(len(self.drafts) - 1)

    def _checked(self, rule: int) -> int:
        if len(self.drafts) > _MAX_RULES:
            raise self.grammar.source.unsupported(
                f"the grammar expands to more than {_MAX_RULES} rules", 0, "rules"
            )
        return rule

    # Expressions to edges of the rule's automaton, from state `start` to state `end`.

    def _build(self, draft: Draft, expression: Expression, start: int, end: int) -> None:
        if self._flattener is not None and not isinstance(expression, ex.Ref):
            if self._build_flat(draft, expression, start, end):
                return
            if isinstance(expression, ex.Sequence):
                expression = self._flattener.joined(expression)
        match expression:
            case ex.Sequence():
                if not expression.items:
                    draft.skips[start].append(end)
                for item in expression.items[:-1]:
                    middle = self._state(draft)
                    self._build(draft, item, start, middle)
                    start = middle
                if expression.items:
                    self._build(draft, expression.items[-1], start, end)
            case ex.Choice():
                for option in expression.options:
                    self._build(draft, option, start, end)
            case ex.Repeat():
                self._build_repeat(draft, expression, start, end)
            case ex.Ref():
                self._build_reference(draft, expression, start, end)
            case _:
                self._build_shift(draft, expression, start, end)

    def _build_flat(self, draft: Draft, expression: Expression, start: int, end: int) -> bool:
        """As one terminal, if it is regular and its automaton is not too large."""
        assert self._flattener is not None
        if not self._flattener.is_flat(expression):
            return False
        try:
            self._build_shift(draft, expression, start, end)
        except UnsupportedGrammar:
            return False
        return True

    def _state(self, draft: Draft) -> int:
        check_interrupt()
        self._num_states += 1
        if self._num_states > self.limits.max_states:
            raise self.grammar.source.unsupported(
                f"the rules need more than {self.limits.max_states} states", 0, "states"
            )
        return draft.state()

    def _build_repeat(self, draft: Draft, repeat: ex.Repeat, start: int, end: int) -> None:
        low, high, item = repeat.low, repeat.high, repeat.item
        copies = low if high is None else high
        if copies >= _COUNTED_FROM:
            middle = self._state(draft) if high is None else end
            draft.edges[start].append((self._counter(item, low, copies), middle))
            if high is not None:
                return
            start, low = middle, 0
        for _ in range(low):
            middle = self._state(draft)
            self._build(draft, item, start, middle)
            start = middle
        if high is None:
            loop = self._state(draft)
            draft.skips[start].append(loop)
            again = self._state(draft)
            self._build(draft, item, loop, again)
            draft.skips[again].append(loop)
            draft.skips[loop].append(end)
            return
        for _ in range(high - low):
            middle = self._state(draft)
            draft.skips[start].append(end)
            self._build(draft, item, start, middle)
            start = middle
        draft.skips[start].append(end)

    def _counter(self, item: Expression, low: int, high: int) -> int:
        """The symbol of a counted repetition."""
        key = ("item", (item,))
        if key not in self._rules:
            self._rules[key] = self._new_draft("a repeated group")
            self._pending.append((self._rules[key], item))
        self.drafts.append(Counter(~self._rules[key], low, high))
        return ~self._checked(len(self.drafts) - 1)

    def _resolve(self, ref: ex.Ref) -> ex.Definition:
        definition = self.grammar.rules.get(ref.name) or self.grammar.terminals.get(ref.name)
        if definition is None:
            message = f"{ref.name} is not defined"
            if ref.name.isupper() and len(ref.name) > 1:
                message += "; terminals of Lark's library need an %import common." + ref.name
            raise self.grammar.source.error(message, ref.at)
        if len(definition.params) != len(ref.arguments):
            raise self.grammar.source.error(
                f"{ref.name} takes {len(definition.params)} arguments, got {len(ref.arguments)}",
                ref.at,
            )
        return definition

    def _build_reference(self, draft: Draft, ref: ex.Ref, start: int, end: int) -> None:
        definition = self._resolve(ref)
        options = definition.options
        if ref.name in self.grammar.terminals:
            self._build_shift(draft, ref, start, end)
        elif options.make_terminal and not options.is_captured:
            self._build_shift(draft, self._body(definition, ref), start, end)
        else:
            draft.edges[start].append((~self._rule(definition, ref), end))

    def _body(self, definition: ex.Definition, ref: ex.Ref) -> Expression:
        body, options = definition.body, definition.options
        if definition.params:
            body = substituted(body, dict(zip(definition.params, ref.arguments, strict=True)))
        if options.make_terminal:
            return ex.Whole(body, options.ending, options.lazy, options.max_tokens, definition.at)
        return body

    def _rule(self, definition: ex.Definition, ref: ex.Ref) -> int:
        key = (ref.name, ref.arguments)
        rule = self._rules.get(key)
        if rule is None:
            if any(is_larger_than(argument, _MAX_ARGUMENT_PARTS) for argument in ref.arguments):
                raise self.grammar.source.unsupported(
                    f"an argument of template {ref.name} has more than {_MAX_ARGUMENT_PARTS} "
                    "parts; a template must not call itself with ever larger arguments",
                    ref.at,
                    "template",
                )
            rule = self._rules[key] = self._new_draft(ref.name)
            self._pending.append((rule, self._body(definition, ref)))
            if definition.options.is_captured:
                self._captured[rule] = self._capture(definition.options, self._pending[-1][1])
        return rule

    def _capture(self, options: ex.Options, body: Expression) -> CapturedRule:
        if not isinstance(body, ex.Whole) or body.ending is None:
            return CapturedRule(options.capture, options.ending_capture, None, None)
        parts = [self._terminals.read(part).terminal for part in (body.item, body.ending)]
        dfas = [None if part is None else part.dfa for part in parts]
        return CapturedRule(options.capture, options.ending_capture, dfas[0], dfas[1])

    def _build_shift(self, draft: Draft, expression: Expression, start: int, end: int) -> None:
        shift, is_nullable = self._shift(expression)
        if shift is not None:
            draft.edges[start].append((shift, end))
        if is_nullable:
            draft.skips[start].append(end)

    def _shift(self, expression: Expression) -> tuple[int | None, bool]:
        embedding = self.embedding
        match expression:
            case ex.Special():
                return self._shift_id(TokenLeaf(self._token_ids(expression))), False
            case ex.Schema():
                state = self._embedded(embedding.schema, expression.json_text, expression)
                return self._grammar_id(state), False
            case ex.Nested():
                state, is_nullable = embedding.nested(expression.grammar)
                return self._grammar_id(state), is_nullable
            case ex.Named():
                state, is_nullable = self._embedded(embedding.named, expression.name, expression)
                return self._grammar_id(state), is_nullable
            case ex.Whole():
                reading = self._whole(expression)
            case _:
                priority = self._priorities.get(expression, 0)
                reading = self._terminals.read(expression, priority=priority)
        terminal = reading.terminal
        exists = terminal is not None and embedding.exists(terminal)
        shift = self._shift_id(terminal) if terminal is not None and exists else None
        return shift, reading.is_nullable

    def _whole(self, whole: ex.Whole) -> Reading:
        source = self.grammar.source
        option = "lazy" if whole.max_tokens is None else "max_tokens"
        if isinstance(whole.item, ex.Special | ex.Schema | ex.Nested | ex.Named):
            raise source.unsupported(
                f"option {option} is for rules whose body is a terminal (a text, a regular "
                "expression, upper-case names); this one embeds a grammar or a special token",
                whole.at,
                option,
            )
        text = whole.item
        if whole.ending is not None:
            text = ex.Sequence((text, whole.ending), whole.at)
        reading = self._terminals.read(text, is_lazy=whole.is_lazy, max_tokens=whole.max_tokens)
        if whole.max_tokens is not None and reading.terminal is not None:
            num_states = reading.terminal.dfa.num_states
            if num_states > _MAX_BOUNDED_STATES:
                raise source.unsupported(
                    f"option max_tokens on a terminal of {num_states} automaton states, more than "
                    f"the {_MAX_BOUNDED_STATES} allowed; use a simpler terminal",
                    whole.at,
                    option,
                )
        return reading

    def _token_ids(self, special: ex.Special) -> frozenset[int]:
        return self._embedded(self.embedding.tokens, special, special)

    def _embedded(
        self, make: Callable[[Given], Made], given: Given, expression: Expression
    ) -> Made:
        """An error inside an embedded part also tells where the part stands."""
        try:
            return make(given)
        except GrammarError as exc:
            place = "" if exc.where is None else f" (at {exc.where or 'the root'})"
            raise type(exc)(
                *self.grammar.source.described(f"{exc.message}{place}", expression.at),
                keyword=exc.keyword,
            ) from exc

    def _grammar_id(self, state: RuleState) -> int | None:
        return self._shift_id(state) if self.embedding.exists(state) else None

    def _shift_id(self, shift: Shift) -> int:
        key: object = shift
        if isinstance(shift, Terminal):
            key = (
                id(shift.dfa),
                shift.priority,
                shift.is_lazy,
                shift.is_fixed,
                shift.max_tokens,
            )
        found = self._shift_ids.get(key)
        if found is None:
            found = self._shift_ids[key] = len(self.shifts)
            self.shifts.append(shift)
        return found

    def _ignored(self, expression: Expression) -> list[int]:
        """Ignored text: terminals, or alternatives of them."""
        if isinstance(expression, ex.Choice):
            return [shift for option in expression.options for shift in self._ignored(option)]
        if isinstance(expression, ex.Ref) and expression.name in self.grammar.rules:
            raise self.grammar.source.unsupported(
                f"%ignore takes terminals; {expression.name} is a rule", expression.at, "%ignore"
            )
        shift, _ = self._shift(expression)
        return [] if shift is None else [shift]


def references(expression: Expression) -> list[ex.Ref]:
    """All names that an expression uses."""
    found: list[ex.Ref] = []
    pending = [expression]
    while pending:
        part = pending.pop()
        if isinstance(part, ex.Ref):
            found.append(part)
        pending += _parts(part)
    return found


def is_larger_than(expression: Expression, num_parts: int) -> bool:
    pending = [expression]
    while pending and num_parts >= 0:
        pending += _parts(pending.pop())
        num_parts -= 1
    return bool(pending)


def _parts(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case ex.Ref():
            return expression.arguments
        case ex.Sequence():
            return expression.items
        case ex.Choice():
            return expression.options
        case ex.Repeat() | ex.Not():
            return (expression.item,)
        case ex.Both():
            return (expression.left, expression.right)
        case _:
            return ()


def substituted(expression: Expression, names: dict[str, Expression]) -> Expression:
    """The expression with parameters of a template replaced by its arguments."""
    match expression:
        case ex.Ref():
            if expression.name in names and not expression.arguments:
                return names[expression.name]
            arguments = tuple(substituted(argument, names) for argument in expression.arguments)
            replaced = names.get(expression.name)
            name = replaced.name if isinstance(replaced, ex.Ref) else expression.name
            return ex.Ref(name, arguments, expression.at)
        case ex.Sequence():
            return ex.Sequence(
                tuple(substituted(i, names) for i in expression.items), expression.at
            )
        case ex.Choice():
            return ex.Choice(
                tuple(substituted(o, names) for o in expression.options), expression.at
            )
        case ex.Repeat():
            item = substituted(expression.item, names)
            return ex.Repeat(item, expression.low, expression.high, expression.at)
        case _:
            return expression
