"""The front door: a grammar's text and a vocabulary in, a `Constraint` out. Pure functions; no
cache here.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from umbel.grammar.automaton import ByteDfa, minimize
from umbel.grammar.choices import literals_to_bytes
from umbel.grammar.closing import UNREACHABLE
from umbel.grammar.errors import GrammarError, UnsatisfiableGrammar, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.machine import TokenMachine
from umbel.grammar.matcher import Constraint
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
    return _constraint("regex", pattern, _to_dfa(tree, limits), vocabulary, limits)


def compile_choices(
    choices: Sequence[str], vocabulary: Vocabulary, *, limits: Limits = _DEFAULTS
) -> Constraint:
    """The whole output is one of the texts."""
    dfa = literals_to_bytes(choices, limits)
    return _constraint("choices", sorted(set(choices)), dfa, vocabulary, limits)


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
    tree = lower_schema(loaded, limits)
    return _constraint("json_schema", loaded, _to_dfa(tree, limits), vocabulary, limits)


def compile_lark(text: str, vocabulary: Vocabulary, *, limits: Limits = _DEFAULTS) -> Constraint:
    """Context-free grammars are not enforced yet: always raises `UnsupportedGrammar`."""
    raise UnsupportedGrammar(
        "lark grammars are not supported yet; use a regex, choices or a JSON Schema", keyword="lark"
    )


def _to_dfa(tree: Node, limits: Limits) -> ByteDfa:
    characters = determinize(tree, limits)
    if characters.is_empty:
        raise UnsatisfiableGrammar("no text satisfies the grammar: its language is empty")
    return minimize(to_bytes(characters, limits))


def _constraint(
    kind: str, source: Any, dfa: ByteDfa, vocabulary: Vocabulary, limits: Limits
) -> Constraint:
    machine = TokenMachine(dfa, vocabulary)
    if machine.closing_cost(machine.start) == UNREACHABLE:
        raise UnsatisfiableGrammar(
            "no sequence of this vocabulary's tokens satisfies the grammar: every matching text "
            "needs bytes that no tokens spell"
        )
    content = json.dumps([kind, source, repr(limits), vocabulary.key])
    return Constraint(kind, hashlib.sha256(content.encode()).hexdigest(), machine)
