"""Compiled constraints on output text: which tokens keep a regex, a choice or a JSON Schema
satisfiable.
"""

from umbel.grammar.cfg.captures import Capture
from umbel.grammar.compile import (
    compile_choices,
    compile_gbnf,
    compile_json_schema,
    compile_lark,
    compile_regex,
    compile_structural_tag,
    compile_tool_calls,
)
from umbel.grammar.errors import GrammarError, UnsatisfiableGrammar, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.matcher import Constraint, Matcher
from umbel.grammar.vocabulary import Vocabulary
from umbel.grammar.warming import warm_up, warm_up_steps

__all__ = [
    "Capture",
    "Constraint",
    "GrammarError",
    "Limits",
    "Matcher",
    "UnsatisfiableGrammar",
    "UnsupportedGrammar",
    "Vocabulary",
    "compile_choices",
    "compile_gbnf",
    "compile_json_schema",
    "compile_lark",
    "compile_regex",
    "compile_structural_tag",
    "compile_tool_calls",
    "warm_up",
    "warm_up_steps",
]
