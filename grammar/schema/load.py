"""What the caller gives (dict, bool, JSON text, Python type) to a plain JSON document with local
references.
"""

import json
from typing import Any
from urllib.parse import unquote

import msgspec

from umbel.grammar.errors import GrammarError, UnsupportedGrammar
from umbel.grammar.limits import Limits

Json = Any  # a JSON value as `json.loads` gives it
_OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")


def load_schema(schema: Any, limits: Limits) -> Json:
    """Returns a dict or bool that the caller's object does not share. Raises `GrammarError` for
    anything else.
    """
    text = schema if isinstance(schema, str) else _dump(_from_type(schema))
    if len(text) > limits.max_source_chars:
        raise GrammarError(
            f"JSON Schema of {len(text)} characters is longer than the "
            f"{limits.max_source_chars} allowed"
        )
    try:
        loaded = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise GrammarError(f"the JSON Schema is not valid JSON: {exc}") from exc
    if not isinstance(loaded, dict | bool):
        raise GrammarError(
            f"a JSON Schema is an object or a boolean, got {type(loaded).__name__}", ""
        )
    return loaded


def _from_type(schema: Any) -> Json:
    if isinstance(schema, dict | bool):
        return schema
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


def _dump(schema: Json) -> str:
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise GrammarError(f"the JSON Schema is not plain JSON: {exc}") from exc


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


class Document:
    """A schema with its `$ref` targets."""

    def __init__(self, root: Json) -> None:
        self.root = root
        declared = root.get("$schema", "") if isinstance(root, dict) else ""
        # Up to draft 7 the keywords beside a $ref are ignored.
        self.ref_stands_alone = any(draft in str(declared) for draft in _OLD_DRAFTS)

    def resolve(self, ref: str, where: str) -> tuple[Json, str]:
        """The schema a `$ref` points to, and its pointer. `where`: pointer of the `$ref` itself."""
        if ref != "#" and not ref.startswith("#/"):
            raise UnsupportedGrammar(
                f"$ref {ref!r} does not point into this document by JSON Pointer ('#/...')",
                where,
                keyword="$ref",
            )
        target, pointer = self.root, unquote(ref[1:])
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                raise GrammarError(f"$ref {ref!r} points to nothing", where, keyword="$ref")
        return target, pointer


def child(pointer: str, *names: str | int) -> str:
    """The JSON Pointer of something below `pointer`."""
    escaped = (str(name).replace("~", "~0").replace("/", "~1") for name in names)
    return "/".join([pointer, *escaped])
