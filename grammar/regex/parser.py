"""Pattern text to syntax tree: the common syntax of Python's `re` and Rust's `regex`, and ECMA-262.

What a finite automaton cannot do, or what engines read differently, is refused by name and offset.
"""

from dataclasses import dataclass, replace

from umbel.grammar.errors import GrammarError
from umbel.grammar.limits import Limits
from umbel.grammar.regex import syntax, unicode
from umbel.grammar.regex.classes import Dialect, Scanner, dot, read_class, read_escape
from umbel.grammar.regex.syntax import EPSILON, Anchor, AnchorKind, Node


@dataclass(frozen=True, slots=True)
class _Flags:
    ignore_case: bool = False  # i
    dot_all: bool = False  # s
    multi_line: bool = False  # m
    verbose: bool = False  # x
    ascii_only: bool = False  # a


_FLAG_NAMES = {
    "i": "ignore_case",
    "s": "dot_all",
    "m": "multi_line",
    "x": "verbose",
    "a": "ascii_only",
}
_REFUSED_GROUPS = {
    "?=": "look-ahead (?=...)",
    "?!": "negative look-ahead (?!...)",
    "?<=": "look-behind (?<=...)",
    "?<!": "negative look-behind (?<!...)",
    "?>": "atomic group (?>...)",
    "?P=": "back-reference (?P=...)",
    "?(": "conditional (?(...)...)",
    "?|": "branch reset (?|...)",
    "?R": "recursion (?R)",
    "?&": "recursion (?&...)",
}


def parse_regex(
    pattern: str, *, dialect: Dialect = Dialect.RE, limits: Limits | None = None
) -> Node:
    """Parse a whole pattern. Its anchors refer to the ends of the text that it is matched against.

    Raises `GrammarError` for wrong syntax and `UnsupportedGrammar` for what is refused, with
    "offset N".
    """
    limits = limits or Limits()
    if len(pattern) > limits.max_source_chars:
        raise GrammarError(
            f"regex of {len(pattern)} characters is longer than the "
            f"{limits.max_source_chars} allowed"
        )
    return syntax.scope(_Parser(Scanner(pattern, dialect), limits).parse())


class _Parser:
    def __init__(self, scan: Scanner, limits: Limits) -> None:
        self.scan = scan
        self.limits = limits
        self.flags = _Flags()
        self.depth = 0

    def parse(self) -> Node:
        node = self._alternatives()
        if self.scan.pos < len(self.scan.text):
            raise self.scan.error("')' without '('")
        return node

    def _alternatives(self) -> Node:
        options = [self._sequence()]
        while self.scan.take_if("|"):
            options.append(self._sequence())
        return syntax.alt(options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while True:
            self._skip_comments()
            if self.scan.peek() in ("", "|", ")"):
                return syntax.cat(parts)
            start = self.scan.pos
            node = self._quantified(self._atom(), start)
            if node.size > self.limits.max_nodes:
                raise self.scan.unsupported(
                    f"unrolls to {node.size} character positions, more than the "
                    f"{self.limits.max_nodes} allowed; use smaller repetition counts",
                    "repetition",
                    start,
                )
            parts.append(node)

    def _skip_comments(self) -> None:
        scan = self.scan
        while True:
            if self.flags.verbose and scan.peek() != "" and scan.peek() in " \t\n\r\f\v":
                scan.pos += 1
            elif self.flags.verbose and scan.peek() == "#":
                end = scan.text.find("\n", scan.pos)
                scan.pos = len(scan.text) if end < 0 else end + 1
            elif scan.dialect is Dialect.RE and scan.take_if("(?#"):
                scan.take_until(")", "comment (?#...)")
            else:
                return

    def _atom(self) -> Node:
        scan = self.scan
        start = scan.pos
        char = scan.take()
        if char == "(":
            return self._group(start)
        if char == "[":
            flags = self.flags
            members = read_class(scan, ascii_only=flags.ascii_only, ignore_case=flags.ignore_case)
            return syntax.chars(members)
        if char == ".":
            return syntax.chars(dot(scan.dialect, dot_all=self.flags.dot_all))
        if char in "^$":
            if self.flags.multi_line:
                raise scan.unsupported("a multi-line anchor under (?m)", "(?m)", start)
            return Anchor(AnchorKind.START if char == "^" else AnchorKind.END)
        if char == "\\":
            return self._escape(start)
        if char in "*+?":
            raise scan.error(f"nothing to repeat before {char!r}", start)
        if 0xD800 <= ord(char) <= 0xDFFF:
            raise scan.unsupported("a surrogate, which no UTF-8 text can hold", "surrogate", start)
        return self._cased(((ord(char), ord(char)),))

    def _escape(self, start: int) -> Node:
        scan = self.scan
        char = scan.peek()
        if scan.dialect is Dialect.RE and char in ("A", "z", "Z"):
            scan.pos += 1
            return Anchor(AnchorKind.START if char == "A" else AnchorKind.END)
        if char in ("b", "B"):
            raise scan.unsupported(f"word boundary \\{char} is not supported", f"\\{char}", start)
        is_reference = char in ("k", "g") or (char != "" and char in "123456789")
        if is_reference:
            raise scan.unsupported(f"back-reference \\{char} is not supported", "\\" + char, start)
        members = read_escape(scan, ascii_only=self.flags.ascii_only, in_class=False)
        return self._cased(members)

    def _cased(self, members: tuple[tuple[int, int], ...]) -> Node:
        return syntax.chars(unicode.fold_case(members) if self.flags.ignore_case else members)

    def _group(self, start: int) -> Node:
        scan = self.scan
        self.depth += 1
        if self.depth > self.limits.max_nesting:
            raise scan.unsupported(
                f"groups nested deeper than {self.limits.max_nesting}", "nesting", start
            )
        outer_flags = self.flags
        if scan.take_if("?") and self._group_prefix(start):
            self.depth -= 1
            return EPSILON  # flags for the rest of the enclosing group
        node = self._alternatives()
        if not scan.take_if(")"):
            raise scan.error("group is not closed: expected ')'", start)
        self.flags = outer_flags
        self.depth -= 1
        return node

    def _group_prefix(self, start: int) -> bool:
        """Read what follows `(?`; True when it was `(?flags)`, which has no body."""
        scan = self.scan
        rest = scan.text[start + 1 : start + 4]
        for prefix, name in sorted(_REFUSED_GROUPS.items(), key=lambda item: -len(item[0])):
            if rest.startswith(prefix):
                raise scan.unsupported(f"{name} is not supported", f"({prefix}", start)
        if scan.take_if(":"):
            return False
        if scan.take_if("P<") or scan.take_if("<"):
            name = scan.take_until(">", "group name")
            if not name.isidentifier():
                raise scan.error(f"bad group name {name!r}", start)
            return False
        return self._inline_flags(start)

    def _inline_flags(self, start: int) -> bool:
        scan = self.scan
        switched_on = True
        while True:
            char = scan.take()
            if char == "-" and switched_on:
                switched_on = False
            elif char in _FLAG_NAMES:
                self.flags = replace(self.flags, **{_FLAG_NAMES[char]: switched_on})
            elif char == "u" and switched_on:
                self.flags = replace(self.flags, ascii_only=False)
            elif char == ":":
                return False
            elif char == ")":
                return True
            elif char != "" and char.isalpha():
                raise scan.unsupported(f"flag {char!r} is not supported", f"(?{char})", start)
            else:
                raise scan.error("unknown group syntax", start)

    def _quantified(self, node: Node, start: int) -> Node:
        """Apply one quantifier. A lazy one denotes the same language, since the whole text must
        match.
        """
        scan = self.scan
        self._skip_comments()
        bounds = self._bounds()
        if bounds is None:
            return node
        if scan.peek() == "+":
            raise scan.unsupported("a possessive quantifier is not supported", "possessive")
        scan.take_if("?")
        self._skip_comments()
        at = scan.pos
        if self._bounds() is not None:
            raise scan.error("multiple repeat; put the inner one into a group", at)
        low, high = bounds
        if high is not None and low > high:
            raise scan.error(f"repetition {{{low},{high}}} runs backwards", start)
        if node == EPSILON or (isinstance(node, Anchor) and low > 0):
            return node
        return syntax.repeat(node, low, high)

    def _bounds(self) -> tuple[int, int | None] | None:
        scan = self.scan
        char = scan.peek()
        if char != "" and char in "*+?":
            scan.pos += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        if char != "{":
            return None
        end = scan.text.find("}", scan.pos)
        low, comma, high = scan.text[scan.pos + 1 : end].partition(",") if end > 0 else ("", "", "")
        digits = low + high
        needs_low = scan.dialect is Dialect.ECMA
        if not digits.isdecimal() or not digits.isascii() or (needs_low and not low):
            return None  # a brace that is no quantifier is a literal, as in re and ECMA
        scan.pos = end + 1
        if len(low) > 9 or len(high) > 9:
            raise scan.unsupported("a repetition count above 999,999,999", "repetition")
        least = int(low or "0")
        return least, (int(high) if high else None) if comma else least
