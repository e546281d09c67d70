"""Which texts a constrained call can give, when they are few: what decisions are followed over."""

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

if not hasattr(re, "_parser"):  # pragma: no cover - the parser of patterns has no public name
    raise ImportError("this version of Python has no re._parser")
_parser: Any = re._parser
_MAX_UNROLLED = 64  # steps of a repetition, before outcomes are even counted


class TooMany(Exception):
    """More outcomes than asked for, or no way to list them."""


def gen_outcomes(options: Mapping[str, Any], limit: int) -> tuple[str, ...] | None:
    """All texts that a `gen` with `options` can end with; None: too many, or unknown.

    A stop string could cut any of them, so with one they are unknown. (`max_tokens` could, too: the
    engine refuses limits that no outcome fits, and a decision that meets another text leaves the
    graph.)
    """
    if any(options.get(name) for name in ("stop", "stop_token_ids", "ignore_eos")):
        return None
    choices = options.get("choices")
    if choices is not None:
        return tuple(choices) if len(choices) <= limit else None
    pattern = options.get("regex")
    if pattern is None:
        return None
    try:
        return regex_outcomes(pattern, limit)
    except (TooMany, re.error, OverflowError):
        return None


def regex_outcomes(pattern: str, limit: int) -> tuple[str, ...]:
    """All texts that `pattern` matches as a whole, sorted. Raises `TooMany` for more than `limit`
    and for patterns with more than alternatives, classes and bounded repetitions.
    """
    return tuple(sorted(_language(_parser.parse(pattern), limit)))


def may_match(pattern: str, text: str) -> bool:
    """Whether `pattern` matches all of `text`; True as well for one that Python reads otherwise."""
    try:
        return re.fullmatch(pattern, text) is not None
    except (re.error, OverflowError, RecursionError):
        return True


def _language(items: Iterable[Any], limit: int) -> set[str]:
    texts = {""}
    for op, value in items:
        texts = _product(texts, _one(str(op), value, limit), limit)
    return texts


def _one(op: str, value: Any, limit: int) -> set[str]:
    if op == "LITERAL":
        return {chr(value)}
    if op == "IN":
        return _class(value, limit)
    if op == "BRANCH":
        return _at_most(set().union(*(_language(way, limit) for way in value[1])), limit)
    if op == "SUBPATTERN":
        _, added, removed, inner = value
        if added or removed:
            raise TooMany
        return _language(inner, limit)
    if op in ("MAX_REPEAT", "MIN_REPEAT"):
        low, high, inner = value
        return _repeat(low, high, inner, limit)
    raise TooMany  # anchors, look-around, references, categories, "any"


def _repeat(low: int, high: Any, inner: Any, limit: int) -> set[str]:
    once = _language(inner, limit)
    if once == {""}:
        return once
    if not isinstance(high, int) or high > _MAX_UNROLLED or high == _parser.MAXREPEAT:
        raise TooMany
    texts, power = set[str](), {""}
    for count in range(high + 1):
        if count >= low:
            texts = _at_most(texts | power, limit)
        if count < high:
            power = _product(power, once, limit)
    return texts


def _class(items: Any, limit: int) -> set[str]:
    texts: set[str] = set()
    for op, value in items:
        if str(op) == "LITERAL":
            texts.add(chr(value))
        elif str(op) == "RANGE" and value[1] - value[0] < limit:
            texts |= {chr(code) for code in range(value[0], value[1] + 1)}
        else:
            raise TooMany
    return _at_most(texts, limit)


def _product(left: set[str], right: set[str], limit: int) -> set[str]:
    if len(left) * len(right) > limit * limit:
        raise TooMany
    return _at_most({a + b for a, b in itertools.product(left, right)}, limit)


def _at_most(texts: set[str], limit: int) -> set[str]:
    if len(texts) > limit:
        raise TooMany
    return texts


def schema_data(schema: Any) -> Any:
    """A `json_schema` option as JSON data: a type becomes the schema that an engine makes of it."""
    if schema is None or isinstance(schema, dict | bool):
        return schema
    if isinstance(schema, str):
        return msgspec.json.decode(schema)
    from umbel.runtime.constraints import schema_of_type  # late: it loads the grammar compiler

    return schema_of_type(schema)
