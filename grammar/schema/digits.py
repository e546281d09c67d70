"""Intervals of multiples to byte automata of decimal spellings: comparison with both ends beside
the remainder.

A number with bounds is written without an exponent, a restriction on the spelling and not on the
values; where only
the sign is bounded exponents stay. An integer may end in `.0`.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

import numpy as np

from umbel.grammar.automaton import ByteDfa, minimize, shared_columns
from umbel.grammar.errors import UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.pushdown.build import tree_dfa
from umbel.grammar.pushdown.leaves import DfaLeaf, dfa_leaf
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.values.literals import decimal_digits
from umbel.grammar.values.numbers import Interval

MAX_REMAINDERS = 5_000
_MAX_DIGITS = 400
_WHOLE = "(?:0|[1-9][0-9]*)"
_EXPONENT = "(?:[eE][+-]?(?:[0-9]{1,2}|[12][0-9]{2}|30[0-8]))?"  # doubles end at 308
_NOT_ZERO = "(?:[1-9][0-9]*(?:\\.[0-9]+)?|0\\.[0-9]*[1-9][0-9]*)"  # not the number zero
_ZERO = "0(?:\\.0+)?"
_ANY = f"-?{_WHOLE}(?:\\.[0-9]+)?{_EXPONENT}"


@dataclass(frozen=True, slots=True)
class NumberStyle:
    """point_zero: integers may end in `.0`. unique: one spelling for each value, apart from
    that.
    """

    point_zero: bool = True
    unique: bool = False


def check_interval(interval: Interval) -> None:
    """Raises `UnsupportedGrammar` where the automaton would be too large."""
    if not interval.not_steps and (interval.step is None or interval.step == 1):
        return
    remainders, places = _scale(interval)
    if remainders * (places + 2) > MAX_REMAINDERS:
        raise UnsupportedGrammar(
            f"multipleOf needs an automaton of {remainders * (places + 2)} states, more than the "
            f"{MAX_REMAINDERS} supported",
            keyword="multipleOf",
        )


@lru_cache(512)
def number_leaf(interval: Interval, style: NumberStyle) -> DfaLeaf:
    """The spellings of the numbers of an interval, which must not be empty."""
    simple = _simple(interval, style)
    if simple is not None:
        return dfa_leaf(tree_dfa(parse_regex(simple), Limits()))
    return dfa_leaf(_Digits(interval, style).automaton())


def _simple(interval: Interval, style: NumberStyle) -> str | None:
    """A pattern where no digit needs to be compared."""
    if interval.not_steps or style.unique:
        return None
    low, high = interval.low, interval.high
    is_integer = interval.step == 1
    if low is None and high is None:
        if interval.step is None:
            return _ANY
        ending = "(?:\\.0)?" if style.point_zero else ""
        return f"-?{_WHOLE}{ending}" if is_integer else None
    if interval.step is not None:
        return None
    zero = Fraction(0)
    if low == zero and high is None:
        positive = f"{_WHOLE}(?:\\.[0-9]+)?{_EXPONENT}"
        return (
            f"{_NOT_ZERO}{_EXPONENT}"
            if interval.low_open
            else f"(?:{positive}|-{_ZERO}{_EXPONENT})"
        )
    if high == zero and low is None:
        negative = f"-{_NOT_ZERO}{_EXPONENT}"
        return negative if interval.high_open else f"(?:{negative}|-?{_ZERO}{_EXPONENT})"
    return None


def _scale(interval: Interval) -> tuple[int, int]:
    """The modulus of value * 10**places that decides all steps, and `places`."""
    steps = [*([interval.step] if interval.step is not None else []), *interval.not_steps]
    places = 0
    while any((step * 10**places).denominator != 1 for step in steps):
        places += 1
    return lcm(1, *(int(step * 10**places) for step in steps)), places


@dataclass(frozen=True, slots=True)
class _Bound:
    """Digits of the absolute value of an end: before and after the point."""

    whole: str
    fraction: str

    @staticmethod
    def of(value: Fraction) -> "_Bound":
        whole, _, fraction = decimal_digits(abs(value)).partition(".")
        return _Bound(whole, fraction)


# A comparison while reading: ("whole", digits read, sign so far), ("fraction", digits read) while
# equal, or an outcome.
_State = tuple[Any, ...]
_LESS, _EQUAL, _MORE = -1, 0, 1
_POINT_ZERO = 2  # in place of the last digit: the fraction is `.0` so far


class _Digits:
    """States are (sign, phase, comparisons with the ends, remainder, places read, last digit: zero
    or not).
    """

    def __init__(self, interval: Interval, style: NumberStyle) -> None:
        check_interval(interval)
        self._interval = interval
        self._style = style
        self._modulus, self._places = _scale(interval)
        self._has_steps = interval.step is not None or bool(interval.not_steps)
        self._low = None if interval.low is None else _Bound.of(interval.low)
        self._high = None if interval.high is None else _Bound.of(interval.high)
        # A multiple of an integer has no digits but zeros behind the point, of which one is enough.
        self._is_whole = interval.step is not None and interval.step.denominator == 1

    def automaton(self) -> ByteDfa:
        start: Hashable = "start"
        numbers: dict[Hashable, int] = {start: 0}
        order = [start]
        rows: list[dict[int, int]] = []
        for state in order:
            row = {}
            for value, target in self._edges(state):
                if target not in numbers:
                    numbers[target] = len(order)
                    order.append(target)
                row[value] = numbers[target]
            rows.append(row)
        accepting = [self._accepts(state) for state in order]
        return minimize(_finished(rows, accepting))

    def _edges(self, state: Hashable) -> "list[tuple[int, Hashable]]":
        if state == "start":
            return [(ord("-"), ("sign",)), *self._whole_edges(1)]
        assert isinstance(state, tuple)
        if state == ("sign",):
            return self._whole_edges(-1)
        sign, phase, low, high, remainder, _places, _last = state
        edges: list[tuple[int, Hashable]] = []
        if phase == "whole":
            edges += [(48 + digit, self._more_whole(state, digit)) for digit in range(10)]
        if phase in ("whole", "zero") and not (self._is_whole and not self._style.point_zero):
            low2, high2 = self._to_fraction(low, self._low), self._to_fraction(high, self._high)
            edges.append((46, (sign, "point", low2, high2, remainder, 0, -1)))
        if phase in ("point", "fraction"):
            for digit in range(10):
                if self._is_whole and (digit != 0 or phase == "fraction"):
                    continue
                edges.append((48 + digit, self._more_fraction(state, digit)))
        return edges

    def _whole_edges(self, sign: int) -> "list[tuple[int, Hashable]]":
        return [
            (
                48 + digit,
                (
                    sign,
                    "whole" if digit else "zero",
                    self._first(self._low, digit),
                    self._first(self._high, digit),
                    digit % self._modulus,
                    0,
                    0,
                ),
            )
            for digit in range(10)
        ]

    def _first(self, bound: "_Bound | None", digit: int) -> Hashable:
        return None if bound is None else self._compare_whole(bound, (0, _EQUAL), digit)

    def _compare_whole(self, bound: "_Bound", compared: Hashable, digit: int) -> Hashable:
        """(digits read, comparison with as many digits of the bound), capped once it is longer."""
        assert isinstance(compared, tuple)
        count, so_far = compared
        if count >= len(bound.whole):
            return (len(bound.whole) + 1, _MORE)
        if so_far == _EQUAL:
            wanted = int(bound.whole[count])
            so_far = (digit > wanted) - (digit < wanted)
        return (count + 1, so_far)

    def _more_whole(self, state: _State, digit: int) -> Hashable:
        sign, _, low, high, remainder, _, _ = state
        return (
            sign,
            "whole",
            None if self._low is None else self._compare_whole(self._low, low, digit),
            None if self._high is None else self._compare_whole(self._high, high, digit),
            (remainder * 10 + digit) % self._modulus,
            0,
            0,
        )

    def _to_fraction(self, compared: Hashable, bound: "_Bound | None") -> Hashable:
        """From the comparison of the whole parts to (places compared, outcome so far)."""
        if bound is None:
            return None
        return (0, self._outcome_whole(compared, bound))

    def _outcome_whole(self, compared: Hashable, bound: "_Bound") -> int:
        assert isinstance(compared, tuple)
        count, so_far = compared
        if count != len(bound.whole):
            return _MORE if count > len(bound.whole) else _LESS
        return int(so_far)

    def _more_fraction(self, state: _State, digit: int) -> Hashable:
        sign, phase, low, high, remainder, places, _ = state
        if places < self._places:
            remainder, places = (remainder * 10 + digit) % self._modulus, places + 1
        elif digit and self._has_steps:
            remainder = -1  # more places than any multiple has
        return (
            sign,
            "fraction",
            self._compare_fraction(self._low, low, digit),
            self._compare_fraction(self._high, high, digit),
            remainder,
            places,
            digit and 1 if digit or phase == "fraction" else _POINT_ZERO,
        )

    def _compare_fraction(self, bound: "_Bound | None", compared: Hashable, digit: int) -> Hashable:
        if bound is None:
            return None
        assert isinstance(compared, tuple)
        at, outcome = compared
        if outcome != _EQUAL:
            return (0, outcome)
        wanted = int(bound.fraction[at]) if at < len(bound.fraction) else 0
        outcome = (digit > wanted) - (digit < wanted)
        return (min(at + 1, len(bound.fraction)) if outcome == _EQUAL else 0, outcome)

    def _accepts(self, state: Hashable) -> bool:
        if state == "start" or state == ("sign",):
            return False
        assert isinstance(state, tuple)
        sign, phase, low, high, remainder, places, _last = state
        if phase == "point":
            return False
        if self._style.unique and not self._is_canonical(state):
            return False
        return self._in_bounds(sign, phase, low, high) and self._is_multiple(remainder, places)

    def _is_canonical(self, state: _State) -> bool:
        """No zero at the end of a fraction but the one of `.0`, no negative zero: see `unique` of
        the style.
        """
        sign, phase, _, _, _, _, last = state
        if phase == "fraction":
            return self._is_whole or bool(last)
        return not (sign < 0 and phase == "zero")

    def _in_bounds(self, sign: int, phase: str, low: Hashable, high: Hashable) -> bool:
        interval = self._interval
        for bound, compared, end, is_open, is_low in (
            (self._low, low, interval.low, interval.low_open, True),
            (self._high, high, interval.high, interval.high_open, False),
        ):
            if bound is None or end is None:
                continue
            outcome = self._outcome(bound, compared, phase)
            side = self._signed(sign, outcome, end)
            if side == _EQUAL:
                if is_open:
                    return False
            elif (side == _MORE) != is_low:
                return False
        return True

    def _outcome(self, bound: "_Bound", compared: Hashable, phase: str) -> int:
        """The absolute value read, compared with that of the end."""
        assert isinstance(compared, tuple)
        if phase == "fraction":
            at, outcome = compared
        else:
            at, outcome = 0, self._outcome_whole(compared, bound)
        if outcome == _EQUAL and bound.fraction[at:].strip("0"):
            return _LESS
        return int(outcome)

    def _signed(self, sign: int, outcome: int, end: Fraction) -> int:
        """The value read, compared with the end. A negative zero is zero: its absolute value
        decides.
        """
        if end == 0:
            return outcome * sign if outcome else _EQUAL
        end_sign = 1 if end > 0 else -1
        if sign != end_sign:
            return sign
        return outcome * sign

    def _is_multiple(self, remainder: int, places: int) -> bool:
        if not self._has_steps:
            return True
        if remainder < 0:
            value = None  # has more places than any multiple
        else:
            value = remainder * 10 ** (self._places - places)
        scale = 10**self._places
        step = self._interval.step
        if step is not None and (value is None or value % int(step * scale)):
            return False
        return all(
            value is None or value % int(other * scale) for other in self._interval.not_steps
        )


def _finished(rows: list[dict[int, int]], accepting: list[bool]) -> ByteDfa:
    """Without the states that reach no accepting one."""
    backward: dict[int, list[int]] = {}
    for source, row in enumerate(rows):
        for target in row.values():
            backward.setdefault(target, []).append(source)
    pending = [state for state, is_accepting in enumerate(accepting) if is_accepting]
    alive = set(pending)
    while pending:
        for source in backward.get(pending.pop(), ()):
            if source not in alive:
                alive.add(source)
                pending.append(source)
    order = sorted(alive)
    number = {state: at for at, state in enumerate(order)}
    table = np.full((len(order) + 1, 256), len(order), np.int32)
    for state in order:
        for value, target in rows[state].items():
            if target in alive:
                table[number[state], value] = number[target]
    columns, byte_class = shared_columns(table)
    return ByteDfa(byte_class, columns, np.array([*(accepting[s] for s in order), False]))
