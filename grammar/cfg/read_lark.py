"""Lark text to a `Grammar`: Lark's own notation and what llguidance adds to it, by recursive
descent.

Imported terminals, templates and options are resolved or refused here; names are checked by
`resolve`.
"""

import json
import string
from json import JSONDecodeError
from typing import Any

from umbel.grammar.cfg.common_terminals import COMMON
from umbel.grammar.cfg.expressions import (
    Both,
    Choice,
    Definition,
    Expression,
    Grammar,
    Literal,
    Named,
    Nested,
    Not,
    Options,
    Ref,
    Regex,
    Repeat,
    Schema,
    Sequence,
    Special,
    Substring,
)
from umbel.grammar.cfg.rule_options import read_options
from umbel.grammar.cfg.source import Source
from umbel.grammar.cfg.tokens import Token, Tokens
from umbel.grammar.limits import Limits
from umbel.grammar.regex import charset

_MAX_COUNT = 1_000_000_000
_JSON = json.JSONDecoder()
_SIMPLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "\\": "\\", '"': '"'}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def read_lark(text: str, limits: Limits, *, start: str = "start") -> Grammar:
    """Raises `GrammarError` with "line:column" for wrong syntax, `UnsupportedGrammar` for what is
    refused.
    """
    source = Source(text)
    tokens = Tokens(source)
    grammar = _Reader(tokens, limits, depth=0).grammar(start)
    if tokens.peek().kind != "end":
        raise source.error(f"unexpected {tokens.shown()}", tokens.at)
    return grammar


def is_terminal_name(name: str) -> bool:
    """As in Lark, upper case (after underscores) makes a terminal."""
    return name.lstrip("_")[:1].isupper()


class _Reader:
    def __init__(self, tokens: Tokens, limits: Limits, depth: int) -> None:
        self.tokens = tokens
        self.source = tokens.source
        self.limits = limits
        self.depth = depth

    def grammar(self, start: str) -> Grammar:
        """Statements up to the end, or up to the brace that closes a nested grammar."""
        grammar = Grammar(self.source, start=start)
        while True:
            token = self.tokens.peek()
            if token.kind == "define":
                self._definition(grammar)
            elif token.kind == "directive":
                self._directive(grammar)
            else:
                return grammar

    def _definition(self, grammar: Grammar, *, override: bool = False) -> None:
        tokens = self.tokens
        token = tokens.take()
        name = token.text.lstrip("?!")
        params = self._params()
        options, options_at = Options(), 0
        if tokens.peek().kind == "[":
            options, options_at = read_options(tokens, self._atom, name)
        priority = 0
        if tokens.take_if("."):
            priority = int(tokens.expect("number", "a priority").text)
        tokens.expect(":", "':'")
        body = self._choice()
        is_terminal = is_terminal_name(name)
        if is_terminal and options != Options():
            message = "options in brackets belong to rules (lower case), not to terminals"
            raise self.source.unsupported(message, options_at, "options")
        table = grammar.terminals if is_terminal else grammar.rules
        if name in table and not override:
            raise self.source.error(f"{name} is defined twice", token.at)
        table[name] = Definition(name, body, params, priority, options, token.at)

    def _params(self) -> tuple[str, ...]:
        tokens = self.tokens
        if not tokens.take_if("{"):
            return ()
        names = [tokens.expect("name", "a parameter").text]
        while tokens.take_if(","):
            names.append(tokens.expect("name", "a parameter").text)
        tokens.expect("}", "',' or '}'")
        return tuple(names)

    def _directive(self, grammar: Grammar) -> None:
        token = self.tokens.take()
        name = token.text
        if name == "%ignore":
            grammar.ignored.append(self._choice())
        elif name == "%import":
            self._import(grammar, token)
        elif name == "%override":
            self._definition_after(grammar, token)
        elif name == "%llguidance":
            self._engine_options(token)
        elif name in ("%declare", "%extend"):
            reason = {
                "%declare": "declares a terminal without a pattern, which no text can match",
                "%extend": "is not supported; write all alternatives into one definition",
            }[name]
            raise self.source.unsupported(f"{name} {reason}", token.at, name)
        else:
            raise self.source.error(f"unknown directive {name}", token.at)

    def _definition_after(self, grammar: Grammar, directive: Token) -> None:
        self.tokens.expect_definition()
        if self.tokens.peek().kind != "define":
            raise self.source.error("expected a definition after %override", directive.at)
        self._definition(grammar, override=True)

    def _engine_options(self, token: Token) -> None:
        options = self._json(token)
        if not isinstance(options, dict):
            raise self.source.error("%llguidance takes a JSON object", token.at)
        for name in options:
            if name != "no_forcing":  # says how tokens are sampled, not which texts are allowed
                raise self.source.unsupported(
                    f"%llguidance option {name!r} is not supported", token.at, "%llguidance"
                )

    def _import(self, grammar: Grammar, directive: Token) -> None:
        tokens = self.tokens
        path = [tokens.expect("name", "a module, as in %import common.WS").text]
        names: list[tuple[str, int]] = []
        while tokens.take_if("."):
            part = tokens.expect("name", "a name")
            path.append(part.text)
            names = [(part.text, part.at)]
        if tokens.take_if("("):
            names = []
            while not tokens.take_if(")"):
                part = tokens.expect("name", "a name")
                names.append((part.text, part.at))
                tokens.take_if(",")
        elif len(path) > 1:
            path.pop()
        if path != ["common"] or not names:
            raise self.source.unsupported(
                f"%import {'.'.join(path)}: only terminals of `common` can be imported, as in "
                "%import common.WS",
                directive.at,
                "%import",
            )
        alias = None
        if len(names) == 1 and tokens.take_if("->"):
            alias = tokens.expect("name", "a new name").text
        for name, at in names:
            self._import_common(grammar, name, alias or name, at)

    def _import_common(self, grammar: Grammar, name: str, alias: str, at: int) -> None:
        if name not in COMMON:
            known = ", ".join(sorted(COMMON))
            raise self.source.error(f"common has no {name}; it has {known}", at)
        if alias not in grammar.terminals:
            grammar.terminals[alias] = Definition(alias, Regex(COMMON[name], at=at), at=at)

    # Expressions, loosest binding first.

    def _choice(self) -> Expression:
        self.depth += 1
        at = self.tokens.at
        if self.depth > self.limits.max_nesting:
            raise self.source.unsupported(
                f"groups nested deeper than {self.limits.max_nesting}", at, "nesting"
            )
        options = [self._intersection()]
        while self.tokens.take_if("|"):
            options.append(self._intersection())
        self.depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options), at)

    def _intersection(self) -> Expression:
        at = self.tokens.at
        left = self._sequence()
        while self.tokens.take_if("&"):
            left = Both(left, self._sequence(), at)
        if self.tokens.take_if("->"):
            self.tokens.expect("name", "the name of an alternative")  # names a node of parse trees
        return left

    def _sequence(self) -> Expression:
        at = self.tokens.at
        items: list[Expression] = []
        while self._starts_item(self.tokens.peek()):
            items.append(self._repeated())
        return items[0] if len(items) == 1 else Sequence(tuple(items), at)

    def _starts_item(self, token: Token) -> bool:
        if token.kind == "directive":
            return token.text in ("%json", "%regex", "%lark")
        return token.kind in ("string", "regex", "special", "name", "(", "[", "~", "@", "!")

    def _repeated(self) -> Expression:
        tokens = self.tokens
        at = tokens.at
        if tokens.take_if("~"):
            item: Expression = Not(self._atom(), at)
        else:
            item = self._atom()
        while True:
            kind = tokens.peek().kind
            if kind in ("?", "*", "+"):
                tokens.take()
                low, high = {"?": (0, 1), "*": (0, None), "+": (1, None)}[kind]
                item = Repeat(item, low, high, at)
            elif kind == "~":
                mark = tokens.take()
                if tokens.peek().kind != "number":  # a complement: the next item
                    tokens.skip_to(mark.at)
                    return item
                item = self._counted(item, at)
            elif kind == "{":
                tokens.take()
                item = self._counted_in_braces(item, at)
            else:
                return item

    def _counted(self, item: Expression, at: int) -> Expression:
        low = high = self._count(self.tokens.take())
        if self.tokens.take_if(".."):
            high = self._count(self.tokens.expect("number", "the largest count"))
        return self._checked_repeat(item, low, high, at)

    def _counted_in_braces(self, item: Expression, at: int) -> Expression:
        tokens = self.tokens
        first = tokens.take_if("number")
        low = self._count(first) if first else 0
        high: int | None = low
        if tokens.take_if(","):
            last = tokens.take_if("number")
            high = self._count(last) if last else None
        elif first is None:
            raise self.source.error("expected a count, as in x{2,5}", tokens.at)
        tokens.expect("}", "'}'")
        return self._checked_repeat(item, low, high, at)

    def _checked_repeat(self, item: Expression, low: int, high: int | None, at: int) -> Expression:
        if high is not None and low > high:
            raise self.source.error(f"repetition {low}..{high} runs backwards", at)
        return Repeat(item, low, high, at)

    def _count(self, token: Token) -> int:
        value = int(token.text[:12])
        if not 0 <= value <= _MAX_COUNT:
            raise self.source.error(f"a count must lie between 0 and {_MAX_COUNT}", token.at)
        return value

    def _atom(self) -> Expression:
        tokens = self.tokens
        token = tokens.take()
        if token.kind == "!":  # keeps tokens in Lark's trees
            token = tokens.take()
        match token.kind:
            case "string":
                return self._string(token)
            case "regex":
                end = token.text.rindex("/")
                return Regex(token.text[1:end], token.text[end + 1 :], token.at)
            case "special":
                return self._special(token)
            case "name":
                return self._reference(token)
            case "directive":
                return self._embedded(token)
            case "(":
                inner = self._choice()
                tokens.expect(")", "')'")
                return inner
            case "[":
                inner = self._choice()
                tokens.expect("]", "']'")
                return Repeat(inner, 0, 1, token.at)
            case "@":
                return Named(tokens.expect("name", "a grammar's name").text, token.at)
        tokens.skip_to(token.at)
        raise self.source.error(
            f"expected a rule, terminal or literal, got {tokens.shown()}", token.at
        )

    def _string(self, token: Token) -> Expression:
        text, ignore_case = self._unquoted(token)
        if not self.tokens.take_if(".."):
            return Literal(text, ignore_case, token.at)
        last, _ = self._unquoted(self.tokens.expect("string", "the last character of the range"))
        if len(text) != 1 or len(last) != 1 or text > last:
            raise self.source.error(
                'a range needs one character on either side, the smaller first, as in "a".."z"',
                token.at,
            )
        dashes = f"[\\U{ord(text):08x}-\\U{ord(last):08x}]"
        return Regex(dashes, "i" if ignore_case else "", token.at)

    def _unquoted(self, token: Token) -> tuple[str, bool]:
        ignore_case = token.text.endswith("i")
        body = token.text[1 : -2 if ignore_case else -1]
        try:
            return unescape(body), ignore_case
        except ValueError as exc:
            raise self.source.error(f"string {token.text}: {exc}", token.at) from exc

    def _reference(self, token: Token) -> Expression:
        tokens = self.tokens
        if tokens.peek().kind == "::":
            message = "parametric rules (name::value) are not supported"
            raise self.source.unsupported(message, token.at, "::")
        if tokens.peek().kind != "{" or self.source.text[tokens.at + 1 :].lstrip()[:1] in tuple(
            "0123456789,}"
        ):
            return Ref(token.text, (), token.at)
        tokens.take()
        arguments = [self._choice()]
        while tokens.take_if(","):
            arguments.append(self._choice())
        tokens.expect("}", "',' or '}'")
        return Ref(token.text, tuple(arguments), token.at)

    def _special(self, token: Token) -> Expression:
        inner = token.text[1:-1]
        if not (inner.startswith("[") and inner.endswith("]")):
            return Special(token.text, at=token.at)
        listed = inner[1:-1].removeprefix("^")
        ranges: list[tuple[int, int]] = []
        for part in listed.split(",") if listed != "*" else ():
            low, dash, high = part.partition("-")
            if not low.isdecimal() or (dash and not high.isdecimal()) or len(part) > 24:
                raise self.source.error(
                    f"{token.text}: token ids are written <[5]>, <[5-9,12]>, <[^5]> or <[*]>",
                    token.at,
                )
            ranges.append((int(low), int(high or low)))
        negated = inner.startswith("[^") or listed == "*"
        return Special(None, tuple(ranges), negated, token.at)

    def _embedded(self, token: Token) -> Expression:
        if token.text == "%lark":
            self.tokens.expect("{", "'{'")
            self.tokens.expect_definition()
            self.depth += 1
            if self.depth > self.limits.max_nesting:
                message = f"grammars nested deeper than {self.limits.max_nesting}"
                raise self.source.unsupported(message, token.at, "nesting")
            inner = self.grammar("start")
            self.depth -= 1
            self.tokens.expect("}", "'}' that closes the nested grammar")
            return Nested(inner, token.at)
        value = self._json(token)
        if token.text == "%json":
            return Schema(json.dumps(value), token.at)
        return self._structured_regex(value, token)

    def _json(self, token: Token) -> Any:  # whatever JSON holds
        start = self.tokens.at
        try:
            value, end = _JSON.raw_decode(self.source.text, start)
        except JSONDecodeError as exc:
            raise self.source.error(f"{token.text} needs JSON: {exc.msg}", exc.pos) from exc
        except (RecursionError, ValueError) as exc:
            raise self.source.error(f"{token.text} needs JSON: nested too deeply", start) from exc
        self.tokens.skip_to(end)
        return value

    def _structured_regex(self, value: Any, token: Token) -> Expression:
        """`%regex {"substring_chunks": [...]}` and its two shorthands, as llguidance reads them."""
        if isinstance(value, dict) and len(value) == 1:
            ((kind, given),) = value.items()
            if kind == "substring_chunks" and isinstance(given, list):
                if all(isinstance(chunk, str) for chunk in given):
                    return Substring(tuple(chunk for chunk in given if chunk), token.at)
            elif kind == "substring_chars" and isinstance(given, str):
                return Substring(tuple(given), token.at)
            elif kind == "substring_words" and isinstance(given, str):
                return Substring(tuple(words(given)), token.at)
        raise self.source.unsupported(
            '%regex takes one of "substring_chunks": [...], "substring_words": "...", '
            '"substring_chars": "..."',
            token.at,
            "%regex",
        )


def unescape(body: str) -> str:
    """The characters of a Lark string: Python's escapes; a backslash before anything else is kept.

    Raises ValueError for an incomplete escape.
    """
    out: list[str] = []
    at = 0
    while at < len(body):
        char = body[at]
        at += 1
        if char != "\\" or at == len(body):
            out.append(char)
            continue
        char = body[at]
        at += 1
        if char in _SIMPLE_ESCAPES:
            out.append(_SIMPLE_ESCAPES[char])
        elif char in _HEX_DIGITS:
            digits = body[at : at + _HEX_DIGITS[char]]
            if len(digits) < _HEX_DIGITS[char] or not set(digits) <= set(string.hexdigits):
                raise ValueError(f"\\{char} needs {_HEX_DIGITS[char]} hexadecimal digits")
            if int(digits, 16) > charset.MAX_CODE_POINT:
                raise ValueError(f"\\{char}{digits} is beyond the last character, U+10FFFF")
            out.append(chr(int(digits, 16)))
            at += _HEX_DIGITS[char]
        else:
            out.append("\\" + char)
    return "".join(out)


def words(text: str) -> list[str]:
    """The text cut into runs of word characters and single other characters."""
    found: list[str] = []
    for char in text:
        in_word = char.isalnum() or char == "_"
        if in_word and found and (found[-1][-1].isalnum() or found[-1][-1] == "_"):
            found[-1] += char
        else:
            found.append(char)
    return found
