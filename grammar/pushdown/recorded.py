"""Heads whose future depends on the text itself: undeclared property names and items of unique
arrays, which must not come twice. The text is part of the thread until the leaf ends, and nothing
else changes.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from umbel.grammar.pushdown.leaves import Leaf
from umbel.grammar.pushdown.rules import Sequence


@dataclass(slots=True, eq=False)
class RecordedHead:
    """As `Head`, but what follows is `follow(tag, text)`, with all bytes that the leaf has read.

    follow(tag, None) stands for the future after a text that is nowhere known: the answer for
    closing costs, and for masks wherever no second text of the same kind fits into the rest of one
    token. It allows all that follow(tag, text) allows for every text, and a few texts more (equal
    ones again). tags: those whose future depends on the text, None: all; of the others
    follow(tag, None) is the whole truth.
    """

    leaf: Leaf
    follow: Callable[[int, bytes | None], Sequence]
    closing: Collection[int] | None = None
    tags: Collection[int] | None = None
