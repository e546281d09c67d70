"""What a caller may ask of one generation. Checked once, when it is built."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from umbel.runtime.errors import InvalidRequest

MAX_LOGPROBS = 64
MAX_SEQUENCES = 1024
SPECULATE = ("auto", "off")
CONSTRAINT_KINDS = ("regex", "choices", "json_schema", "lark", "gbnf", "structural_tag")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Options of one generation; unknown names and impossible values raise `InvalidRequest`.

    At most one of `CONSTRAINT_KINDS` may be given. `json_schema` is a dict, a bool, JSON text, or a
    type that has a schema (msgspec Struct, dataclass, pydantic model); `structural_tag` is
    XGrammar's, as JSON content or text. `max_tokens=None` means up to the end of the context.
    `logprobs=k` returns the log-probability of each output token and of the k most likely ones (of
    the model's own distribution, before masks, penalties and temperature); `prompt_logprobs`
    likewise.
    """

    max_tokens: int | None = 256
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    frequency_penalty: float = 0.0  # over output
    presence_penalty: float = 0.0  # over output
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None  # None: drawn by the engine
    n: int = 1
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True  # False: special tokens inside an output are part of its text
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    regex: str | None = None
    choices: Sequence[str] | None = None
    json_schema: Any = None  # any JSON value or a type: checked by the grammar compiler
    lark: str | None = None
    gbnf: str | None = None  # GBNF (llama.cpp) or EBNF (XGrammar)
    structural_tag: Any = None  # free text with constrained parts
    speculate: str = "auto"  # guess ahead where it pays, or "off": the same output

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.choices is not None:
            if isinstance(self.choices, str):
                raise _bad("choices", self.choices, "a list of strings")
            object.__setattr__(self, "choices", tuple(self.choices))
        _check(self)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether a choice depends on the tokens before by other ways than the model."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
        )

    @property
    def constraint_kind(self) -> str | None:
        """The one of `CONSTRAINT_KINDS` that was given, or None."""
        for name in CONSTRAINT_KINDS:
            if getattr(self, name) is not None:
                return name
        return None

    def with_options(self, **options: Any) -> "SamplingParams":
        """A copy with some options replaced; unknown names raise `InvalidRequest`."""
        _check_names(options)
        return replace(self, **options)


def make_params(params: SamplingParams | None, options: Mapping[str, Any]) -> SamplingParams:
    """`params` with `options` on top; the one door through which keyword options enter."""
    if params is not None and not isinstance(params, SamplingParams):
        raise _bad("params", params, "a SamplingParams or keyword options")
    return (params or SamplingParams()).with_options(**options)


def _check_names(options: Mapping[str, Any]) -> None:
    known = [f.name for f in fields(SamplingParams)]
    for name in options:
        if name not in known:
            raise InvalidRequest(
                f"unknown option {name!r}; accepted are {', '.join(known)}", param=name
            )


def _bad(name: str, got: object, accepted: str) -> InvalidRequest:
    return InvalidRequest(f"{name}={got!r} is not valid: expected {accepted}", param=name)


def _check(p: SamplingParams) -> None:
    def integer(name: str, low: int, high: int | None = None, *, optional: bool = False) -> None:
        value = getattr(p, name)
        if value is None and optional:
            return
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < low
            or (high is not None and value > high)
        ):
            upper = f" and at most {high}" if high is not None else ""
            none = " or None" if optional else ""
            raise _bad(name, value, f"an integer of at least {low}{upper}{none}")

    def number(name: str, low: float, high: float, *, open_low: bool = False) -> None:
        value = getattr(p, name)
        ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not ok or not (low < value if open_low else low <= value) or value > high:
            raise _bad(
                name, value, f"a finite number in {'(' if open_low else '['}{low:g}, {high:g}]"
            )

    integer("max_tokens", 1, optional=True)
    integer("min_tokens", 0)
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        raise _bad("min_tokens", p.min_tokens, f"at most max_tokens={p.max_tokens}")
    number("temperature", 0.0, 100.0)
    integer("top_k", 0)
    number("top_p", 0.0, 1.0, open_low=True)
    number("min_p", 0.0, 1.0)
    number("repetition_penalty", 0.0, 100.0, open_low=True)
    number("frequency_penalty", -2.0, 2.0)
    number("presence_penalty", -2.0, 2.0)
    integer("seed", 0, 2**63 - 1, optional=True)
    integer("n", 1, MAX_SEQUENCES)
    integer("logprobs", 0, MAX_LOGPROBS, optional=True)
    integer("prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
    if p.speculate not in SPECULATE:
        raise _bad("speculate", p.speculate, f"one of {', '.join(SPECULATE)}")
    for name in ("ignore_eos", "skip_special_tokens"):
        if not isinstance(getattr(p, name), bool):
            raise _bad(name, getattr(p, name), "True or False")
    for text in p.stop:
        if not isinstance(text, str) or not text:
            raise _bad("stop", p.stop, "non-empty strings")
    for token_id in p.stop_token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise _bad("stop_token_ids", p.stop_token_ids, "token ids (integers of at least 0)")
    if not isinstance(p.logit_bias, Mapping):
        raise _bad("logit_bias", p.logit_bias, "a mapping from token id to a number in [-100, 100]")
    for token_id, bias in p.logit_bias.items():
        ok = isinstance(token_id, int) and token_id >= 0 and isinstance(bias, int | float)
        if not ok or not -100.0 <= bias <= 100.0:
            raise _bad(
                "logit_bias", p.logit_bias, "a mapping from token id to a number in [-100, 100]"
            )
    for name in ("regex", "lark", "gbnf"):
        value = getattr(p, name)
        if value is not None and not isinstance(value, str):
            raise _bad(name, value, "a string")
    if p.choices is not None:
        if not p.choices or not all(isinstance(c, str) and c for c in p.choices):
            raise _bad("choices", p.choices, "a non-empty list of non-empty strings")
        if len(set(p.choices)) != len(p.choices):
            raise _bad("choices", p.choices, "distinct strings")
    given = [name for name in CONSTRAINT_KINDS if getattr(p, name) is not None]
    if len(given) > 1:
        raise InvalidRequest(
            f"{' and '.join(given)} were given together; a generation takes one constraint",
            param=given[1],
        )
