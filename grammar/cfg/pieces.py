"""Pieces of fixed text, some of which are single special tokens in some vocabularies and plain text
in others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from umbel.grammar.errors import GrammarError
from umbel.grammar.pushdown.build import literal, seq, special_token
from umbel.grammar.pushdown.rules import RuleState


@dataclass(frozen=True, slots=True)
class Piece:
    """A non-empty text; `may_be_token`: one special token where the model has one of this name."""

    text: str
    may_be_token: bool = False

    def is_special(self, special_ids: Mapping[str, int]) -> bool:
        return self.may_be_token and self.text in special_ids


Pieces = tuple[Piece, ...]


def read_pieces(value: Any, where: str) -> Pieces:
    """From JSON: a string, `{"token": "<name>"}`, or a list of both. Raises `GrammarError` at the
    pointer.
    """
    if isinstance(value, list):
        return tuple(p for n, part in enumerate(value) for p in read_pieces(part, f"{where}/{n}"))
    if isinstance(value, str):
        return (Piece(value),) if value else ()
    if isinstance(value, dict) and set(value) == {"token"} and isinstance(value["token"], str):
        return (Piece(value["token"], may_be_token=True),)
    raise GrammarError(
        f'expected a text, {{"token": "<name>"}} or a list of them, got {value!r:.100}', where
    )


def as_states(pieces: Pieces, special_ids: Mapping[str, int]) -> RuleState:
    return seq(*(fixed(*part) for part in merged(pieces, special_ids)))


def fixed(text: str, token_id: int | None) -> RuleState:
    """One part of `merged`."""
    return literal(text) if token_id is None else special_token((token_id,))


def merged(pieces: Pieces, special_ids: Mapping[str, int]) -> list[tuple[str, int | None]]:
    """Texts side by side as one; (text, None), or (name, id) of a special token."""
    found: list[tuple[str, int | None]] = []
    for piece in pieces:
        if piece.is_special(special_ids):
            found.append((piece.text, special_ids[piece.text]))
        elif found and found[-1][1] is None:
            found[-1] = (found[-1][0] + piece.text, None)
        else:
            found.append((piece.text, None))
    return found


def rest_after(pieces: Pieces, trigger: Piece, special_ids: Mapping[str, int]) -> Pieces | None:
    """What is left of the pieces behind a trigger that they begin with; None: they don't."""
    if trigger.is_special(special_ids):
        if pieces and pieces[0].is_special(special_ids) and pieces[0].text == trigger.text:
            return pieces[1:]
        return None
    missing = trigger.text
    for number, piece in enumerate(pieces):
        if piece.is_special(special_ids):
            return None
        if piece.text.startswith(missing):
            rest = piece.text[len(missing) :]
            return (*((Piece(rest),) if rest else ()), *pieces[number + 1 :])
        if not missing.startswith(piece.text):
            return None
        missing = missing[len(piece.text) :]
    return None
