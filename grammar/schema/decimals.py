"""JSON numbers: the decimal spellings whose value lies in a range, as regular languages.

A bounded number is written without an exponent, an integer without a fraction; both are
restrictions on the spelling, not on the values.
"""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.limits import Limits
from umbel.grammar.regex import charset, syntax
from umbel.grammar.regex.chardfa import determinize, intersection, to_tree
from umbel.grammar.regex.parser import parse_regex
from umbel.grammar.regex.syntax import EPSILON, NEVER, Node
from umbel.grammar.schema.view import View

_MAX_EXPONENT = 400  # doubles end at 308
_MAX_DIVISOR = 1000  # remainders tracked by the automaton of multipleOf

_INTEGER = parse_regex("-?(?:0|[1-9][0-9]*)")
_NUMBER = parse_regex("-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_DIGIT = syntax.chars(charset.of("0123456789"))
_DIGITS = syntax.repeat(_DIGIT, 0, None)
_ANY_FRACTION = parse_regex("(?:\\.[0-9]+)?")
_NONZERO_FRACTION = parse_regex("\\.0*[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class _Bound:
    value: Decimal
    is_open: bool

    def negated(self) -> "_Bound":
        return _Bound(-self.value, self.is_open)


_ZERO = _Bound(Decimal(0), False)


def lower_number(view: View, limits: Limits, *, integer: bool) -> Node:
    """minimum, maximum, exclusiveMinimum, exclusiveMaximum and multipleOf together."""
    low = _bound(view, "minimum", "exclusiveMinimum")
    high = _bound(view, "maximum", "exclusiveMaximum")
    divisor = _divisor(view)
    integer = integer or divisor is not None
    if integer:
        low, high = _integral(low, ROUND_CEILING, 1), _integral(high, ROUND_FLOOR, -1)
    if low is None and high is None:
        tree = _INTEGER if integer else _NUMBER
    else:
        tree = _in_range(low, high, limits, integer=integer)
    if divisor in (None, 1) or syntax.is_never(tree):
        return tree
    assert divisor is not None
    both = intersection(determinize(tree, limits), determinize(_multiples(divisor), limits), limits)
    return NEVER if both.is_empty else to_tree(both)


def _bound(view: View, name: str, exclusive_name: str) -> _Bound | None:
    plain = _decimal(view, name)
    exclusive = view.value(exclusive_name)
    if isinstance(exclusive, bool):  # draft 4: a flag beside minimum
        return None if plain is None else _Bound(plain, exclusive)
    strict = _decimal(view, exclusive_name)
    if strict is None:
        return None if plain is None else _Bound(plain, False)
    if plain is None:
        return _Bound(strict, True)
    tighter = max if name == "minimum" else min
    return _Bound(strict, True) if tighter(plain, strict) == strict else _Bound(plain, False)


def _decimal(view: View, name: str) -> Decimal | None:
    value = view.value(name)
    if value is None:
        return None
    if isinstance(value, bool):
        raise GrammarError(f"{name} {value} stands alone", view.where(name), keyword=name)
    decimal = Decimal(repr(value))
    if decimal and abs(decimal.adjusted()) > _MAX_EXPONENT:
        raise UnsupportedGrammar(
            f"{name} has an exponent beyond {_MAX_EXPONENT}", view.where(name), keyword=name
        )
    return decimal


def _integral(bound: _Bound | None, rounding: str, step: int) -> _Bound | None:
    """The nearest integer inside a bound, as a closed one."""
    if bound is None:
        return None
    value = bound.value.to_integral_value(rounding)
    is_excluded = bound.is_open and value == bound.value
    return _Bound(Decimal(int(value) + step) if is_excluded else value, False)


def _divisor(view: View) -> int | None:
    value = _decimal(view, "multipleOf")
    if value is None:
        return None
    if value != int(value) or value > _MAX_DIVISOR:
        raise UnsupportedGrammar(
            f"multipleOf {value} is not supported: only integers up to {_MAX_DIVISOR}",
            view.where("multipleOf"),
            keyword="multipleOf",
        )
    return int(value)


def _multiples(divisor: int) -> Node:
    """Digits, perhaps after a minus, whose value is divisible. State 1 + r: remainder r; 0: no
    digit yet.
    """
    edges: list[tuple[int, Node, int]] = [(0, syntax.literal("-"), divisor + 1)]
    for source in range(divisor + 2):
        remainder = 0 if source in (0, divisor + 1) else source - 1
        for digit in range(10):
            target = 1 + (remainder * 10 + digit) % divisor
            edges.append((source, syntax.literal(str(digit)), target))
    return syntax.graph(edges, frozenset({1}))


def _in_range(low: _Bound | None, high: _Bound | None, limits: Limits, *, integer: bool) -> Node:
    options = []
    if high is None or high.value > 0 or (high.value == 0 and not high.is_open):
        least = low if low is not None and low.value >= 0 else _ZERO
        options.append(_magnitude(least, high, limits, integer=integer))
    if low is None or low.value < 0:
        least = high.negated() if high is not None and high.value <= 0 else _ZERO
        most = None if low is None else low.negated()
        magnitude = _magnitude(least, most, limits, integer=integer)
        options.append(syntax.cat([syntax.literal("-"), magnitude]))
    return syntax.alt(options)


def _magnitude(low: _Bound, high: _Bound | None, limits: Limits, *, integer: bool) -> Node:
    """Unsigned decimals at least `low` (not negative) and at most `high`."""
    if high is not None and high.value < low.value:
        return NEVER
    at_least = _compared(low, integer=integer, upward=True)
    if high is None:
        return at_least
    at_most = _compared(high, integer=integer, upward=False)
    if syntax.is_never(at_least) or syntax.is_never(at_most):
        return NEVER
    both = intersection(determinize(at_least, limits), determinize(at_most, limits), limits)
    return NEVER if both.is_empty else to_tree(both)


def _compared(bound: _Bound, *, integer: bool, upward: bool) -> Node:
    whole = int(bound.value)
    fraction = _fraction_digits(bound.value)
    if upward:
        beyond, equal = _integers_from(whole + 1), _fraction_from(fraction, bound.is_open)
    else:
        beyond, equal = _integers_below(whole), _fraction_up_to(fraction, bound.is_open)
    if integer:  # integer bounds were made integral and closed
        return syntax.alt([beyond, syntax.literal(str(whole))])
    return syntax.alt(
        [syntax.cat([beyond, _ANY_FRACTION]), syntax.cat([syntax.literal(str(whole)), equal])]
    )


def _fraction_digits(value: Decimal) -> str:
    return f"{value:f}".partition(".")[2].rstrip("0")


def _some(low: int, high: int) -> Node:
    return syntax.chars(charset.from_ranges([(48 + low, 48 + high)] if low <= high else []))


def _integers_from(least: int) -> Node:
    """Integers >= least >= 0 without leading zeros."""
    digits = str(least)
    options = [syntax.literal(digits)]
    for at, digit in enumerate(digits):
        rest = syntax.repeat(_DIGIT, len(digits) - at - 1, len(digits) - at - 1)
        options.append(syntax.cat([syntax.literal(digits[:at]), _some(int(digit) + 1, 9), rest]))
    options.append(syntax.cat([_some(1, 9), syntax.repeat(_DIGIT, len(digits), None)]))
    return syntax.alt(options)


def _integers_below(bound: int) -> Node:
    """Integers >= 0 and < bound without leading zeros."""
    digits = str(bound)
    options: list[Node] = [syntax.literal("0")] if bound > 0 else []
    if len(digits) > 1:
        options.append(syntax.cat([_some(1, 9), syntax.repeat(_DIGIT, 0, len(digits) - 2)]))
    for at, digit in enumerate(digits):
        rest = syntax.repeat(_DIGIT, len(digits) - at - 1, len(digits) - at - 1)
        smaller = _some(1 if at == 0 else 0, int(digit) - 1)
        options.append(syntax.cat([syntax.literal(digits[:at]), smaller, rest]))
    return syntax.alt(options)


def _fraction_from(digits: str, is_open: bool) -> Node:
    """Fraction parts (perhaps none) of value >= 0.digits, or > when open."""
    if not digits:
        return _NONZERO_FRACTION if is_open else _ANY_FRACTION
    options = []
    for at, digit in enumerate(digits):
        options.append(syntax.cat([syntax.literal(digits[:at]), _some(int(digit) + 1, 9), _DIGITS]))
    rest = syntax.cat([_DIGITS, _some(1, 9), _DIGITS]) if is_open else _DIGITS
    options.append(syntax.cat([syntax.literal(digits), rest]))
    return syntax.cat([syntax.literal("."), syntax.alt(options)])


def _fraction_up_to(digits: str, is_open: bool) -> Node:
    """Fraction parts (perhaps none) of value <= 0.digits, or < when open."""
    zeros = syntax.repeat(syntax.literal("0"), 0, None)
    if not digits:
        if is_open:
            return NEVER
        return syntax.optional(syntax.cat([syntax.literal(".0"), zeros]))
    options = []
    for at, digit in enumerate(digits):
        if at > 0:
            options.append(syntax.literal(digits[:at]))
        options.append(syntax.cat([syntax.literal(digits[:at]), _some(0, int(digit) - 1), _DIGITS]))
    if not is_open:
        options.append(syntax.cat([syntax.literal(digits), zeros]))
    return syntax.alt([EPSILON, syntax.cat([syntax.literal("."), syntax.alt(options)])])
