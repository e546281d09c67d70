"""Sets of numbers: explicit values and intervals of multiples, in exact rational arithmetic.

An integer is a multiple of 1. A number that is excluded splits its interval, so that the atoms
stay simple.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, gcd, lcm

_MAX_CANDIDATES = 10_000  # multiples tried one by one before a bounded atom counts as not empty


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers between two ends (None: no end) that are multiples of `step` and of none of
    `not_steps`.
    """

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    step: Fraction | None = None
    not_steps: frozenset[Fraction] = frozenset()

    def contains(self, value: Fraction) -> bool:
        if self.low is not None and (value < self.low or (value == self.low and self.low_open)):
            return False
        if self.high is not None and (value > self.high or (value == self.high and self.high_open)):
            return False
        if self.step is not None and value % self.step:
            return False
        return all(value % step for step in self.not_steps)

    @property
    def is_empty(self) -> bool:
        if self.low is not None and self.high is not None:
            if self.low > self.high:
                return True
            if self.low == self.high:
                return not self.contains(self.low)
        if self.step is None:
            return False
        if any(self.step % step == 0 for step in self.not_steps):
            return True
        return (self.low is not None or self.high is not None) and not self._has_multiple()

    def _has_multiple(self) -> bool:
        assert self.step is not None
        first, last = self.index_range()
        if first is None or last is None:
            return True
        if last < first:
            return False
        period = lcm(*((step / self.step).numerator for step in self.not_steps), 1)
        stop = min(last, first + period - 1, first + _MAX_CANDIDATES)
        return any(
            all((index * self.step) % step for step in self.not_steps)
            for index in range(first, stop + 1)
        )

    def index_range(self) -> tuple[int | None, int | None]:
        """The first and last integer k for which k * step lies between the ends; `step` must be
        set.
        """
        assert self.step is not None
        first = last = None
        if self.low is not None:
            first = ceil(self.low / self.step)
            first += self.low_open and first * self.step == self.low
        if self.high is not None:
            last = floor(self.high / self.step)
            last -= self.high_open and last * self.step == self.high
        return first, last

    def intersect(self, other: "Interval") -> "Interval":
        low, low_open = _tighter((self.low, self.low_open), (other.low, other.low_open), 1)
        high, high_open = _tighter((self.high, self.high_open), (other.high, other.high_open), -1)
        step = self.step or other.step
        if self.step is not None and other.step is not None and self.step != other.step:
            step = _common_multiple(self.step, other.step)
        return Interval(low, high, low_open, high_open, step, self.not_steps | other.not_steps)

    def complement(self) -> "list[Interval]":
        parts = []
        if self.low is not None:
            parts.append(Interval(high=self.low, high_open=not self.low_open))
        if self.high is not None:
            parts.append(Interval(low=self.high, low_open=not self.high_open))
        if self.step is not None:
            parts.append(Interval(not_steps=frozenset({self.step})))
        parts += [Interval(step=step) for step in self.not_steps]
        return parts


def _tighter(
    left: tuple[Fraction | None, bool], right: tuple[Fraction | None, bool], sign: int
) -> tuple[Fraction | None, bool]:
    """The inner one of two ends; sign 1 for lower ends, -1 for upper ones."""
    if left[0] is None or right[0] is None:
        return right if left[0] is None else left
    if left[0] == right[0]:
        return left[0], left[1] or right[1]
    return left if (left[0] > right[0]) == (sign > 0) else right


def _common_multiple(left: Fraction, right: Fraction) -> Fraction:
    return Fraction(
        lcm(left.numerator, right.numerator),
        gcd(left.denominator, right.denominator),
    )


@dataclass(frozen=True, slots=True)
class NumberSet:
    """The union of explicit values and intervals."""

    values: frozenset[Fraction] = frozenset()
    intervals: tuple[Interval, ...] = ()

    def contains(self, value: Fraction) -> bool:
        return value in self.values or any(atom.contains(value) for atom in self.intervals)

    @property
    def is_empty(self) -> bool:
        return not self.values and not self.intervals

    def union(self, other: "NumberSet") -> "NumberSet":
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        intervals = dict.fromkeys((*self.intervals, *other.intervals))
        if _ANY_INTERVAL in intervals:
            return ALL_NUMBERS
        return number_set(self.values | other.values, intervals)

    def intersect(self, other: "NumberSet") -> "NumberSet":
        if self is ALL_NUMBERS or other is ALL_NUMBERS:
            return other if self is ALL_NUMBERS else self
        values = {value for value in self.values if other.contains(value)}
        values |= {value for value in other.values if self.contains(value)}
        products = [a.intersect(b) for a in self.intervals for b in other.intervals]
        return number_set(frozenset(values), products)

    def complement(self) -> "NumberSet":
        result = ALL_NUMBERS
        if self.values:
            result = NumberSet(intervals=_around(sorted(self.values)))
        for atom in self.intervals:
            result = result.intersect(number_set(frozenset(), atom.complement()))
        return result

    def finite_count(self, cap: int) -> int | None:
        """How many numbers there are, if at most `cap`; None for more."""
        total = len(self.values)
        for atom in self.intervals:
            first = last = None
            if atom.step is not None:
                first, last = atom.index_range()
            if first is None or last is None or last - first >= cap:
                return None
            assert atom.step is not None
            members = (index * atom.step for index in range(first, last + 1))
            total += sum(atom.contains(value) and value not in self.values for value in members)
        return total if total <= cap else None


def number_set(values: frozenset[Fraction], intervals: Iterable[Interval]) -> NumberSet:
    """Without empty intervals, and with single points as values."""
    kept: list[Interval] = []
    points = set(values)
    for atom in intervals:
        if atom.is_empty:
            continue
        if atom.low is not None and atom.low == atom.high:
            points.add(atom.low)
        else:
            kept.append(atom)
    points = {v for v in points if not any(atom.contains(v) for atom in kept)} if kept else points
    return NumberSet(frozenset(points), tuple(kept))


def _around(points: list[Fraction]) -> tuple[Interval, ...]:
    """Everything but the points."""
    ends: list[Fraction | None] = [None, *points, None]
    return tuple(
        Interval(low, high, low is not None, high is not None)
        for low, high in itertools.pairwise(ends)
    )


_ANY_INTERVAL = Interval()
NO_NUMBERS = NumberSet()
ALL_NUMBERS = NumberSet(intervals=(_ANY_INTERVAL,))
INTEGERS = NumberSet(intervals=(Interval(step=Fraction(1)),))
