"""The front door: a grammar's text and a vocabulary in, a `Constraint` out. Pure functions; no
cache here.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from umbel.grammar.automaton import ByteDfa, minimize
from umbel.grammar.cfg.captures import CaptureReader
from umbel.grammar.cfg.compile import GrammarLowerer
from umbel.grammar.cfg.states import ParserState
from umbel.grammar.choices import checked_choices
from umbel.grammar.errors import GrammarError, UnsatisfiableGrammar
from umbel.grammar.interrupt import interruptible
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
from umbel.grammar.schema.front import SchemaOptions, read_schema
from umbel.grammar.schema.load import load_schema
from umbel.grammar.schema.spacing import Whitespace
from umbel.grammar.vocabulary import Vocabulary

_DEFAULTS = Limits()
# What may stand for characters that ordinary vocabularies have no bytes for: control characters,
# planes without characters, and escapes (of JSON and of patterns) that may name either.
_RARE_CHARS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\U00040000-\U000bffff]"
    r"|\\(?:[xc0UNvae]|u00[01]|u007[fF]|u[dD][89abAB]|u\{)"
)


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
    schema: Any,
    vocabulary: Vocabulary,
    *,
    any_order: bool = False,
    strict: bool = True,
    assert_formats: bool = True,
    whitespace: Whitespace | str = Whitespace.COMPACT,
    limits: Limits = _DEFAULTS,
    cancelled: Callable[[], bool] | None = None,
) -> Constraint:
    """The output is JSON that is valid under the schema: a dict, a bool, JSON text, or a Python
    type.

    Every keyword is enforced exactly or the schema is refused with `UnsupportedGrammar`, keyword
    and JSON Pointer; strict=False leaves such keywords out and says so in `Constraint.warnings`.
    Declared properties come in schema order, or with any_order in the model's. docs/json_schema.md
    has all options. cancelled: asked now and then; True ends the compilation with
    `CompileCancelled`.
    """
    options = SchemaOptions(
        any_order=any_order,
        strict=strict,
        assert_formats=assert_formats,
        whitespace=Whitespace(whitespace),
    )
    loaded = load_schema(schema, limits)
    with interruptible(cancelled):
        grammar = read_schema(loaded, options, limits, cancelled=cancelled)
        for leaf in grammar.large_leaves:
            vocabulary.readings.reader(leaf)
    source = [loaded.text, loaded.is_typed, repr(options)]
    constraint = constraint_of("json_schema", source, grammar.start, vocabulary, limits)
    constraint.warnings = tuple(grammar.warnings)
    return constraint


def _json_root(schema: Any, limits: Limits) -> RuleState:
    return read_schema(load_schema(schema, limits), SchemaOptions(), limits).start


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
    source = [text, start, _content(grammars)]
    constraint = constraint_of("lark", source, root, vocabulary, limits)
    if isinstance(root, ParserState) and root.parser.network.captured:
        constraint.capture_reader = CaptureReader(root, vocabulary)
    return constraint


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
    return constraint_of("structural_tag", [_content(tag)], root, vocabulary, limits)


def compile_tool_calls(
    tools: Sequence[Any],
    format_name: str,
    vocabulary: Vocabulary,
    *,
    choice: str = "auto",
    parallel: bool = True,
    limits: Limits = _DEFAULTS,
) -> Constraint:
    """The output is an answer that may call tools, in a model's format: see
    `cfg.tools.tool_calls`.
    """
    root = _lowerer(vocabulary, limits).tool_calls(
        tools, format_name, choice=choice, parallel=parallel
    )
    source = [_content(list(tools)), format_name, choice, str(parallel)]
    return constraint_of("tool_calls", source, root, vocabulary, limits)


def _lowerer(
    vocabulary: Vocabulary, limits: Limits, grammars: Mapping[str, Any] | None = None
) -> GrammarLowerer:
    return GrammarLowerer(vocabulary, lambda s: _json_root(s, limits), limits, grammars)


def _content(value: Any) -> str:
    """The value as JSON text, whatever its mappings are."""
    try:
        return json.dumps(value, default=dict)
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
    content = json.dumps([kind, source, repr(limits)])
    is_careful = not vocabulary.readings.is_ordinary or _names_rare_chars(source)
    machine = TokenMachine(root, vocabulary, is_careful=is_careful)
    if machine.is_stuck(machine.start):
        raise UnsatisfiableGrammar(
            "no sequence of this vocabulary's tokens satisfies the grammar: every matching text "
            "needs a byte that no token has"
        )
    digest = hashlib.sha256((content + vocabulary.key).encode()).hexdigest()
    return Constraint(kind, digest, machine)


def _names_rare_chars(source: Any) -> bool:
    texts = source if isinstance(source, list | tuple) else [source]
    return any(isinstance(text, str) and _RARE_CHARS.search(text) for text in texts)
