"""Grammar texts to states of the token machine: the way in for everything written as rules."""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from umbel.grammar.cfg.assemble import Embedding, Shift, assemble
from umbel.grammar.cfg.expressions import Grammar, Special
from umbel.grammar.cfg.parser import Parser
from umbel.grammar.cfg.read_gbnf import read_gbnf
from umbel.grammar.cfg.read_lark import read_lark
from umbel.grammar.cfg.tags import Lowering, structural_tag
from umbel.grammar.cfg.terminals import Terminal
from umbel.grammar.cfg.tools import tool_calls
from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.build import regex
from umbel.grammar.pushdown.costs import Costs
from umbel.grammar.pushdown.leaves import Leaf, TokenLeaf
from umbel.grammar.pushdown.rules import UNREACHABLE, RuleState
from umbel.grammar.vocabulary import Vocabulary

LowerSchema = Callable[[object], RuleState]  # a JSON Schema to a state of the token machine


class GrammarLowerer:
    """Lowers texts for one vocabulary. grammars: what `@name` stands for, Lark text or a JSON
    Schema.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        lower_schema: LowerSchema,
        limits: Limits,
        grammars: Mapping[str, object] | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._lower_schema = lower_schema
        self._limits = limits
        self._grammars = dict(grammars or {})
        self._open: list[str] = []
        self._embedding = Embedding(
            self._schema, self._token_ids, self._nested, self._named, self._exists
        )

    def lark(self, text: str, *, start: str = "start") -> RuleState:
        """Raises `GrammarError` (with "line:column") or a subclass of it."""
        self._check_source(text, "lark")
        return self._lower(lambda: read_lark(text, self._limits, start=start))

    def gbnf(self, text: str, *, start: str = "root") -> RuleState:
        """The same for GBNF and EBNF."""
        self._check_source(text, "gbnf")
        return self._lower(lambda: read_gbnf(text, self._limits, start=start))

    def structural_tag(self, value: Any) -> RuleState:
        """XGrammar's structural tags, decoded or as JSON text. Raises `GrammarError` with a JSON
        Pointer.
        """
        if isinstance(value, str):
            self._check_source(value, "structural_tag")
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as exc:
                raise GrammarError(f"a structural tag must be JSON: {exc}") from exc
        return structural_tag(value, self._lowering())

    def tool_calls(
        self, tools: Sequence[Any], format_name: str, *, choice: str, parallel: bool
    ) -> RuleState:
        """See `tools.tool_calls`."""
        return tool_calls(tools, format_name, self._lowering(), choice=choice, parallel=parallel)

    def _lowering(self) -> Lowering:
        return Lowering(
            self._lower_schema,
            lambda pattern: regex(pattern, limits=self._limits),
            lambda text: self.gbnf(text) if "::=" in text else self.lark(text),
            self._vocabulary.special_ids,
        )

    def _check_source(self, text: str, what: str) -> None:
        if not isinstance(text, str):
            raise GrammarError(f"{what} must be the text of a grammar, got {type(text).__name__}")
        if len(text) > self._limits.max_source_chars:
            raise UnsupportedGrammar(
                f"a grammar of {len(text)} characters is longer than the "
                f"{self._limits.max_source_chars} allowed",
                keyword=what,
            )

    def _lower(self, read: Callable[[], Grammar]) -> RuleState:
        try:
            return self._parser(read()).start(may_end=True)
        except RecursionError as exc:
            raise UnsupportedGrammar("the grammar is nested too deeply", keyword="nesting") from exc

    def _parser(self, grammar: Grammar) -> Parser:
        network = assemble(grammar, self._embedding, self._limits)
        return Parser(network, self._limits, self._leaf_exists)

    def _exists(self, shift: Shift) -> bool:
        """Vocabularies lack some bytes: what needs one is no way to go on. Nor is what needs more
        tokens than it may have.
        """
        space = self._vocabulary.readings
        if isinstance(shift, Terminal) and shift.max_tokens is not None:
            return space.leaf_exists(shift.leaf(), None) < UNREACHABLE
        if space.is_complete or isinstance(shift, TokenLeaf):
            return True
        if isinstance(shift, Terminal):
            return self._leaf_exists(shift.leaf())
        return Costs(space.leaf_exists).state(shift) < UNREACHABLE

    def _leaf_exists(self, leaf: Leaf) -> bool:
        space = self._vocabulary.readings
        return space.is_complete or space.leaf_exists(leaf, None) < UNREACHABLE

    def _schema(self, json_text: str) -> RuleState:
        return self._lower_schema(json.loads(json_text))

    def _nested(self, grammar: Grammar) -> tuple[RuleState, bool]:
        for rule in grammar.rules.values():
            if rule.options.is_captured:
                raise grammar.source.unsupported(
                    "a capture inside an embedded grammar; capture the rule that embeds it",
                    rule.at,
                    "capture",
                )
        parser = self._parser(grammar)
        return parser.start(may_end=False), parser.network.is_nullable

    def _named(self, name: str) -> tuple[RuleState, bool]:
        if name not in self._grammars:
            known = ", ".join(sorted(self._grammars)) or "none were given"
            raise GrammarError(f"@{name} is not among the named grammars: {known}")
        if name in self._open:
            raise UnsupportedGrammar(f"@{name} refers to itself", keyword="@")
        given = self._grammars[name]
        if not isinstance(given, str):
            return self._lower_schema(given), False
        self._open.append(name)
        try:
            return self._nested(read_lark(given, self._limits))
        finally:
            self._open.pop()

    def _token_ids(self, special: Special) -> frozenset[int]:
        if special.name is not None:
            return frozenset((self._token_id(special.name),))
        if special.negated:
            raise UnsupportedGrammar(
                "<[^...]> and <[*]> name tokens of text too, which cannot be told from "
                "text; for any "
                "text write /(.|\\n)*/",
                keyword="<[^]>",
            )
        size = self._vocabulary.size
        listed = [range(low, high + 1) for low, high in special.ranges]
        if any(span.stop > size for span in listed) or any(not span for span in listed):
            raise GrammarError(f"token ids must be ascending ranges within 0 and {size - 1}")
        ids = frozenset(number for span in listed for number in span)
        texts = [number for number in sorted(ids) if self._vocabulary.text_of(number) is not None]
        if texts:
            raise UnsupportedGrammar(
                f"token {texts[0]} is text; only special tokens can be named by number, "
                f"write texts "
                "as strings",
                keyword="<[]>",
            )
        return ids

    def _token_id(self, name: str) -> int:
        ids = self._vocabulary.special_ids
        for spelling in (name, name[1:-1]):
            if spelling in ids:
                return ids[spelling]
        close = difflib.get_close_matches(name, ids, 3)
        hint = f"; close to it are {', '.join(close)}" if close else ""
        raise GrammarError(
            f"{name} is not a special token of this model{hint}; if it is plain text, write it as "
            f'a string: "{name}"'
        )
