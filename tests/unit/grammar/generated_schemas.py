"""Random schemas and instances by hypothesis-jsonschema, and what must hold of each schema.

`tools/random_schemas.py` runs the same for as long as wanted.
"""

import json
import random
import re
from collections import Counter
from decimal import Decimal, localcontext
from typing import Any

import jsonschema
import numpy as np
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

from umbel.grammar import (
    Constraint,
    UnsatisfiableGrammar,
    UnsupportedGrammar,
    Vocabulary,
    compile_json_schema,
)
from umbel.grammar.check import check_instance

_COUNT = {"type": "integer", "minimum": 0, "maximum": 5}
_NUMBER = {"enum": [-7, -1, 0, 1, 3, 12, 100, -0.5, 0.25, 1.5, 2.75, 99.9]}
_PATTERN = {
    "enum": ["^a", "b$", "^[a-c]{1,3}$", "x|y", "^[0-9]+$", "[^a]", "^(ab)*$", "é", "^.{2,4}$"]
}
_FORMAT = {"enum": ["date", "ipv4", "ipv6", "uuid"]}  # what jsonschema checks exactly
_SCALAR = {"enum": [None, True, False, 0, 1, -3, 1.5, 10**20, "", "a", "ab", 'q"\\', "é\n", "😀"]}
_NAME = {"enum": ["a", "b", "ab", "", 'k"', "é", "x1"]}
_KEYWORDS: dict[str, dict[str, Any]] = {
    "null": {},
    "boolean": {},
    "integer": {
        "minimum": _NUMBER,
        "maximum": _NUMBER,
        "exclusiveMinimum": _NUMBER,
        "exclusiveMaximum": _NUMBER,
        "multipleOf": {"enum": [1, 2, 3, 7, 0.5]},
    },
    "number": {
        "minimum": _NUMBER,
        "maximum": _NUMBER,
        "exclusiveMaximum": _NUMBER,
        "multipleOf": {"enum": [1, 0.5, 0.25, 0.1]},
    },
    "string": {"minLength": _COUNT, "maxLength": _COUNT, "pattern": _PATTERN, "format": _FORMAT},
}


def _typed(name: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """The schema of schemas of one type."""
    return {
        "type": "object",
        "properties": {"type": {"const": name}, **keywords},
        "required": ["type"],
        "additionalProperties": False,
    }


_LEAVES = [
    *(from_schema(_typed(name, keywords)) for name, keywords in _KEYWORDS.items()),
    from_schema(
        {
            "type": "object",
            "properties": {"enum": {"type": "array", "items": _SCALAR, "minItems": 1}},
            "required": ["enum"],
            "additionalProperties": False,
        }
    ),
    from_schema({"type": "boolean"}),
    _SCALAR and from_schema(_SCALAR).map(lambda value: {"const": value}),
]


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    names = from_schema(_NAME)
    counts = from_schema(_COUNT)
    some_names = st.lists(names, max_size=2, unique=True)
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(names, inner, max_size=3)},
        optional={
            "required": some_names,
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=1),
            "minProperties": counts,
            "maxProperties": counts,
            "propertyNames": st.just({"maxLength": 2}),
            "dependentRequired": st.dictionaries(names, some_names, max_size=1),
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner,
            "prefixItems": several,
            "minItems": counts,
            "maxItems": counts,
            "uniqueItems": st.booleans(),
            "contains": inner,
        },
    )
    return st.one_of(
        objects,
        arrays,
        st.fixed_dictionaries({"anyOf": several}),
        st.fixed_dictionaries({"allOf": several}),
        st.fixed_dictionaries({"oneOf": several}),
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"if": inner, "then": inner}, optional={"else": inner}),
    )


_PRECISION = 1_000  # digits that numbers are compared with
_LONG_NUMBER = re.compile(r"[\d.]{300,}|[eE][+-]?\d{3,}")


def _is_integer(checker: Any, value: Any) -> bool:
    if isinstance(value, Decimal):
        return value == value.to_integral_value()
    return isinstance(value, int) and not isinstance(value, bool)


# Numbers are compared as they are written: among doubles, 1.4 is no multiple of 0.1.
_ExactValidator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)


def _is_valid(schema: Any, text: str) -> bool:
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    with localcontext(prec=_PRECISION):
        value = json.loads(text, parse_float=Decimal)
        return bool(_ExactValidator(exact, format_checker=checker).is_valid(value))


schemas = st.recursive(st.one_of(_LEAVES), _combined, max_leaves=6)


def check_schema(
    schema: Any, vocabulary: Vocabulary, rng: random.Random, tally: Counter[str], *, samples: int
) -> Constraint | None:
    """Sampled outputs are complete under their limit, and valid. None: refused or unsatisfiable."""
    try:
        constraint = compile_json_schema(schema, vocabulary, any_order=True)
    except UnsatisfiableGrammar:
        tally["unsatisfiable"] += 1
        return None
    except UnsupportedGrammar:
        tally["refused"] += 1
        return None
    for _ in range(samples):
        text = sample(constraint, rng, extra=rng.randint(0, 40))
        if _LONG_NUMBER.search(text):
            tally["not checked: numbers beyond all bounds"] += 1
            continue
        tally["outputs"] += 1
        assert _is_valid(schema, text), f"{schema!r} gave {text!r}"
    tally["compiled"] += 1
    return constraint


def sample(constraint: Constraint, rng: random.Random, *, extra: int) -> str:
    """A complete output at temperature 1 for equal logits, within the shortest one's tokens plus
    `extra`.
    """
    vocabulary = constraint.machine.vocabulary
    matcher = constraint.start()
    row = np.zeros(vocabulary.num_words, np.uint32)
    left = matcher.closing_cost + extra
    text = b""
    while True:
        matcher.fill_mask(row, budget=left)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        ends = [i for i in allowed.tolist() if i in vocabulary.eos_ids]
        if matcher.accepting and (len(ends) == len(allowed) or left == 0 or rng.random() < 0.2):
            return text.decode()
        assert left > 0, f"{text!r} is not complete within its limit"
        token_id = int(rng.choice([i for i in allowed.tolist() if i not in ends]))
        assert matcher.advance(token_id)
        text += vocabulary.text_of(token_id) or b""
        left -= 1


def check_instance_is_accepted(
    schema: Any, constraint: Constraint | None, instance: Any, tally: Counter[str]
) -> None:
    """A valid instance is accepted, if it is written without exponents. Formats are left out: those
    of jsonschema are wider.
    """
    if '"format"' in json.dumps(schema):
        return
    text = _plain_json(instance)
    if not _is_valid(schema, text):
        return
    if constraint is not None:
        lone = constraint.machine.vocabulary.lone_bytes
        if text.encode().translate(None, lone):
            tally["not checked: bytes without tokens"] += 1
            return
    tally["instances"] += 1
    accepted = constraint is not None and check_instance(constraint, text).is_accepted
    assert accepted, f"{schema!r} rejected {text!r}"


def _plain_json(value: Any) -> str:
    """As `json.dumps`, with numbers as plain decimals."""
    match value:
        case float():
            return format(Decimal(repr(value)), "f")
        case list():
            return "[" + ", ".join(map(_plain_json, value)) + "]"
        case dict():
            parts = (
                f"{json.dumps(k, ensure_ascii=False)}: {_plain_json(v)}" for k, v in value.items()
            )
            return "{" + ", ".join(parts) + "}"
        case _:
            return json.dumps(value, ensure_ascii=False)
