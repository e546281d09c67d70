"""What stands in brackets behind a rule's name: `rule[max_tokens=50, capture="text"]: ...`."""

from collections.abc import Callable
from typing import NoReturn

from umbel.grammar.cfg.expressions import Expression, Literal, Options
from umbel.grammar.cfg.tokens import Token, Tokens

_KNOWN = 'lazy, suffix=..., stop=..., stop_capture="name", max_tokens=N, capture, capture="name"'
_REASONS = {
    "temperature": "is a sampling parameter; set it for the whole request",
    "max_tokens": "takes a number of at least 1",
    "capture": 'stands alone or takes a name, as in capture="city"',
    "stop_capture": 'takes a name, as in stop_capture="end"',
    "lazy": "takes no value",
    "suffix": "takes the text or terminal that ends the rule",
    "stop": "takes the text or terminal that ends the rule",
}

Atom = Callable[[], Expression]  # reads the value of an option


def read_options(tokens: Tokens, atom: Atom, rule: str) -> tuple[Options, int]:
    """The options of a rule of that name, and where they stand. Raises `UnsupportedGrammar` by
    option.
    """
    at = tokens.expect("[", "'['").at
    given: dict[str, Token] = {}
    lazy, max_tokens, capture, ending_capture = False, None, None, None
    ending: Expression | None = None
    while not tokens.take_if("]"):
        name = tokens.expect("name", "the name of an option")
        if name.text in given:
            raise tokens.source.error(f"option {name.text} is given twice", name.at)
        given[name.text] = name
        value = _value(tokens, atom)
        match name.text, value:
            case "lazy", None:
                lazy = True
            case "max_tokens", int() if value > 0:
                max_tokens = value
            case "capture", None:
                capture = rule
            case "capture", Literal(text=str(text)) if text:
                capture = text
            case "stop_capture", Literal(text=str(text)) if text:
                ending_capture = text
            case "suffix" | "stop", Literal(text=""):
                _refuse_empty(tokens, name)
            case "suffix" | "stop", _ if value is not None and not isinstance(value, int):
                ending = value
            case _:
                _refuse(tokens, name)
        if tokens.peek().kind != "]":
            tokens.expect(",", "',' or ']'")
    if "stop" in given and "suffix" in given:
        message = "stop and suffix both say where the rule ends; give one of them"
        raise tokens.source.error(message, given["stop"].at)
    if ending_capture is not None and ending is None:
        message = "stop_capture names the text of a stop or suffix, and the rule has none"
        raise tokens.source.error(message, given["stop_capture"].at)
    return Options(
        lazy=lazy or ending is not None,
        ending=ending,
        max_tokens=max_tokens,
        capture=capture,
        ending_capture=ending_capture,
    ), at


def _value(tokens: Tokens, atom: Atom) -> Expression | int | None:
    if not tokens.take_if("="):
        return None
    number = tokens.take_if("number")
    return int(number.text[:12]) if number else atom()


def _refuse_empty(tokens: Tokens, name: Token) -> NoReturn:
    message = (
        f'{name.text}="" makes an end token part of the text, which cannot be taken back; leave it '
        "out: a rule may end wherever its text is complete"
    )
    raise tokens.source.unsupported(message, name.at, name.text)


def _refuse(tokens: Tokens, name: Token) -> NoReturn:
    reason = _REASONS.get(name.text, f"is not known; known are {_KNOWN}")
    raise tokens.source.unsupported(f"option {name.text} {reason}", name.at, name.text)
