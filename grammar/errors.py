"""What the grammar compiler raises. The runtime translates these once, when a request is admitted.

GrammarError                the text of the grammar is wrong
├── CompileCancelled        stopped from outside; says nothing about the grammar
├── UnsupportedGrammar      valid, but not enforceable exactly (or over a budget): refused by name
└── UnsatisfiableGrammar    valid, but no output can ever satisfy it
"""


class GrammarError(ValueError):
    """A grammar that cannot be used.

    `where` is a JSON Pointer (schemas), "line:column" or "offset N" (patterns), or None. `keyword`
    names the schema keyword or syntax element at fault, or is None.
    """

    def __init__(
        self, message: str, where: str | None = None, *, keyword: str | None = None
    ) -> None:
        super().__init__(message if where is None else f"{message} (at {where or 'the root'})")
        self.message = message
        self.where = where
        self.keyword = keyword


class CompileCancelled(GrammarError):
    """The caller said so (a deadline, a client that left); says nothing about the grammar."""


class UnsupportedGrammar(GrammarError):
    """A valid grammar that this version cannot enforce exactly, and therefore refuses."""


class UnsatisfiableGrammar(GrammarError):
    """A valid grammar whose language is empty, or empty for the tokens of this vocabulary."""
