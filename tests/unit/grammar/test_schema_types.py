"""Python types as schemas: the generated text decodes into the type."""

import enum
import json
import random
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from unit.grammar.oracles import byte_vocabulary, matches, random_walk, text_of, trained_vocabulary

from umbel.grammar import GrammarError, Limits, compile_json_schema
from umbel.grammar.schema.load import schema_of_type
from umbel.grammar.schema.texts import warm_up_steps


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: Annotated[int, msgspec.Meta(ge=0, lt=50)] = 3


class Circle(msgspec.Struct, tag="circle"):
    center: Point
    radius: float


class Square(msgspec.Struct, tag="square"):
    corners: tuple[int, int]
    color: Color | None = None


@dataclass
class Person:
    name: Annotated[str, msgspec.Meta(max_length=8)]
    friends: list[bool]


class Movie(TypedDict):
    title: Literal["Alien", "Aliens"]
    year: int


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, pydantic.Field(ge=1, le=9)]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Owner(pydantic.BaseModel):
    pet: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
    color: Color


MSGSPEC_TYPES: list[Any] = [
    Color,
    Point,
    Circle | Square,
    Person,
    Movie,
    Literal["a", 1, None],
    list[Point],
    dict[str, int],
    int | None,
    bool,
]


@pytest.mark.parametrize("kind", MSGSPEC_TYPES, ids=str)
def test_walks_decode_into_the_type(kind: Any) -> None:
    vocabulary = trained_vocabulary()
    constraint = compile_json_schema(kind, vocabulary)
    rng = random.Random(4)
    for _ in range(5):
        taken, complete = random_walk(constraint, vocabulary, rng)

        assert complete
        text = text_of(taken, vocabulary)
        if any(len(digits) > 18 for digits in _integers(text)):
            continue  # JSON has integers beyond the 64 bits that msgspec decodes
        msgspec.json.decode(text, type=kind)


def _integers(text: bytes) -> list[bytes]:
    return "".join(c if c.isdigit() else " " for c in text.decode()).encode().split()


def test_walks_validate_as_the_pydantic_model() -> None:
    vocabulary = trained_vocabulary()
    constraint = compile_json_schema(Owner, vocabulary)
    rng = random.Random(4)
    for _ in range(8):
        taken, complete = random_walk(constraint, vocabulary, rng)

        assert complete
        Owner.model_validate_json(text_of(taken, vocabulary))


def test_a_dict_and_json_text_are_the_same_schema() -> None:
    schema = msgspec.json.schema(Point)
    keys = {
        compile_json_schema(given, byte_vocabulary()).key for given in (schema, json.dumps(schema))
    }

    assert len(keys) == 1


def test_integers_of_a_type_have_no_fraction() -> None:
    assert matches(compile_json_schema({"type": "integer"}, byte_vocabulary()), "5.0")
    for source in (int, schema_of_type(int)):
        assert not matches(compile_json_schema(source, byte_vocabulary()), "5.0")


@pytest.mark.parametrize("kind", [*MSGSPEC_TYPES, int, Owner], ids=str)
def test_the_stored_schema_of_a_type_gives_the_constraint_of_the_type(kind: Any) -> None:
    stored = json.loads(json.dumps(schema_of_type(kind)))

    keys = {compile_json_schema(schema, byte_vocabulary()).key for schema in (kind, stored)}

    assert len(keys) == 1


def test_the_callers_dict_is_not_shared() -> None:
    schema = {"type": "integer"}
    constraint = compile_json_schema(schema, byte_vocabulary())
    schema["type"] = "string"

    assert matches(constraint, "5")


@pytest.mark.parametrize("kind", [complex, object()])
def test_a_type_without_schema_is_refused(kind: Any) -> None:
    with pytest.raises(GrammarError, match="has no JSON Schema"):
        compile_json_schema(kind, byte_vocabulary())


def test_formats_can_be_made_ready_beforehand() -> None:
    for step in warm_up_steps(Limits()):
        step()
    constraint = compile_json_schema({"format": "date-time"}, byte_vocabulary())

    assert matches(constraint, '"2024-02-29T12:00:00Z"')
    assert not matches(constraint, '"2023-02-29T12:00:00Z"')


class Inner(msgspec.Struct):
    b: bool


class Outer(msgspec.Struct):
    a: int
    inner: list[Inner]


def test_a_type_has_only_the_fields_that_it_declares() -> None:
    constraint = compile_json_schema(Outer, byte_vocabulary())

    assert matches(constraint, '{"a":1,"inner":[{"b":true}]}')
    assert not matches(constraint, '{"a":1,"inner":[],"c":2}')
    assert not matches(constraint, '{"a":1,"inner":[{"b":true,"c":2}]}')
