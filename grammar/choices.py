"""A list of literal texts, checked. As a grammar it is one leaf of literals."""

from collections.abc import Sequence

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.limits import Limits


def checked_choices(choices: Sequence[str], limits: Limits) -> list[bytes]:
    """The distinct texts in UTF-8, sorted.

    Raises `GrammarError` for an empty list or a choice that is not text, `UnsupportedGrammar` over
    a limit.
    """
    if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError(f"choices must be a list of strings, got {choices!r:.200}")
    if not choices:
        raise GrammarError("choices is empty: give at least one text")
    total = sum(map(len, choices))
    if total > limits.max_source_chars:
        raise UnsupportedGrammar(
            f"choices of {total} characters together, more than the "
            f"{limits.max_source_chars} allowed",
            keyword="choices",
        )
    try:
        return sorted({choice.encode() for choice in choices})
    except UnicodeEncodeError as exc:
        raise GrammarError(f"a choice holds a surrogate, which no UTF-8 text can: {exc}") from exc
