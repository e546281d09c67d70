"""The tokens and text of a branch: a persistent list that forks share without copying.

A branch holds only its last segment; appending makes a new segment that points to the one before.
"""

from collections.abc import Sequence


class Segment:
    """Tokens with the text they spell, appended after `parent`."""

    __slots__ = ("_flat", "num_tokens", "parent", "text", "token_ids")

    def __init__(self, parent: "Segment | None", token_ids: Sequence[int], text: str) -> None:
        self.parent = parent
        self.token_ids = tuple(token_ids)
        self.text = text
        self.num_tokens: int = len(self.token_ids) + (
            parent.num_tokens if parent is not None else 0
        )
        self._flat: list[int] | None = None

    def flatten(self, *, keep: bool = False) -> list[int]:
        """All tokens from the start to here. `keep`: remember the list (where many branches part).

        The caller must not change a list that was kept.
        """
        tail: list[tuple[int, ...]] = []
        node: Segment | None = self
        while node is not None and node._flat is None:
            tail.append(node.token_ids)
            node = node.parent
        base = node._flat if node is not None else None
        if base is not None and not tail:
            return base
        flat = list(base) if base is not None else []
        for token_ids in reversed(tail):
            flat.extend(token_ids)
        if keep:
            self._flat = flat
        return flat


def text_between(start: Segment | None, end: Segment | None) -> str:
    """The text after `start` (None: from the beginning) up to and with `end`."""
    pieces: list[str] = []
    node = end
    while node is not start:
        assert node is not None, "start is not an ancestor of end"
        pieces.append(node.text)
        node = node.parent
    return "".join(reversed(pieces))
