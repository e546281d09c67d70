"""What the caller gives (dict, bool, JSON text, Python type) to a plain JSON document."""

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from umbel.grammar.errors import GrammarError
from umbel.grammar.limits import Limits

Json = Any  # a JSON value as `json.loads` gives it; fractions are Decimals, as they were written

# At the root of a schema that was made of a Python type and written down: integers have no `.0`
# there, as the type's decoder wants them. To other validators it is an unknown keyword.
PLAIN_INTEGERS = "x-umbel-plain-integers"


@dataclass(frozen=True, slots=True)
class LoadedSchema:
    """value: a dict or bool that the caller's object does not share. text: its JSON. is_typed: it
    comes from a Python type, whose decoder may want integers without `.0`; or says so.
    """

    value: Json
    text: str
    is_typed: bool


def load_schema(schema: Any, limits: Limits) -> LoadedSchema:
    """Raises `GrammarError` for anything that is no schema."""
    is_typed = not isinstance(schema, str | dict | bool)
    if isinstance(schema, str):
        text = schema
    elif is_typed:
        text = _dump(schema_of_type(schema))
    else:
        text = _dump(schema)
    if len(text) > limits.max_source_chars:
        raise GrammarError(
            f"JSON Schema of {len(text)} characters is longer than the "
            f"{limits.max_source_chars} allowed"
        )
    try:
        loaded = json.loads(text, parse_constant=_refuse_constant, parse_float=Decimal)
    except (ValueError, RecursionError) as exc:
        raise GrammarError(f"the JSON Schema is not valid JSON: {exc}") from exc
    if not isinstance(loaded, dict | bool):
        raise GrammarError(
            f"a JSON Schema is an object or a boolean, got {type(loaded).__name__}", ""
        )
    is_marked = isinstance(loaded, dict) and loaded.get(PLAIN_INTEGERS) is True
    return LoadedSchema(loaded, text, is_typed or is_marked)


def schema_of_type(schema: Any) -> Json:
    """The JSON Schema that a Python type stands for: loaded, it gives the constraint that the type
    gives. Raises `GrammarError` for what has none.
    """
    return {**_closed(_from_type(schema)), PLAIN_INTEGERS: True}


def _from_type(schema: Any) -> Json:
    if hasattr(schema, "model_json_schema"):  # a pydantic model
        return schema.model_json_schema()
    if schema is None or isinstance(schema, int | float | list | tuple | bytes):
        raise GrammarError(
            f"json_schema={schema!r:.100} is not a schema; give a dict, a bool, JSON text or a type"
        )
    try:
        return msgspec.json.schema(schema)
    except (TypeError, NotImplementedError) as exc:
        raise GrammarError(
            f"{schema!r:.100} has no JSON Schema: {exc}; give a dict, a bool, JSON text, "
            "a msgspec Struct, a dataclass, a TypedDict, an Enum, a Literal or a pydantic model"
        ) from exc


def _closed(schema: Json) -> Json:
    """The schema of a type with `additionalProperties: false` where it says nothing of them: a type
    has the fields that it has, and a model should not be free to invent more.

    Not below `allOf`, where each part would exclude the fields of the others.
    """
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Json] = {}
    for keyword, value in schema.items():
        if keyword in ("$defs", "definitions", "properties") and isinstance(value, dict):
            made[keyword] = {name: _closed(part) for name, part in value.items()}
        elif keyword in ("anyOf", "oneOf", "prefixItems") and isinstance(value, list):
            made[keyword] = [_closed(part) for part in value]
        elif keyword in ("items", "additionalProperties"):
            made[keyword] = _closed(value)
        else:
            made[keyword] = value
    if "properties" in made and "allOf" not in made:
        made.setdefault("additionalProperties", False)
    return made


def _dump(schema: Json) -> str:
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise GrammarError(f"the JSON Schema is not plain JSON: {exc}") from exc


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")
