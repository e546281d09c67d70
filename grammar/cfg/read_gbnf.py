"""GBNF (llama.cpp) and EBNF (XGrammar) text to a `Grammar` without a lexer: texts stand side by
side.

`name ::= "text" [a-z] . rule* (a | b){2,5}`; comments begin with #; the start rule is `root`.
XGrammar's look-ahead assertions `(= ...)` are hints that change nothing, and are read over.
"""

import re
from dataclasses import dataclass

from umbel.grammar.cfg.expressions import (
    CharClass,
    Choice,
    Definition,
    Expression,
    Grammar,
    Literal,
    Ref,
    Regex,
    Repeat,
    Sequence,
    Special,
)
from umbel.grammar.cfg.source import Source
from umbel.grammar.limits import Limits
from umbel.grammar.regex import charset

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_DEFINITION = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*[ \t]*(?:::=|:(?!:)|=(?!=))")
_COUNT = re.compile(r"\{[ \t]*([0-9]*)[ \t]*(,?)[ \t]*([0-9]*)[ \t]*\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def read_gbnf(text: str, limits: Limits, *, start: str = "root") -> Grammar:
    """Raises `GrammarError` with "line:column" for wrong syntax, `UnsupportedGrammar` for what is
    refused.
    """
    source = Source(text)
    grammar = Grammar(source, start=start, scannerless=True)
    reader = _Reader(source, limits)
    reader.skip_space()
    while reader.at < len(text):
        at = reader.at
        name = reader.name("the name of a rule")
        reader.skip_space()
        if not reader.take_if("::="):
            raise source.error(f"expected ::= after {name}, as in {name} ::= ...", reader.at)
        if name in grammar.rules:
            raise source.error(f"{name} is defined twice", at)
        grammar.rules[name] = Definition(name, reader.choice(), at=at)
        reader.skip_space()
        if reader.at < len(text) and _DEFINITION.match(text, reader.at) is None:
            raise source.error(f"unexpected {text[reader.at]!r}", reader.at)
    return grammar


@dataclass(slots=True)
class _Reader:
    source: Source
    limits: Limits
    at: int = 0
    depth: int = 0

    def skip_space(self) -> None:
        found = _SPACE.match(self.source.text, self.at)
        assert found is not None
        self.at = found.end()

    def peek(self) -> str:
        return self.source.text[self.at : self.at + 1]

    def take_if(self, expected: str) -> bool:
        if self.source.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def name(self, what: str) -> str:
        found = _NAME.match(self.source.text, self.at)
        if found is None:
            got = repr(self.peek()) if self.peek() else "the end of the grammar"
            raise self.source.error(f"expected {what}, got {got}", self.at)
        self.at = found.end()
        return found[0]

    def choice(self) -> Expression:
        self.depth += 1
        if self.depth > self.limits.max_nesting:
            raise self.source.unsupported(
                f"groups nested deeper than {self.limits.max_nesting}", self.at, "nesting"
            )
        at = self.at
        options = [self._sequence()]
        while self.take_if("|"):
            options.append(self._sequence())
        self.depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options), at)

    def _sequence(self) -> Expression:
        items: list[Expression] = []
        self.skip_space()
        at = self.at
        while self._starts_item():
            if not self._skip_assertion():
                items.append(self._repeated())
            self.skip_space()
        return items[0] if len(items) == 1 else Sequence(tuple(items), at)

    def _starts_item(self) -> bool:
        char = self.peek()
        if char and char in '"[(.</':
            return True
        text = self.source.text
        return _NAME.match(text, self.at) is not None and _DEFINITION.match(text, self.at) is None

    def _skip_assertion(self) -> bool:
        if re.compile(r"\([ \t]*=").match(self.source.text, self.at) is None:
            return False
        self.at = self.source.text.index("=", self.at) + 1
        self.choice()
        if not self.take_if(")"):
            raise self.source.error("expected ')' after the look-ahead", self.at)
        return True

    def _repeated(self) -> Expression:
        at = self.at
        item = self._atom()
        while True:
            char = self.peek()
            if char and char in "?*+":
                self.at += 1
                low, high = {"?": (0, 1), "*": (0, None), "+": (1, None)}[char]
                item = Repeat(item, low, high, at)
            elif char == "{":
                item = self._counted(item, at)
            else:
                return item

    def _counted(self, item: Expression, at: int) -> Expression:
        found = _COUNT.match(self.source.text, self.at)
        if found is None or not (found[1] or found[3]) or len(found[0]) > 40:
            raise self.source.error("a count is written {3}, {3,}, {,5} or {3,5}", self.at)
        low = int(found[1] or "0")
        high = int(found[3]) if found[3] else None if found[2] else low
        if max(low, high or 0) > 1_000_000_000 or (high is not None and low > high):
            raise self.source.error(
                f"repetition {found[0]} runs backwards or is too large", self.at
            )
        self.at = found.end()
        return Repeat(item, low, high, at)

    def _atom(self) -> Expression:
        at = self.at
        if self.take_if("("):
            inner = self.choice()
            if not self.take_if(")"):
                raise self.source.error("group is not closed: expected ')'", at)
            return inner
        if self.take_if('"'):
            return Literal(self._until('"'), at=at)
        if self.take_if("["):
            return self._char_class(at)
        if self.take_if("."):
            return CharClass(charset.ALL, at)
        if self.peek() == "<":
            return self._special()
        if self.take_if("/"):
            return self._regex(at)
        return Ref(self.name("a rule, a text or a character class"), (), at)

    def _regex(self, at: int) -> Expression:
        """XGrammar writes regular expressions between slashes."""
        found = re.compile(r"(?:\\.|[^/\\\n])*").match(self.source.text, self.at)
        assert found is not None
        self.at = found.end()
        if not self.take_if("/"):
            raise self.source.error("a regular expression that is not closed: expected /", at)
        return Regex(found[0], at=at)

    def _special(self) -> Expression:
        """A special token: `<name>`, or `<[id]>` by its id, as in llama.cpp."""
        found = re.compile(r"<[^<>\s]+>").match(self.source.text, self.at)
        if found is None:
            raise self.source.error("a special token is written <name> or <[id]>", self.at)
        at, self.at = self.at, found.end()
        number = re.fullmatch(r"<\[([0-9]{1,9})\]>", found[0])
        if number is not None:
            return Special(None, ((int(number[1]), int(number[1])),), at=at)
        return Special(found[0], at=at)

    def _until(self, closing: str) -> str:
        start = self.at - 1
        out: list[str] = []
        while not self.take_if(closing):
            if self.peek() in ("", "\n"):
                raise self.source.error(f"a text that is not closed: expected {closing}", start)
            out.append(self._char())
        return "".join(out)

    def _char(self) -> str:
        char = self.peek()
        self.at += 1
        if char != "\\":
            return char
        letter = self.peek()
        self.at += 1
        if letter in _HEX_DIGITS:
            digits = self.source.text[self.at : self.at + _HEX_DIGITS[letter]]
            is_hex = re.fullmatch("[0-9A-Fa-f]+", digits) is not None
            if len(digits) < _HEX_DIGITS[letter] or not is_hex or int(digits, 16) > 0x10FFFF:
                raise self.source.error(
                    f"\\{letter} needs {_HEX_DIGITS[letter]} hexadecimal digits of a character",
                    self.at - 2,
                )
            self.at += len(digits)
            return chr(int(digits, 16))
        if letter == "" or (letter.isalnum() and letter not in _ESCAPES):
            raise self.source.error(f"unknown escape \\{letter}", self.at - 2)
        return _ESCAPES.get(letter, letter)

    def _char_class(self, start: int) -> Expression:
        negated = self.take_if("^")
        ranges: list[tuple[int, int]] = []
        while not self.take_if("]"):
            if self.peek() in ("", "\n"):
                raise self.source.error("a character class that is not closed: expected ]", start)
            low = high = ord(self._char())
            if self.peek() == "-" and self.source.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = ord(self._char())
            if low > high:
                raise self.source.error("the range runs backwards", self.at - 1)
            ranges.append((low, high))
        chars = charset.from_ranges(ranges)
        return CharClass(charset.complement(chars) if negated else chars, start)
