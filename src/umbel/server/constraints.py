"""The many ways in which a body may ask for constrained output, as the one that the engine knows.

OpenAI's `response_format`, vLLM's `guided_*` and `structured_outputs`, SGLang's `regex`, `ebnf`,
`json_schema` and `structural_tag`: each is understood, and two at a time are refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from umbel.runtime.errors import InvalidRequest
from umbel.server.errors import UnsupportedField
from umbel.server.protocol.fields import GenerationFields, ResponseFormat, StructuredOutputs

ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A constraint: option of `SamplingParams`, its value, and the field of the body it came
    from.
    """

    kind: str
    source: Any
    field: str


def constraint_of(body: GenerationFields) -> Wanted | None:
    """The constraint that a body asks for. Raises `InvalidRequest` for two, or what is not
    supported.
    """
    found = list(_all_of(body))
    if len(found) > 1:
        names = " and ".join(one.field for one in found)
        raise InvalidRequest(
            f"{names} were given together; an output follows one constraint, so give one of them",
            param=found[1].field,
        )
    return found[0] if found else None


def format_constraint(wanted: ResponseFormat, field: str) -> Wanted | None:
    """The constraint of a `response_format`."""
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Wanted("json_schema", ANY_OBJECT, field)
    if wanted.type == "structural_tag":
        return Wanted("structural_tag", _tag_of(wanted), field)
    if wanted.type != "json_schema":
        raise UnsupportedField(
            f"{field}.type={wanted.type!r} is not supported; accepted are 'text', 'json_object', "
            "'json_schema' and 'structural_tag'",
            param=f"{field}.type",
        )
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise InvalidRequest(
            f"{field}.json_schema.schema is missing: give the JSON Schema of the output",
            param=f"{field}.json_schema.schema",
        )
    return Wanted("json_schema", wanted.json_schema.schema, f"{field}.json_schema.schema")


def grammar_constraint(text: str, field: str) -> Wanted:
    """A grammar text: GBNF or EBNF if it has rules of theirs (`root ::= ...`), otherwise Lark."""
    return Wanted("gbnf" if "::=" in text else "lark", text, field)


def _tag_of(wanted: ResponseFormat) -> dict[str, Any]:
    if wanted.format is not None:
        return {"type": "structural_tag", "format": wanted.format}
    return {"structures": wanted.structures or [], "triggers": wanted.triggers or []}


def _all_of(body: GenerationFields) -> Iterator[Wanted]:
    if body.response_format is not None:
        wanted = format_constraint(body.response_format, "response_format")
        if wanted is not None:
            yield wanted
    for field, kind in _PLAIN_FIELDS.items():
        value = getattr(body, field)
        if value is not None:
            yield Wanted(kind, value, field)
    for field in ("guided_grammar", "ebnf"):
        text = getattr(body, field)
        if text is not None:
            yield grammar_constraint(text, field)
    if body.structured_outputs is not None:
        yield from _structured(body.structured_outputs)


def _structured(wanted: StructuredOutputs) -> Iterator[Wanted]:
    field = "structured_outputs"
    if wanted.json is not None:
        yield Wanted("json_schema", wanted.json, f"{field}.json")
    if wanted.json_object:
        yield Wanted("json_schema", ANY_OBJECT, f"{field}.json_object")
    if wanted.regex is not None:
        yield Wanted("regex", wanted.regex, f"{field}.regex")
    if wanted.choice is not None:
        yield Wanted("choices", wanted.choice, f"{field}.choice")
    if wanted.structural_tag is not None:
        yield Wanted("structural_tag", wanted.structural_tag, f"{field}.structural_tag")
    if wanted.grammar is not None:
        yield grammar_constraint(wanted.grammar, f"{field}.grammar")


_PLAIN_FIELDS = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "regex": "regex",
    "json_schema": "json_schema",
    "structural_tag": "structural_tag",
}
