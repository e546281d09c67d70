"""A list of literal texts to a byte automaton: a trie, so that thousands of choices cost one node
per byte.
"""

from collections.abc import Sequence

import numpy as np

from umbel.grammar.automaton import ByteDfa, minimize, shared_columns
from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.limits import Limits


def literals_to_bytes(choices: Sequence[str], limits: Limits) -> ByteDfa:
    """Raises `GrammarError` for an empty list or a choice that is not text, `UnsupportedGrammar`
    over a limit.
    """
    encoded = _checked(choices, limits)
    transitions: dict[tuple[int, int], int] = {}
    ends = set()
    num_states = 1
    for text in encoded:
        state = 0
        for value in text:
            target = transitions.setdefault((state, value), num_states)
            num_states += target == num_states
            state = target
        ends.add(state)
    if num_states > limits.max_states:
        raise UnsupportedGrammar(
            f"the choices need {num_states} automaton states, more than the "
            f"{limits.max_states} allowed",
            keyword="choices",
        )
    used = sorted({value for _, value in transitions})
    column = {value: at for at, value in enumerate(used)}
    rows = np.full(
        (num_states + 1, len(used) + 1), num_states, np.int32
    )  # last column: unused bytes
    for (state, value), target in transitions.items():
        rows[state, column[value]] = target
    accepting = np.zeros(num_states + 1, bool)
    accepting[list(ends)] = True
    table, column_class = shared_columns(rows)
    byte_class = np.full(256, column_class[-1], np.uint8)
    byte_class[used] = column_class[:-1]
    return minimize(ByteDfa(byte_class, table, accepting))


def _checked(choices: Sequence[str], limits: Limits) -> list[bytes]:
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
