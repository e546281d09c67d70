"""What a set of JSON values looks like: for every type a union of atoms whose contents are
terms.
"""

from dataclasses import dataclass, replace

from umbel.grammar.values.fields import Fields, Items
from umbel.grammar.values.numbers import NO_NUMBERS, NumberSet
from umbel.grammar.values.strings import NO_STRINGS, StringSet


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """The number of positions i whose item lies in `items.at(i)` is between `low` and `high`."""

    items: Items
    low: int = 1
    high: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ArrayAtom:
    """unique: True: no two items are equal; False: some two are; None: does not matter."""

    items: Items
    low: int = 0
    high: int | None = None
    counted: tuple[Counted, ...] = ()
    unique: bool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ObjectAtom:
    """some: for each of these fields, at least one property lies in them. implies: (name, the
    names it requires).
    """

    fields: Fields
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    some: tuple[Fields, ...] = ()
    implies: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """booleans: those in the set. Made and combined by `algebra.Algebra`."""

    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: NumberSet = NO_NUMBERS
    strings: StringSet = NO_STRINGS
    arrays: tuple[ArrayAtom, ...] = ()
    objects: tuple[ObjectAtom, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """No atom is left. An atom may still be empty because of its contents: see `emptiness`."""
        return not (
            self.null
            or self.booleans
            or self.arrays
            or self.objects
            or not self.numbers.is_empty
            or not self.strings.is_empty
        )

    def only(self, kind: str) -> "Shape":
        """The part of one type: "null", "booleans", "numbers", "strings", "arrays" or "objects"."""
        return replace(Shape(), **{kind: getattr(self, kind)})
