"""The right-hand sides of rules and terminals: a small tree that every front end reads its text
into.

`at` is the offset in the grammar's text, for errors; it does not take part in comparisons, so that
equal expressions are equal wherever they stand.
"""

from dataclasses import dataclass, field

from umbel.grammar.cfg.source import Source
from umbel.grammar.regex.charset import CharSet


@dataclass(frozen=True, slots=True)
class Literal:
    """A fixed text."""

    text: str
    ignore_case: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression in the syntax of `regex.parser`; flags as in Python: i, m, s, x, u."""

    pattern: str
    flags: str = ""
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class CharClass:
    """One character out of a set."""

    chars: CharSet
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Substring:
    """Any run of consecutive chunks joined together, the empty one included."""

    chunks: tuple[str, ...]
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Special:
    """One special token: by name (`<|eot|>`), or one out of inclusive ranges of ids."""

    name: str | None
    ranges: tuple[tuple[int, int], ...] = ()
    negated: bool = False
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON value valid under a schema, kept as JSON text so that expressions can be hashed."""

    json_text: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Nested:
    """Another grammar with its own rules, terminals and ignored text."""

    grammar: "Grammar"
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Named:
    """Another grammar given by name beside the text: `@name`."""

    name: str
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Ref:
    """A rule or a terminal; `arguments` when it is a template."""

    name: str
    arguments: tuple["Expression", ...] = ()
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple["Expression", ...]
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple["Expression", ...]
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Repeat:
    """Between `low` and `high` times; `high=None`: without bound."""

    item: "Expression"
    low: int
    high: int | None
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Both:
    """The texts of the left that are also texts of the right (terminals only)."""

    left: "Expression"
    right: "Expression"
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Not:
    """Every text that the item does not match (terminals only)."""

    item: "Expression"
    at: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Whole:
    """One terminal out of the body of a rule with options: `item`, then `ending`.

    is_lazy: its shortest match ends it. max_tokens: how many tokens may write it.
    """

    item: "Expression"
    ending: "Expression | None"
    is_lazy: bool
    max_tokens: int | None
    at: int = field(default=0, compare=False)


Expression = (
    Literal
    | Regex
    | CharClass
    | Substring
    | Special
    | Schema
    | Nested
    | Named
    | Ref
    | Sequence
    | Choice
    | Repeat
    | Both
    | Not
    | Whole
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What stands in brackets behind a rule's name.

    ending: the text or terminal at which the rule ends (`suffix`, `stop`). capture, ending_capture:
    names for the rule's text without its ending, and for the ending.
    """

    lazy: bool = False
    ending: Expression | None = None
    max_tokens: int | None = None
    capture: str | None = None
    ending_capture: str | None = None

    @property
    def make_terminal(self) -> bool:
        """Whether the rule is read as one terminal."""
        return self.lazy or self.max_tokens is not None

    @property
    def is_captured(self) -> bool:
        return self.capture is not None or self.ending_capture is not None


@dataclass(frozen=True, slots=True)
class Definition:
    """A rule or a terminal. `params`: the names of a template's parameters."""

    name: str
    body: Expression
    params: tuple[str, ...] = ()
    priority: int = 0
    options: Options = Options()
    at: int = 0


@dataclass(slots=True, eq=False)
class Grammar:
    """One grammar as it was written: definitions by name, and what may stand between terminals.

    scannerless: terminals have no longest match; texts are concatenated as they are (GBNF).
    """

    source: Source
    rules: dict[str, Definition] = field(default_factory=dict)
    terminals: dict[str, Definition] = field(default_factory=dict)
    ignored: list[Expression] = field(default_factory=list)
    start: str = "start"
    scannerless: bool = False
