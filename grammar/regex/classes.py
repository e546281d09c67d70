"""Escapes and bracket classes of a pattern: what denotes one character or a set of them."""

import string
import unicodedata
from enum import Enum

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.regex import charset, unicode
from umbel.grammar.regex.charset import CharSet


class Dialect(Enum):
    """Whose reading of an ambiguous construct applies."""

    RE = "re"  # Python's `re` and Rust's `regex`: Unicode classes, `.` excludes \n only
    ECMA = "ecma"  # ECMA-262 as JSON Schema wants it: \d \w ASCII, `.` excludes four line ends


_SIMPLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_LINE_ENDS = {Dialect.RE: charset.of("\n"), Dialect.ECMA: charset.of("\n\r\u2028\u2029")}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_POSIX = {
    "alnum": charset.of(string.ascii_letters + string.digits),
    "alpha": charset.of(string.ascii_letters),
    "ascii": ((0, 127),),
    "blank": charset.of(" \t"),
    "cntrl": ((0, 31), (127, 127)),
    "digit": charset.of(string.digits),
    "graph": ((33, 126),),
    "lower": charset.of(string.ascii_lowercase),
    "print": ((32, 126),),
    "punct": charset.of(string.punctuation),
    "space": charset.of(" \t\n\r\f\v"),
    "upper": charset.of(string.ascii_uppercase),
    "word": unicode.WORD_ASCII,
    "xdigit": charset.of(string.hexdigits),
}


def dot(dialect: Dialect, *, dot_all: bool) -> CharSet:
    return charset.ALL if dot_all else charset.difference(charset.ALL, _LINE_ENDS[dialect])


def perl_class(letter: str, dialect: Dialect, *, ascii_only: bool) -> CharSet:
    """`\\d \\w \\s` and their complements `\\D \\W \\S`."""
    lower = letter.lower()
    if dialect is Dialect.ECMA and lower == "s":
        members = unicode.SPACE_ECMA
    elif dialect is Dialect.ECMA or ascii_only:
        members = {
            "d": unicode.DIGIT_ASCII,
            "w": unicode.WORD_ASCII,
            "s": unicode.SPACE_ASCII,
        }[lower]
    else:
        members = unicode.perl_class(lower)
    return members if letter == lower else charset.complement(members)


class Scanner:
    """The pattern text with a reading position; reports errors by offset."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text = text
        self.dialect = dialect
        self.pos = 0

    def peek(self, ahead: int = 0) -> str:
        """The next character, or "" at the end."""
        at = self.pos + ahead
        return self.text[at] if at < len(self.text) else ""

    def take(self) -> str:
        char = self.peek()
        self.pos += 1
        return char

    def take_if(self, expected: str) -> bool:
        if self.text.startswith(expected, self.pos):
            self.pos += len(expected)
            return True
        return False

    def take_until(self, closing: str, what: str) -> str:
        end = self.text.find(closing, self.pos)
        if end < 0:
            raise self.error(f"{what} is not closed: expected {closing!r}")
        found = self.text[self.pos : end]
        self.pos = end + len(closing)
        return found

    def error(self, message: str, at: int | None = None) -> GrammarError:
        return GrammarError(f"regex {self.text!r}: {message}", self._where(at))

    def unsupported(self, message: str, keyword: str, at: int | None = None) -> UnsupportedGrammar:
        return UnsupportedGrammar(
            f"regex {self.text!r}: {message}", self._where(at), keyword=keyword
        )

    def _where(self, at: int | None) -> str:
        return f"offset {self.pos if at is None else at}"


def read_escape(scan: Scanner, *, ascii_only: bool, in_class: bool) -> CharSet:
    """Read what follows a backslash that denotes characters; anchors and references are the
    parser's.
    """
    start = scan.pos - 1
    char = scan.take()
    if char == "":
        raise scan.error("ends with a lone backslash", start)
    if char in "dDwWsS":
        return perl_class(char, scan.dialect, ascii_only=ascii_only)
    if char in "pP":
        return _property(scan, negated=char == "P", start=start)
    if char in _SIMPLE_ESCAPES:
        return charset.of(_SIMPLE_ESCAPES[char])
    if char == "a" and scan.dialect is Dialect.RE:
        return charset.of("\a")
    if char == "b" and in_class:
        return charset.of("\b")
    if char in _HEX_DIGITS:
        return _code_point(scan, char, start)
    if char == "c" and scan.dialect is Dialect.ECMA and scan.peek() in set(string.ascii_letters):
        return charset.of(chr(ord(scan.take()) % 32))
    if char == "N" and scan.take_if("{"):
        return _named(scan, start)
    if char == "0" or (char in "1234567" and in_class):
        return _octal(scan, char, start)
    if char.isascii() and char.isalnum():
        raise scan.error(f"unknown escape \\{char}", start)
    return charset.of(char)


def _property(scan: Scanner, *, negated: bool, start: int) -> CharSet:
    name = scan.take_until("}", "\\p{...}") if scan.take_if("{") else scan.take()
    members = unicode.unicode_property(name)
    if members is None:
        raise scan.error(f"unknown Unicode property {name!r}", start)
    return charset.complement(members) if negated else members


def _code_point(scan: Scanner, letter: str, start: int) -> CharSet:
    if scan.take_if("{"):
        digits = scan.take_until("}", f"\\{letter}{{...}}")
    elif scan.dialect is Dialect.ECMA and letter == "U":
        raise scan.error("unknown escape \\U", start)
    else:
        digits = scan.text[scan.pos : scan.pos + _HEX_DIGITS[letter]]
        scan.pos += len(digits)
        if len(digits) != _HEX_DIGITS[letter]:
            digits = ""
    if not digits or not set(digits) <= set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
        raise scan.error(f"\\{letter} needs a hexadecimal code point up to 10FFFF", start)
    value = int(digits, 16)
    if 0xD800 <= value <= 0xDBFF and scan.text.startswith("\\u", scan.pos):
        low = scan.text[scan.pos + 2 : scan.pos + 6]
        if len(low) == 4 and set(low) <= set(string.hexdigits) and 0xDC00 <= int(low, 16) <= 0xDFFF:
            scan.pos += 6
            value = 0x10000 + ((value - 0xD800) << 10) + (int(low, 16) - 0xDC00)
    if charset.FIRST_SURROGATE <= value <= charset.LAST_SURROGATE:
        raise scan.unsupported(
            f"\\{letter}{digits} is a surrogate, which no UTF-8 text can hold", "surrogate", start
        )
    return ((value, value),)


def _named(scan: Scanner, start: int) -> CharSet:
    name = scan.take_until("}", "\\N{...}")
    try:
        return charset.of(unicodedata.lookup(name))
    except KeyError as exc:
        raise scan.error(f"unknown character name {name!r}", start) from exc


def _octal(scan: Scanner, first: str, start: int) -> CharSet:
    digits = first
    while len(digits) < 3 and scan.peek() in set("01234567"):
        digits += scan.take()
    if scan.dialect is Dialect.ECMA and digits != "0":
        raise scan.error(f"octal escape \\{digits} is not allowed here; use \\x", start)
    return ((int(digits, 8), int(digits, 8)),)


def read_class(scan: Scanner, *, ascii_only: bool, ignore_case: bool) -> CharSet:
    """Read a bracket class whose `[` was just taken."""
    start = scan.pos - 1
    negated = scan.take_if("^")
    members: list[CharSet] = []
    # In `re` a bracket that comes first is a member; in ECMA `[]` and `[^]` are nothing and
    # everything.
    first = scan.dialect is Dialect.RE
    while first or scan.peek() != "]":
        first = False
        if scan.peek() == "":
            raise scan.error("character class is not closed: expected ']'", start)
        members.append(_class_item(scan, ascii_only=ascii_only))
    scan.pos += 1
    chosen = charset.union(*members)
    if ignore_case:
        chosen = unicode.fold_case(chosen)
    return charset.complement(chosen) if negated else chosen


def _class_item(scan: Scanner, *, ascii_only: bool) -> CharSet:
    start = scan.pos
    if scan.take_if("[:"):
        return _posix_class(scan, start)
    if scan.text.startswith("&&", scan.pos):
        raise scan.unsupported(
            "class intersection && is read differently by different engines; "
            "write the class out, or \\& for the character",
            "&&",
        )
    low = _class_atom(scan, ascii_only=ascii_only)
    if scan.peek() != "-" or scan.peek(1) in ("]", ""):
        return low
    scan.pos += 1
    high = _class_atom(scan, ascii_only=ascii_only)
    singles = all(len(side) == 1 and side[0][0] == side[0][1] for side in (low, high))
    if not singles:
        if scan.dialect is Dialect.ECMA:  # [\w-.]: a set beside a dash makes the dash a member
            return charset.union(low, charset.of("-"), high)
        raise scan.error("a range needs single characters on both sides of '-'", start)
    if low[0][0] > high[0][0]:
        raise scan.error("the range runs backwards", start)
    return charset.from_ranges([(low[0][0], high[0][0])])


def _class_atom(scan: Scanner, *, ascii_only: bool) -> CharSet:
    char = scan.take()
    if char == "\\":
        return read_escape(scan, ascii_only=ascii_only, in_class=True)
    if charset.FIRST_SURROGATE <= ord(char) <= charset.LAST_SURROGATE:
        raise scan.unsupported("a surrogate, which no UTF-8 text can hold", "surrogate")
    return charset.of(char)


def _posix_class(scan: Scanner, start: int) -> CharSet:
    negated = scan.take_if("^")
    name = scan.take_until(":]", "POSIX class")
    if name not in _POSIX:
        raise scan.error(f"unknown POSIX class {name!r}; known are {', '.join(_POSIX)}", start)
    return charset.complement(_POSIX[name]) if negated else _POSIX[name]
