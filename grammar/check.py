"""What can be said about a grammar before it is used: a verdict, an example, where a text fails.

The core of `umbel grammar check` and of the server's route.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from umbel.grammar.errors import GrammarError, UnsatisfiableGrammar, UnsupportedGrammar
from umbel.grammar.machine import TokenMachine
from umbel.grammar.matcher import Constraint
from umbel.grammar.pushdown.configs import Config

Verdict = Literal["exact", "relaxed", "refused", "unsatisfiable", "invalid"]

_MAX_EXAMPLE_TOKENS = 1_000
_MAX_SHOWN_BYTES = 40  # of one text that could have come
_MAX_SHOWN_TEXTS = 12  # beyond, only the first bytes are shown


@dataclass(frozen=True, slots=True)
class GrammarReport:
    """verdict: `exact`: outputs follow the grammar exactly; `relaxed`: but for `warnings`;
    `refused` (with message, keyword and where), `unsatisfiable` or `invalid`.

    where: a JSON Pointer ("" is the root), "line:column" or "offset N". The rest is None without a
    constraint. num_states: the places and stacks made so far; they are made as texts reach them.
    min_tokens: an upper bound on the tokens of the shortest output. example: a short output; None
    also when that would need more than 1,000 tokens.
    """

    verdict: Verdict
    compile_ms: float
    message: str | None = None
    where: str | None = None
    keyword: str | None = None
    warnings: tuple[str, ...] = ()
    constraint: Constraint | None = None
    min_tokens: int | None = None
    example: str | None = None

    @property
    def num_states(self) -> int | None:
        return None if self.constraint is None else self.constraint.machine.num_states


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """Whether a text is one of the grammar. If not: where its first byte that does not fit stands.

    offset: in bytes; line and column (in characters) count from 1. expected: what could have come
    instead, as texts (quoted as in Python), ranges of characters, or "the end".
    """

    is_accepted: bool
    offset: int
    line: int
    column: int
    expected: tuple[str, ...] = ()


def check_grammar(compile_it: Callable[[], Constraint]) -> GrammarReport:
    """The verdict on what a compilation gives or raises as `GrammarError`."""
    started_s = time.perf_counter()
    try:
        constraint = compile_it()
        compile_ms = _ms_since(started_s)
        min_tokens, example = constraint.start().closing_cost, example_of(constraint)
    except GrammarError as error:
        return GrammarReport(
            _verdict_of(error), _ms_since(started_s), error.message, error.where, error.keyword
        )
    return GrammarReport(
        verdict="relaxed" if constraint.warnings else "exact",
        compile_ms=compile_ms,
        warnings=constraint.warnings,
        constraint=constraint,
        min_tokens=min_tokens,
        example=example,
    )


def _ms_since(started_s: float) -> float:
    return round((time.perf_counter() - started_s) * 1e3, 3)


def _verdict_of(error: GrammarError) -> Verdict:
    if isinstance(error, UnsupportedGrammar):
        return "refused"
    return "unsatisfiable" if isinstance(error, UnsatisfiableGrammar) else "invalid"


def example_of(constraint: Constraint) -> str | None:
    """A text of the grammar, as short as closing costs can tell; readable where there is a
    choice.
    """
    matcher = constraint.start()
    vocabulary = constraint.machine.vocabulary
    if matcher.closing_cost > _MAX_EXAMPLE_TOKENS:
        return None
    row = np.zeros(vocabulary.num_words, np.uint32)
    names = {token_id: name for name, token_id in vocabulary.special_ids.items()}
    found = bytearray()
    while not matcher.accepting:
        matcher.fill_mask(row, budget=matcher.closing_cost)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        texts = {token_id: vocabulary.text_of(token_id) or b"" for token_id in allowed}
        token_id = min(allowed, key=lambda i: (_strangeness(texts[i]), len(texts[i]), i))
        is_taken = matcher.advance(token_id)
        assert is_taken, "a mask allows what the matcher does not take"
        found += texts[token_id] or names.get(token_id, f"<[{token_id}]>").encode()
    return found.decode("utf-8", "replace")


def _strangeness(text: bytes) -> int:
    if text.isalnum() and text.isascii():
        return 0
    return 1 if text.isascii() and text.decode().isprintable() else 2


def check_instance(constraint: Constraint, text: str | bytes) -> InstanceReport:
    """Reads a text byte by byte, whatever tokens there are. Special tokens are not looked for.

    Raises `UnsupportedGrammar` for a text that can be read in too many ways at once.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    machine = constraint.machine
    place = machine.start
    for offset, value in enumerate(data):
        after = machine.move_byte(place, value)
        if after is None:
            return _failed(machine, data, offset, place)
        place = after
    if machine.is_accepting(place):
        return InstanceReport(True, len(data), *_position(data, len(data)))
    return _failed(machine, data, len(data), place)


def _failed(machine: TokenMachine, data: bytes, offset: int, place: Config) -> InstanceReport:
    expected = ["the end"] if machine.is_accepting(place) else []
    values = sorted(machine.next_bytes(place))
    if len(values) <= _MAX_SHOWN_TEXTS:
        for value in values:
            after = machine.move_byte(place, value)
            assert after is not None
            rest, _ = machine.forced_bytes(after, _MAX_SHOWN_BYTES - 1)
            expected.append(repr((bytes([value]) + rest).decode("utf-8", "replace")))
    else:
        expected += _ranges(values)
    return InstanceReport(False, offset, *_position(data, offset), tuple(expected))


def _position(data: bytes, offset: int) -> tuple[int, int]:
    """Line and column of a byte."""
    before = data[:offset].decode("utf-8", "ignore")
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _ranges(values: Sequence[int]) -> list[str]:
    """Single bytes and runs of them; what begins characters beyond ASCII is one entry."""
    shown = []
    ascii_values = [value for value in values if value < 0x80]
    for _, run in groupby(enumerate(ascii_values), lambda pair: pair[1] - pair[0]):
        members = [value for _, value in run]
        if len(members) < 3:
            shown += [repr(chr(value)) for value in members]
        else:
            shown.append(f"{chr(members[0])!r} to {chr(members[-1])!r}")
    if len(ascii_values) < len(values):
        shown.append("characters beyond ASCII")
    return shown
