"""Single JSON values: exact numbers, equality as JSON Schema has it, and how a value is written."""

from decimal import Decimal
from fractions import Fraction
from json.encoder import encode_basestring
from typing import Any

from umbel.grammar.errors import GrammarError

Json = Any  # a JSON value; numbers may be int, float or Decimal
_MAX_EXPONENT = 400  # doubles end at 308; beyond, exact arithmetic would write out the zeros
_LARGEST = 10**_MAX_EXPONENT


def is_number(value: Json) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def exact(value: int | float | Decimal) -> Fraction:
    """The number as it is written: 0.1 is one tenth. Raises `GrammarError` beyond 10**400 or below
    10**-400.
    """
    if isinstance(value, int):
        if abs(value) > _LARGEST:
            raise GrammarError(f"a number of more than {_MAX_EXPONENT} digits")
        return Fraction(value)
    decimal = value if isinstance(value, Decimal) else Decimal(repr(value))
    if decimal and abs(decimal.adjusted()) > _MAX_EXPONENT:
        raise GrammarError(f"the number {value} has an exponent beyond {_MAX_EXPONENT}")
    return Fraction(decimal)


def canonical(value: Json) -> str:
    """Equal for exactly those values that JSON Schema calls equal: 1 and 1.0, but not 1 and
    true.
    """
    if isinstance(value, dict):
        inner = sorted(
            f"{encode_basestring(name)}:{canonical(item)}" for name, item in value.items()
        )
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, str):
        return encode_basestring(value)
    if is_number(value):
        return str(exact(value))
    return str(value)


def spell_text(text: str) -> bytes:
    """The JSON string as `json.dumps(ensure_ascii=False)` writes it: the one spelling of
    constrained strings.
    """
    return encode_basestring(text).encode()


def spell_number(value: Fraction) -> list[str]:
    """All spellings of one number that are accepted: plain digits, with `.0`, and as Python writes
    a double.
    """
    if value.denominator == 1:
        digits = str(value.numerator)
        found = [digits, f"{digits}.0"]
        if value == 0:
            found += ["-0", "-0.0"]
    else:
        found = [decimal_digits(value)]
    try:
        as_float = float(value)
    except OverflowError:
        return found
    if Fraction(Decimal(repr(as_float))) == value:
        text = repr(as_float)
        found.append(text)
    return list(dict.fromkeys(found))


def decimal_digits(value: Fraction) -> str:
    """The finite decimal expansion; the denominator has no prime factors but 2 and 5."""
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
    digits = str(abs((value * 10**places).numerator)).rjust(places + 1, "0")
    whole, fraction = digits[: len(digits) - places], digits[len(digits) - places :]
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{fraction}" if places else f"{sign}{whole}"
