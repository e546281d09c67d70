"""GBNF and EBNF: which texts they allow, and what is wrong about some."""

import pytest
from unit.grammar.oracles import byte_vocabulary, mask_ids, matches

from umbel.grammar import GrammarError, UnsatisfiableGrammar, Vocabulary, compile_gbnf

JSON = r"""
# llama.cpp's own example of JSON, in its style
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""

CASES = [
    ('root ::= "a" b? # end\nb ::= "b" | [cd]', ["a", "ab", "ad"], ["b", "a b"]),
    ("root ::= [a-c]{2} [^a]{,1}", ["ab", "abz", "abé"], ["a", "aba"]),
    ('root ::= "x"{2,} | "y"{3}', ["xx", "xxxx", "yyy"], ["x", "yy"]),
    ('root ::= [-a] [a\\]] [\\x41-\\x43] "\\u00e9\\t"', ["-]Aé\t", "aaCé\t"], ["b]Aé\t"]),
    ("root ::= . .", ["ab", "\né"], ["a"]),
    ('root ::= (\n  "a" |\n  "b"\n)+', ["ab"], [""]),
    ('root ::= root "a" | "b"', ["baa"], ["a"]),
    ('root-1 ::= "x"\nroot ::= root-1 "y"', ["xy"], ["x"]),
    ('root ::= ("a" (= "b") "b") (="c" | "d")', ["ab"], ["a"]),  # look-ahead is only a hint
    ('root ::= /[0-9]+/ "!"', ["12!"], ["!"]),
    # No lexer: texts stand side by side, and every way to split them counts.
    ("root ::= n n\nn ::= [0-9]+", ["12", "123"], ["1"]),
    ('root ::= "if" n | n "="\nn ::= [a-z]+', ["ifx", "if=", "ab="], ["if"]),
    (JSON, ['{"a": [1,2.5e3,{"b":null}] }', "{}", '{"\\u00e9":"x y"}'], ["[]", '{"a":}', '{"a"']),
]


@pytest.mark.parametrize(("text", "accepted", "rejected"), CASES)
def test_notation(text: str, accepted: list[str], rejected: list[str]) -> None:
    constraint = compile_gbnf(text, byte_vocabulary())

    assert [s for s in accepted if not matches(constraint, s)] == []
    assert [s for s in rejected if matches(constraint, s)] == []


WRONG = [
    ('root ::= "a', "1:10", "not closed"),
    ("root ::= [a", "1:10", "not closed"),
    ("root = x", "1:6", "expected ::="),
    ("root ::= x", "1:10", "x is not defined"),
    ('root ::= ("a"', "1:10", "not closed"),
    ('root ::= "a" )', "1:14", "unexpected"),
    ('root ::= "a"{3,2}', "1:13", "backwards"),
    ('root ::= "\\q"', "1:11", "unknown escape"),
    ("root ::= [b-a]", "1:13", "backwards"),
    ('root ::= "a"\nroot ::= "b"', "2:1", "defined twice"),
    ("root ::= <|no|>", "1:10", "not a special token"),
]


@pytest.mark.parametrize(("text", "where", "part"), WRONG)
def test_an_error_names_the_place(text: str, where: str, part: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_gbnf(text, byte_vocabulary())

    assert caught.value.where == where
    assert part in caught.value.message


def test_special_tokens_are_named_or_numbered() -> None:
    vocabulary = Vocabulary([b"a", None, None], [2], size=3, special_ids={"<|x|>": 1})
    constraint = compile_gbnf('root ::= <|x|> "a" <[1]>', vocabulary)
    matcher = constraint.start()

    assert mask_ids(matcher, vocabulary) == {1}
    assert all(matcher.advance(token) for token in (1, 0, 1))
    assert matcher.finished


def test_rules_that_never_end_are_unsatisfiable() -> None:
    with pytest.raises(UnsatisfiableGrammar):
        compile_gbnf('root ::= "a" root', byte_vocabulary())


def test_another_start_rule_can_be_named() -> None:
    assert matches(compile_gbnf('x ::= "1"\ny ::= "2"', byte_vocabulary(), start="y"), "2")
