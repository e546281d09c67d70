"""A grammar's text and the places in it: every error shows line, column and a caret below the
place.
"""

from dataclasses import dataclass

from umbel.grammar.errors import GrammarError, UnsatisfiableGrammar, UnsupportedGrammar

_CONTEXT_CHARS = 60  # shown on either side of the place


@dataclass(frozen=True, slots=True)
class Source:
    text: str

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1."""
        at = min(max(at, 0), len(self.text))
        return self.text.count("\n", 0, at) + 1, at - (self.text.rfind("\n", 0, at) + 1) + 1

    def error(self, message: str, at: int) -> GrammarError:
        return GrammarError(*self.described(message, at))

    def unsupported(self, message: str, at: int, keyword: str) -> UnsupportedGrammar:
        return UnsupportedGrammar(*self.described(message, at), keyword=keyword)

    def unsatisfiable(self, message: str, at: int) -> UnsatisfiableGrammar:
        return UnsatisfiableGrammar(*self.described(message, at))

    def described(self, message: str, at: int) -> tuple[str, str]:
        """The message with the line and a caret below it, and the place as "line:column"."""
        line, column = self.place(at)
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        end = len(self.text) if end < 0 else end
        shown = self.text[max(start, at - _CONTEXT_CHARS) : min(end, at + _CONTEXT_CHARS)]
        caret = " " * (at - max(start, at - _CONTEXT_CHARS)) + "^"
        return f"{message}\n    {shown}\n    {caret}\n", f"{line}:{column}"
