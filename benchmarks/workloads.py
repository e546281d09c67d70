"""The work that every engine of the comparison does: pure functions of their arguments, standard
library only, so that each engine's own Python can import it.

Token workloads are lists of ids that no vocabulary of SmolLM2's size reserves. Different
repetitions have no prefix in common, so a cache that outlives one cannot help in the next.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_FIRST_ID, _PAST_IDS = 1000, 48_000
CLIENT_TOKENS = 64
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
# Each word is one token of SmolLM2 with the space before it, so N words are N tokens there.
_WORDS = (
    "the of and to in is was for that with as on by are from at an be this or which one had "
    "not but what all were when we there can out other time more people some could would "
    "about than into two may these over such new also after first any most made between where "
    "work through even well being year used during under place small water found light large "
    "world still number system house point group school family power history country state "
    "order right public later night river north south food music model letter paper color "
    "field green summer winter garden bridge market island forest mountain village teacher "
    "student engine wheel metal glass stone table window corner street morning evening city "
    "road ship train plane horse bird fish tree flower fruit bread milk salt sugar coffee tea "
    "sound voice story book page word line name question answer problem result change energy "
    "force heat speed weight height length surface center ocean storm wind rain snow cloud "
    "sun moon star"
)
WORDS = tuple(_WORDS.split())
APPROACHES = ("Think step by step:", "Work backwards from the goal:", "List the facts first:")
JUDGE = "\nThe best of the three approaches is number"
SUBJECTS = (
    "a bicycle shop in Oslo",
    "Maria Lopez, a science teacher",
    "a trip from Paris to Tokyo",
    "the garden of a small hotel",
)


@dataclass
class Work:
    """Requests that are given to an engine at once; greedy, the end of text is ignored.

    prompts: token ids or texts. max_tokens: exactly so many without a schema, at most with one.
    warm_up: prompts that are served before the clock starts, one token each.
    """

    prompts: list[Any]
    max_tokens: list[int]
    schemas: list[Any] = field(default_factory=list)  # one per prompt, or none at all
    warm_up: list[Any] = field(default_factory=list)
    counts_prompt: bool = False  # the rate is of prompt tokens
    one_by_one: bool = False


def token_ids(count: int, *seed: object) -> list[int]:
    draw = random.Random(repr(seed))
    return [draw.randrange(_FIRST_ID, _PAST_IDS) for _ in range(count)]


def decode(rows: int, repetition: object) -> Work:
    prompts = [token_ids(32, "decode", rows, repetition, i) for i in range(rows)]
    return Work(prompts, [128] * rows)


def prefill(length: int, repetition: object) -> Work:
    return Work([token_ids(length, "prefill", length, repetition)], [1], counts_prompt=True)


def shared_prefix(rows: int, repetition: object, *, is_warm: bool) -> Work:
    """2,048 common tokens, 32 own ones, 64 new ones. Warm: other suffixes came before."""
    prefix = token_ids(2048, "prefix", rows, repetition)

    def wave(number: int) -> list[list[int]]:
        return [prefix + token_ids(32, "suffix", rows, repetition, number, i) for i in range(rows)]

    return Work(wave(int(is_warm)), [64] * rows, warm_up=wave(0) if is_warm else [])


def words(count: int, *seed: object) -> str:
    draw = random.Random(repr(seed))
    return "".join(" " + draw.choice(WORDS) for _ in range(count))


def clients(count: int, repetition: object) -> list[list[str]]:
    """Per client four prompts of 64 words, one after the other; `CLIENT_TOKENS` new tokens each."""
    return [
        [words(64, "http", count, repetition, client, number) for number in range(4)]
        for client in range(count)
    ]


@dataclass
class AgentWork:
    """Per question three branches, then a judge who reads all three; greedy, the end is ignored."""

    system: str
    questions: list[str]
    branch_tokens: int = 48
    judge_tokens: int = 32

    def branch(self, question: str, approach: str) -> str:
        return self.system + question + approach

    def judge(self, question: str, texts: Sequence[str]) -> str:
        parts = [a + text for a, text in zip(APPROACHES, texts, strict=True)]
        return self.system + question + "\n".join(parts) + JUDGE


def agent(repetition: object) -> AgentWork:
    """16 questions under one system prompt of 1,000 tokens: 64 calls."""
    questions = [f"\n\nQuestion:{words(40, 'question', repetition, i)}?\n" for i in range(16)]
    return AgentWork("Rules:" + words(998, "agent", repetition), questions)


def chat(user: str) -> str:
    """SmolLM2's chat template, written out: every engine gets the same text."""
    turns = (("system", SYSTEM), ("user", user))
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return text + "<|im_start|>assistant\n"


def constrained(*, one_by_one: bool = False) -> Work:
    """32 requests, 8 schemas, at most 200 new tokens; the first 8 where they come one by one."""
    pairs = [(task.format(s), schema) for s in SUBJECTS for task, schema in SCHEMAS.values()]
    if one_by_one:
        pairs = pairs[:8]
    prompts = [chat(task) for task, _ in pairs]
    schemas = [schema for _, schema in pairs]
    return Work(prompts, [200] * len(pairs), schemas, prompts, one_by_one=one_by_one)


def unconstrained(lengths: list[int]) -> Work:
    """The prompts of `constrained`, and as many tokens as its answers had."""
    work = constrained()
    return Work(work.prompts, lengths, warm_up=work.prompts)


def _object(properties: dict[str, Any], *, optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _array(items: Any, low: int, high: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def _enum(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _text(**options: Any) -> dict[str, Any]:
    return {"type": "string", **options}


def _integer(low: int | None = None, high: int | None = None) -> dict[str, Any]:
    limits = {"minimum": low, "maximum": high}
    return {"type": "integer", **{key: value for key, value in limits.items() if value is not None}}


_NUMBER, _BOOL = {"type": "number"}, {"type": "boolean"}


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return _object({"name": {"const": name}, "arguments": _object(arguments)})


_AIRPORT = _text(pattern="^[A-Z]{3}$")
_TIME = _text(pattern="^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]$")
_NODE = _object(
    {
        "label": _text(),
        "kind": _enum("root", "inner", "leaf"),
        "children": _array({"$ref": "#/$defs/node"}, 0, 2),
    }
)
# name -> (task, schema)
SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "invoice": (
        "Write an invoice for {} as a JSON object.",
        _object(
            {
                "invoice_id": _text(pattern="^INV-[0-9]{6}$"),
                "currency": _enum("USD", "EUR", "GBP", "JPY", "CHF"),
                "customer": _object(
                    {"name": _text(), "email": _text(), "vat_id": {"type": ["string", "null"]}}
                ),
                "lines": _array(
                    _object(
                        {
                            "sku": _text(),
                            "description": _text(),
                            "quantity": _integer(),
                            "unit_price": _NUMBER,
                        }
                    ),
                    1,
                    3,
                ),
                "total": _NUMBER,
                "paid": _BOOL,
            }
        ),
    ),
    "user": (
        "Make a user record for {} as a JSON object.",
        _object(
            {
                "id": _integer(1, 99_999),
                "username": _text(minLength=3, maxLength=16),
                "full_name": _text(),
                "role": _enum("admin", "editor", "viewer", "guest"),
                "active": _BOOL,
                "address": _object(
                    {
                        "street": _text(),
                        "city": _text(),
                        "zip": _text(pattern="^[0-9]{5}$"),
                        "country": _text(),
                    }
                ),
                "tags": _array(_text(), 0, 4),
            }
        ),
    ),
    "tool_call": (
        "Choose one tool to help {} and write the call as a JSON object.",
        {
            "anyOf": [
                _call(
                    "get_weather",
                    {
                        "city": _text(),
                        "unit": _enum("celsius", "fahrenheit"),
                        "days": _integer(1, 14),
                    },
                ),
                _call(
                    "send_email",
                    {
                        "to": _array(_text(), 1, 3),
                        "subject": _text(),
                        "body": _text(),
                        "priority": _enum("low", "normal", "high"),
                    },
                ),
                _call(
                    "search_flights",
                    {
                        "origin": _AIRPORT,
                        "destination": _AIRPORT,
                        "cabin": _enum("economy", "premium_economy", "business", "first"),
                        "passengers": _integer(),
                        "flexible": _BOOL,
                    },
                ),
            ]
        },
    ),
    "matrix": (
        "Write a small matrix about {} as a JSON object.",
        _object(
            {
                "title": _text(),
                "rows": _integer(1, 9),
                "columns": _integer(1, 9),
                "data": _array(_array(_NUMBER, 2, 3), 2, 3),
                "labels": _array(_enum("x", "y", "z", "t"), 2, 4),
            }
        ),
    ),
    "tree": (
        "Write a small tree of topics about {} as a JSON object.",
        {
            "$defs": {"node": _NODE},
            **_object({"name": _text(), "root": {"$ref": "#/$defs/node"}}),
        },
    ),
    "event": (
        "Write a calendar event about {} as a JSON object.",
        _object(
            {
                "kind": _enum("meeting", "call", "deadline", "travel"),
                "title": _text(maxLength=40),
                "start": _TIME,
                "duration_minutes": _integer(5, 600),
                "attendees": _array(
                    _object(
                        {"name": _text(), "status": _enum("accepted", "declined", "tentative")}
                    ),
                    1,
                    4,
                ),
                "location": {
                    "anyOf": [
                        _object({"room": _text()}),
                        _object({"url": _text()}),
                        {"type": "null"},
                    ]
                },
            }
        ),
    ),
    "product": (
        "Describe a product for {} as a JSON object.",
        _object(
            {
                "name": _text(),
                "category": _enum("books", "electronics", "garden", "toys", "clothing", "food"),
                "price": _object({"amount": _NUMBER, "currency": _enum("USD", "EUR", "GBP")}),
                "variants": _array(
                    _object(
                        {
                            "color": _enum("red", "green", "blue", "black", "white"),
                            "size": _enum("S", "M", "L", "XL"),
                            "stock": _integer(),
                        }
                    ),
                    1,
                    4,
                ),
                "rating": {"type": "number", "minimum": 0, "maximum": 5},
                "in_stock": _BOOL,
            },
            optional=("rating", "in_stock"),
        ),
    ),
    "review": (
        "Summarize a customer review of {} as a JSON object.",
        _object(
            {
                "sentiment": _enum("positive", "neutral", "negative"),
                "score": _integer(1, 10),
                "aspects": _array(
                    _object(
                        {
                            "aspect": _enum("price", "quality", "delivery", "support"),
                            "opinion": _text(),
                        }
                    ),
                    1,
                    3,
                ),
                "summary": _text(maxLength=80),
                "would_recommend": _BOOL,
            }
        ),
    ),
}

NAMES = (
    "decode_b1",
    "decode_b4",
    "decode_b16",
    "decode_b64",
    "prefill_1024",
    "prefill_4096",
    "prefix2048_b16_cold",
    "prefix2048_b16_warm",
    "prefix2048_b64_cold",
    "prefix2048_b64_warm",
    "json_constrained",
    "json_unconstrained",
    "json_constrained_b1",
    "http_c1",
    "http_c16",
    "agent_http",
    "agent_program",
)


def make(name: str, repetition: object, lengths: list[int]) -> Work:
    """One repetition of a workload. lengths: of the answers of `json_constrained`, which must
    have run before `json_unconstrained`.
    """
    kind, _, rest = name.partition("_")
    if kind == "decode":
        return decode(int(rest[1:]), repetition)
    if kind == "prefill":
        return prefill(int(rest), repetition)
    if kind == "prefix2048":
        rows, _, temperature = rest.partition("_")
        return shared_prefix(int(rows[1:]), repetition, is_warm=temperature == "warm")
    if name == "json_unconstrained":
        return unconstrained(lengths)
    return constrained(one_by_one=name.endswith("_b1"))
