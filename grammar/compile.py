"""The front door: a grammar's text and a vocabulary in, a `Constraint` out. Pure functions; no
cache here.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from umbel.grammar.automaton import ByteDfa, minimize
from umbel.grammar.cfg.compile import GrammarLowerer
from umbel.grammar.choices import checked_choices
from umbel.grammar.errors import GrammarError, UnsatisfiableGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.machine import TokenMachine
from umbel.grammar.matcher import Constraint
from umbel.grammar.pushdown import build
from umbel.grammar.pushdown.leaves import dfa_leaf, literal_leaf
from umbel.grammar.pushdown.rules import RuleState
from umbel.grammar.regex.chardfa import determinize
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.regex.syntax import Node
from umbel.grammar.regex.utf8 import to_bytes
from umbel.grammar.schema.load import load_schema
from umbel.grammar.schema.lower import lower_schema
from umbel.grammar.vocabulary import Vocabulary

_DEFAULTS = Limits()


def compile_regex(
    pattern: str, vocabulary: Vocabulary, *, limits: Limits = _DEFAULTS
) -> Constraint:
    """The whole output matches the pattern (Python `re` and Rust `regex` syntax; see
    `regex.parser`).
    """
    if not isinstance(pattern, str):
        raise GrammarError(f"regex must be a string, got {type(pattern).__name__}")
    tree = parse_regex(pattern, limits=limits)
    root = build.leaf(dfa_leaf(_to_dfa(tree, limits)))
    return constraint_of("regex", pattern, root, vocabulary, limits)


def compile_choices(
    choices: Sequence[str], vocabulary: Vocabulary, *, limits: Limits = _DEFAULTS
) -> Constraint:
    """The whole output is one of the texts."""
    texts = checked_choices(choices, limits)
    named = [(text, 0) for text in texts if text]
    root = build.leaf(literal_leaf(named)) if named else build.EMPTY
    if named and len(named) < len(texts):
        root = build.optional(root)
    return constraint_of("choices", sorted(set(choices)), root, vocabulary, limits)


def compile_json_schema(
    schema: Any, vocabulary: Vocabulary, *, limits: Limits = _DEFAULTS
) -> Constraint:
    """The output is JSON that is valid under the schema: a dict, a bool, JSON text, or a Python
    type.

    Every keyword is enforced or the schema is refused with `UnsupportedGrammar`, keyword and JSON
    Pointer.
    Outputs are a subset of the valid instances: properties come in schema order, at most one space
    after "," and ":", values left open nest at most `limits.max_value_depth` deep.
    """
    loaded = load_schema(schema, limits)
    return constraint_of("json_schema", loaded, _json_root(loaded, limits), vocabulary, limits)


def _json_root(schema: Any, limits: Limits) -> RuleState:
    tree = lower_schema(load_schema(schema, limits), limits)
    return build.leaf(dfa_leaf(_to_dfa(tree, limits)))


def compile_lark(
    text: str,
    vocabulary: Vocabulary,
    *,
    start: str = "start",
    grammars: Mapping[str, Any] | None = None,
    limits: Limits = _DEFAULTS,
) -> Constraint:
    """The output is a text of a Lark grammar; docs/lark.md has the dialect.

    grammars: what `@name` in the text stands for, Lark text or JSON Schemas. Raises `GrammarError`
    with "line:column", or a subclass of it.
    """
    root = _lowerer(vocabulary, limits, grammars).lark(text, start=start)
    return constraint_of("lark", [text, start, _content(grammars)], root, vocabulary, limits)


def compile_gbnf(
    text: str, vocabulary: Vocabulary, *, start: str = "root", limits: Limits = _DEFAULTS
) -> Constraint:
    """The output is a text of a grammar in GBNF (llama.cpp) or EBNF (XGrammar)."""
    root = _lowerer(vocabulary, limits).gbnf(text, start=start)
    return constraint_of("gbnf", [text, start], root, vocabulary, limits)


def compile_structural_tag(
    tag: Any, vocabulary: Vocabulary, *, limits: Limits = _DEFAULTS
) -> Constraint:
    """The output is free text with tags in it whose contents are constrained: see `cfg.tags`.

    tag: XGrammar's structural tag as decoded JSON or JSON text.
    """
    root = _lowerer(vocabulary, limits).structural_tag(tag)
    return constraint_of("structural_tag", _content(tag), root, vocabulary, limits)


def compile_tool_calls(
    tools: Sequence[Any],
    format_name: str,
    vocabulary: Vocabulary,
    *,
    choice: str = "auto",
    parallel: bool = True,
    limits: Limits = _DEFAULTS,
) -> Constraint:
    """The output is an answer that may call tools, in a model's format: see `cfg.tools.tool_calls`.
    """
    root = _lowerer(vocabulary, limits).tool_calls(
        tools, format_name, choice=choice, parallel=parallel
    )
    source = [_content(list(tools)), format_name, choice, parallel]
    return constraint_of("tool_calls", source, root, vocabulary, limits)


def _lowerer(
    vocabulary: Vocabulary, limits: Limits, grammars: Mapping[str, Any] | None = None
) -> GrammarLowerer:
    return GrammarLowerer(vocabulary, lambda s: _json_root(s, limits), limits, grammars)


def _content(value: Any) -> Any:
    """The value as JSON content, whatever its mappings are."""
    try:
        return json.loads(json.dumps(value, default=dict))
    except (TypeError, ValueError, RecursionError) as exc:
        raise GrammarError(f"a grammar must be JSON content, got {value!r:.200}") from exc


def _to_dfa(tree: Node, limits: Limits) -> ByteDfa:
    characters = determinize(tree, limits)
    if characters.is_empty:
        raise UnsatisfiableGrammar("no text satisfies the grammar: its language is empty")
    return minimize(to_bytes(characters, limits))


def constraint_of(
    kind: str, source: Any, root: RuleState, vocabulary: Vocabulary, limits: Limits
) -> Constraint:
    """The constraint of a grammar state. source: JSON content that, with `kind`, says all about
    `root`.

    Raises `UnsatisfiableGrammar` if no tokens of the vocabulary spell any text of it.
    """
    machine = TokenMachine(root, vocabulary)
    if machine.is_stuck(machine.start):
        raise UnsatisfiableGrammar(
            "no sequence of this vocabulary's tokens satisfies the grammar: every matching text needs a "
            "byte that no token has"
        )
    content = json.dumps([kind, source, repr(limits), vocabulary.key])
    return Constraint(kind, hashlib.sha256(content.encode()).hexdigest(), machine)
