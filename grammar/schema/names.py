"""The leaves that read the property names of an object, behind their opening quotes.

Sets of declared names are bits, numbered in the order of their spelled texts, which is the order of
the literals of one leaf of all of them. What is left of the names after some have come is a
selection of that leaf: made without looking at every name, and read along with the whole.
"""

from collections.abc import Iterable

from umbel.grammar.pushdown.leaves import (
    NO_TAG,
    Leaf,
    LiteralLeaf,
    OverrideLeaf,
    SelectedLeaf,
    literal_leaf,
    override_leaf,
)
from umbel.grammar.regex import languages
from umbel.grammar.regex.chardfa import CharDfa
from umbel.grammar.schema.spelling import name_leaf


class NameLeaves:
    """names: declared ones that may come, spelled with their quotes, by position. impossible:
    declared ones that may not come.

    bits: [N] the bit of each name. from_bits: [N + 1] those of all names from a position on.
    """

    def __init__(self, names: list[bytes], impossible: list[bytes]) -> None:
        names, impossible = _opened(names), _opened(impossible)
        self._names = names
        self._impossible = impossible
        number_of = {text: number for number, text in enumerate(sorted((*names, *impossible)))}
        self.bits = [1 << number_of[text] for text in names]
        self.from_bits = [0] * (len(names) + 1)
        for at in reversed(range(len(names))):
            self.from_bits[at] = self.from_bits[at + 1] | self.bits[at]
        self._single: dict[int, Leaf] = {}
        self._declared: LiteralLeaf | None = None
        self._any: dict[frozenset[bytes], OverrideLeaf] = {}
        self._selected: dict[tuple[LiteralLeaf | OverrideLeaf, int], Leaf] = {}

    def single(self, position: int) -> Leaf:
        """One declared name."""
        found = self._single.get(position)
        if found is None:
            found = self._single[position] = literal_leaf(self._names[position])
        return found

    def declared(self, chosen: int) -> Leaf:
        """The chosen names, at least one, each with its position as the tag."""
        whole = self._declared
        if whole is None:
            texts = (*self._names, *self._impossible)
            whole = self._declared = literal_leaf((text, at) for at, text in enumerate(texts))
        return self._selection(whole, chosen)

    def any_name(self, chosen: int, extras: frozenset[bytes]) -> Leaf:
        """The chosen names with 1 + their positions as tags, and all that are not declared and not
        in `extras` (spelled with quotes) with tag 0.
        """
        whole = self._any.get(extras)
        if whole is None:
            literals = dict(self._banned(extras))
            literals.update((text, at) for at, text in enumerate(self._names, 1))
            leaf = override_leaf(name_leaf(languages.ANY_TEXT), literals.items())
            assert isinstance(leaf, OverrideLeaf)
            whole = self._any[extras] = leaf
        if extras:
            chosen = self._among(whole, chosen)
        return self._selection(whole, chosen)

    def undeclared(self, language: CharDfa, extras: frozenset[bytes]) -> Leaf:
        """The names of a language that are not declared and not in `extras`."""
        return override_leaf(name_leaf(language), self._banned(extras))

    def _banned(self, extras: Iterable[bytes]) -> list[tuple[bytes, int]]:
        texts = (*self._names, *self._impossible, *_opened(extras))
        return [(text, NO_TAG) for text in texts]

    def _among(self, whole: OverrideLeaf, chosen: int) -> int:
        """The bits of chosen names where undeclared ones are among the literals."""
        texts = {text for text, bit in zip(self._names, self.bits, strict=True) if bit & chosen}
        return sum(1 << at for at, (text, _) in enumerate(whole.literals) if text in texts)

    def _selection(self, whole: LiteralLeaf | OverrideLeaf, chosen: int) -> Leaf:
        if chosen == (1 << len(whole.literals)) - 1:
            return whole
        key = (whole, chosen)
        found = self._selected.get(key)
        if found is None:
            found = self._selected[key] = SelectedLeaf(whole, chosen)
        return found


def _opened(spelled: Iterable[bytes]) -> list[bytes]:
    """Behind their opening quotes."""
    return [text[1:] for text in spelled]
