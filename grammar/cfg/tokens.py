"""The Lark dialect's text to tokens. Line ends count only where a definition or directive
begins.
"""

import re
from dataclasses import dataclass

from umbel.grammar.cfg.source import Source

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n\f]+ | //[^\n]* | \#[^\n]*)
  | (?P<string>"(?:\\.|[^"\\\n])*"i?)
  | (?P<regex>/(?![/*])(?:\\.|[^/\\])*/[imslux]*)
  | (?P<directive>%[A-Za-z_]+)
  | (?P<special><[^<>\s]+>)
  | (?P<name>[A-Za-z_](?:[A-Za-z0-9_]|-(?!>))*)
  | (?P<number>-?[0-9]+)
  | (?P<mark>->|\.\.|::|[:|()\[\]{}?*+~.,&@=!])
    """,
    re.VERBOSE | re.DOTALL,
)

# Between a name and the colon that makes it a definition may stand template parameters, options
# and a priority.
_DEFINITION = re.compile(
    r"""
    [?!]{0,2} [A-Za-z_](?:[A-Za-z0-9_-])*
    (?:\{[^}\n:]*\})?
    [ \t]*(?:\[(?:"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])*/|[^]"/\n])*\])?
    [ \t]*(?:\.[ \t]*-?[0-9]+)?
    [ \t]*:
    """,
    re.VERBOSE,
)

_MISREAD = {
    '"': 'a string that is not closed: expected "',
    "'": 'strings are written with "',
    "/": "a regular expression that is not closed: expected /",
    "<": "a special token is written <name>, without spaces",
}


@dataclass(frozen=True, slots=True)
class Token:
    """kind: string, regex, directive, special, name, number, mark (its own text), define or end."""

    kind: str
    text: str
    at: int


class Tokens:
    """A reader over the text with one token of lookahead; `skip_to` lets others read a part of
    it.
    """

    def __init__(self, source: Source, at: int = 0) -> None:
        self.source = source
        self._next = self._read(at, at_line_start=True)

    @property
    def at(self) -> int:
        return self._next.at

    def peek(self) -> Token:
        return self._next

    def take(self) -> Token:
        token = self._next
        if token.kind != "end":
            # A definition's name is read again as a plain name.
            self._next = self._read(token.at + len(token.text), at_line_start=False)
        return token

    def take_if(self, kind: str) -> Token | None:
        return self.take() if self._next.kind == kind else None

    def expect(self, kind: str, what: str) -> Token:
        if self._next.kind != kind:
            raise self.source.error(f"expected {what}, got {self.shown()}", self._next.at)
        return self.take()

    def skip_to(self, at: int) -> None:
        self._next = self._read(at, at_line_start=False)

    def expect_definition(self) -> None:
        """The next token may begin a definition though it does not begin a line."""
        self._next = self._read(self._next.at, at_line_start=True)

    def shown(self) -> str:
        token = self._next
        if token.kind == "end":
            return "the end of the grammar"
        if token.kind == "define":
            return f"the definition of {token.text.lstrip('?!')}"
        return repr(token.text[:40])

    def _read(self, at: int, *, at_line_start: bool) -> Token:
        text = self.source.text
        while True:
            if at >= len(text):
                return Token("end", "", len(text))
            if at_line_start and (found := _DEFINITION.match(text, at)) is not None:
                name = re.match(r"[?!]{0,2}[A-Za-z_][A-Za-z0-9_-]*", found[0])
                assert name is not None
                return Token("define", name[0], at)
            match = _TOKEN.match(text, at)
            if match is None:
                message = _MISREAD.get(text[at], f"unexpected character {text[at]!r}")
                raise self.source.error(message, at)
            kind = match.lastgroup
            assert kind is not None
            if kind != "space":
                return Token(match[0] if kind == "mark" else kind, match[0], at)
            at_line_start = at_line_start or "\n" in match[0]
            at = match.end()
