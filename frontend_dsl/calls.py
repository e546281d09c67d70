"""What can stand on the right of `s += ...`: text, `gen`, `select`, whole messages, and sums of
these.

These are plain records; nothing happens until they are appended to a state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypedDict, Unpack

from umbel.frontend_dsl.errors import Site
from umbel.frontend_dsl.scoring import METHODS
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams

_PARAMS = {field.name for field in fields(SamplingParams)}


class SamplingOptions(TypedDict, total=False):
    """Options of a generation that may also be defaults of a program: see `SamplingParams`."""

    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    skip_special_tokens: bool
    speculate: str
    logprobs: int | None
    prompt_logprobs: int | None


class GenOptions(SamplingOptions, total=False):
    """The options of `gen`: those of sampling, and at most one constraint."""

    regex: str | None
    choices: Sequence[str] | None
    json_schema: Any  # a JSON value or a type with a schema
    lark: str | None
    gbnf: str | None
    structural_tag: Any


class Expression:
    """Base of the records; `a + b` is the sequence of both."""

    __slots__ = ()

    def __add__(self, other: "str | Expression") -> "Sum":
        return Sum((*_terms(self), *_terms(other)))

    def __radd__(self, other: str) -> "Sum":
        return Sum((*_terms(other), *_terms(self)))


@dataclass(frozen=True, slots=True)
class Sum(Expression):
    terms: tuple["str | Expression", ...]


@dataclass(frozen=True, slots=True)
class Gen(Expression):
    name: str | None
    options: GenOptions
    site: Site

    def __str__(self) -> str:
        return f"gen({self.name!r})" if self.name is not None else "gen()"


@dataclass(frozen=True, slots=True)
class Select(Expression):
    name: str | None
    choices: tuple[str, ...]
    method: str
    temperature: float
    seed: int | None
    site: Site

    def __str__(self) -> str:
        return f"select({self.name!r})"


@dataclass(frozen=True, slots=True)
class Message(Expression):
    role: str
    terms: tuple["str | Expression", ...]

    def __str__(self) -> str:
        return f"{self.role}(...)"


def gen(name: str | None = None, **options: Unpack[GenOptions]) -> Gen:
    """Generate text here; `s[name]` is the text. Options are those of `SamplingParams`.

    Raises `InvalidRequest` for an unknown option, and for `n`: several samples are several branches
    (`fork`).
    """
    _check_name(name, "gen")
    check_options(options, extra=GenOptions.__annotations__)
    return Gen(name, options, Site.here())


def select(
    name: str | None,
    choices: Sequence[str],
    *,
    method: str = "token_length_normalized",
    temperature: float = 0.0,
    seed: int | None = None,
) -> Select:
    """Choose one of `choices`; `s[name]` is the choice, `s.meta(name).distribution` the probability
    of each.

    `method` is one of `scoring.METHODS`. `temperature` and `seed` are for "constrained", which
    decodes; the others compare log-probabilities. Raises `InvalidRequest` for choices that are
    empty, equal or no strings.
    """
    _check_name(name, "select")
    if (
        isinstance(choices, str)
        or not choices
        or not all(isinstance(c, str) and c for c in choices)
    ):
        raise InvalidRequest(
            f"choices={choices!r} is not valid: expected a list of non-empty strings",
            param="choices",
        )
    if len(set(choices)) != len(choices):
        twice = next(c for c in choices if list(choices).count(c) > 1)
        raise InvalidRequest(f"choices has {twice!r} twice; choices must differ", param="choices")
    if method not in METHODS:
        raise InvalidRequest(
            f"method={method!r} is not valid: expected one of {', '.join(METHODS)}", param="method"
        )
    if method != "constrained" and (temperature != 0.0 or seed is not None):
        raise InvalidRequest(
            f"temperature and seed mean nothing to method={method!r}; "
            "use method='constrained' to sample",
            param="temperature",
        )
    SamplingParams(temperature=temperature, seed=seed)  # checks the two
    return Select(name, tuple(choices), method, temperature, seed, Site.here())


def message(role: str, *terms: "str | Expression") -> Message:
    """A whole message of `role`; the parts may be texts, `gen` and `select`."""
    for term in terms:
        if not isinstance(term, str | Expression) or isinstance(term, Message):
            raise InvalidRequest(f"a {role} message takes text, gen and select, not {term!r}")
    return Message(role, terms)


def system(*terms: "str | Expression") -> Message:
    """A whole system message in the model's own chat template."""
    return message("system", *terms)


def user(*terms: "str | Expression") -> Message:
    """A whole user message in the model's own chat template."""
    return message("user", *terms)


def assistant(*terms: "str | Expression") -> Message:
    """A whole assistant message, `assistant(gen("answer"))` for instance."""
    return message("assistant", *terms)


def image(*_: object, **__: object) -> NoReturn:
    """Refused: Umbel runs text models only."""
    raise InvalidRequest(
        "image(...) is not supported: Umbel runs text models only; describe the image in text"
    )


def check_options(options: Mapping[str, Any], *, extra: Mapping[str, Any] = {}) -> None:
    """Names only; the values are checked by `SamplingParams` when the call is appended."""
    known = {**SamplingOptions.__annotations__, **extra}
    for name in options:
        if name == "n":
            raise InvalidRequest(
                "n is not an option of a program's call: one branch goes on with one text; "
                "use s.fork(n) and one gen per branch",
                param="n",
            )
        if name in _PARAMS and name not in known:
            raise InvalidRequest(
                f"{name} cannot be a default of a program; give it to each gen", param=name
            )
        if name not in known:
            raise InvalidRequest(
                f"unknown option {name!r}; accepted are {', '.join(sorted(known))}", param=name
            )


def _check_name(name: object, call: str) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidRequest(
            f"{call}({name!r}): the name must be a non-empty string or None", param="name"
        )


def _terms(value: "str | Expression") -> tuple["str | Expression", ...]:
    if isinstance(value, Sum):
        return value.terms
    if isinstance(value, str | Expression):
        return (value,)
    raise InvalidRequest(
        f"cannot append {type(value).__name__} {value!r}; convert it to text with str()"
    )
