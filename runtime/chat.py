"""The model's chat template: whole conversations, and the pieces around one message.

Called by the engine and the language. Templates come from model files, so they run in jinja2's
immutable sandbox with a budget of operations and of output. What users write is kept apart from
what the template writes, so that it never becomes a special token.
"""

import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, Protocol

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from umbel.runtime.errors import InvalidRequest

MAX_OUTPUT_CHARS = 16 << 20
MAX_OPERATIONS = 5_000_000  # loop rounds, calls and look-ups of one rendering
_CONTENT = "\ue000content\ue001"  # stands for a message's text; private-use, no whitespace to trim

_WIDE_FORMAT = re.compile(r"\*|\d{5}")

Message = Mapping[str, Any]


class ChatTokenizer(Protocol):
    """What a template needs of a tokenizer."""

    chat_template: str | None
    special_names: dict[str, str]
    special_ids: dict[str, int]

    def encode(self, text: str, *, special: bool = False) -> list[int]: ...


class ChatTemplate:
    """A compiled template; `text=None` is a model without one, on which every method raises.

    `special_names` are the variables that templates expect ("bos_token" -> "<s>", ...);
    `special_texts` are the texts that `encode(..., special=True)` turns into special tokens.
    All methods raise `InvalidRequest` when the template refuses the messages or fails.
    """

    def __init__(
        self,
        text: str | None,
        special_names: Mapping[str, str] | None = None,
        *,
        special_texts: Collection[str] = (),
    ) -> None:
        self._special_names = dict(special_names or {})
        # Longest first, so that of two texts with one start the longer is found.
        self._special_texts = sorted(special_texts, key=len, reverse=True)
        self._environment = _Environment()
        self._template = None if text is None else self._environment.compile_text(text)

    @classmethod
    def of(cls, tokenizer: ChatTokenizer) -> "ChatTemplate":
        """The template of a model's tokenizer."""
        return cls(
            tokenizer.chat_template,
            tokenizer.special_names,
            special_texts=tokenizer.special_ids.keys(),
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Any] | None = None,
        **extra: Any,
    ) -> str:
        """The conversation as text. `extra` are further variables of the template (`documents`,
        `enable_thinking`, ...)."""
        if self._template is None:
            raise InvalidRequest(
                "the model has no chat template, so it takes no messages; give a prompt instead",
                param="messages",
            )
        _check_messages(messages)
        variables = {
            **self._special_names,
            **extra,
            "messages": list(messages),
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._environment.run(self._template, variables)
        except _OverBudget as exc:
            raise InvalidRequest(f"the chat template was stopped: {exc}", param="messages") from exc
        except RecursionError:
            raise InvalidRequest(
                "the model's chat template calls itself without end", param="messages"
            ) from None  # its traceback has a thousand frames
        # A template runs any expression over the messages: whatever it raises is its verdict.
        except Exception as exc:
            reason = str(exc) or type(exc).__name__
            raise InvalidRequest(
                f"the model's chat template does not accept these messages: {reason}",
                param="messages",
            ) from exc

    def encode(
        self,
        tokenizer: ChatTokenizer,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Any] | None = None,
        **extra: Any,
    ) -> list[int]:
        """The conversation as tokens, in which special tokens come from the template only.

        Special texts inside messages are marked before rendering and encoded as ordinary text; a
        conversation without any is encoded in one piece. Begins with the bos token if the template
        writes it: do not add another.
        """
        marks: list[str] = []
        text = self.render(
            _marked(list(messages), self._special_texts, marks),
            add_generation_prompt=add_generation_prompt,
            tools=_marked(tools, self._special_texts, marks),
            **{name: _marked(value, self._special_texts, marks) for name, value in extra.items()},
        )
        ids: list[int] = []
        for piece, is_users in _pieces(text, marks):
            ids += tokenizer.encode(piece, special=not is_users)
        return ids

    def open_role(self, messages_so_far: Sequence[Message], role: str) -> str:
        """The text between the conversation so far and the content of a new message of `role`.

        For "assistant" this is the generation prompt. Raises `InvalidRequest` when the template
        rewrites what was written before, so that nothing can be appended.
        """
        before, opened, _ = self._around(messages_so_far, role)
        if role != "assistant":
            return opened
        prompted = self.render(messages_so_far, add_generation_prompt=True)
        if not messages_so_far and opened.endswith(prompted):
            return opened  # with what the template writes before a first message
        if not prompted.startswith(before):
            raise _rewrites(role)
        prompt = prompted[len(before) :]
        if not _is_at(opened, prompt):
            # Some templates dress up the newest answer (an empty thought): look at an older one.
            answered = [*messages_so_far, _message(role), {"role": "user", "content": ""}]
            head = self.render(answered, add_generation_prompt=False).split(_CONTENT)[0]
            if not head.startswith(before) or not _is_at(head[len(before) :], prompt):
                raise _rewrites(role)
        return prompt

    def close_role(self, messages_so_far: Sequence[Message], role: str) -> str:
        """The text after the content of a message of `role` that follows `messages_so_far`."""
        return self._around(messages_so_far, role)[2]

    def _around(self, messages: Sequence[Message], role: str) -> tuple[str, str, str]:
        """(conversation so far, opening, closing) of a new message of `role`."""
        whole = self.render([*messages, _message(role)], add_generation_prompt=False)
        head, *rest = whole.split(_CONTENT)
        if len(rest) != 1:
            raise InvalidRequest(
                f"the model's chat template writes the content of a {role!r} message "
                f"{len(rest)} times at this place, not once, so it cannot be appended by itself; "
                f"render the conversation as a whole",
                param="messages",
            )
        for before in self._so_far(messages):
            if head.startswith(before):
                return before, head[len(before) :], rest[0]
        raise _rewrites(role)

    def _so_far(self, messages: Sequence[Message]) -> Iterator[str]:
        """The conversation as it may have been written: rendered, or with the last answer appended
        to its generation prompt (not the same where a template dresses up the newest answer)."""
        if not messages:
            yield ""  # templates look at the first message: of none there is nothing to render
            return
        yield self.render(messages, add_generation_prompt=False)
        *earlier, last = messages
        content = last.get("content")
        if last["role"] == "assistant" and isinstance(content, str):
            prompted = self.render(earlier, add_generation_prompt=True)
            closing = self._around(earlier, "assistant")[2]
            yield prompted + content + closing
            yield prompted + content.strip() + closing  # many templates trim


def _message(role: str) -> Message:
    return {"role": role, "content": _CONTENT}


def _is_at(opened: str, prompt: str) -> bool:
    """Whether the content comes right after `prompt`, but for whitespace, which then the model
    writes itself (Mistral's templates)."""
    return opened.startswith(prompt) and not opened[len(prompt) :].strip()


def _rewrites(role: str) -> InvalidRequest:
    return InvalidRequest(
        f"the model's chat template rewrites earlier text when a {role!r} message follows, so it "
        f"cannot be appended by itself; render the conversation as a whole",
        param="messages",
    )


def _check_messages(messages: Sequence[Message]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"messages[{index}] is not valid: expected an object with a string 'role' and a "
                f"'content', got {message!r:.80}",
                param="messages",
            )


def _marked(value: Any, specials: Sequence[str], marks: list[str]) -> Any:
    """`value` with each special text inside its strings replaced by a mark, appended to `marks`."""
    if isinstance(value, str):
        for special in specials:
            if special in value:
                value = value.replace(special, _mark(len(marks)))
                marks.append(special)
        return value
    if isinstance(value, Mapping):
        pairs = [(_marked(key, specials, marks), item) for key, item in value.items()]
        return {key: _marked(item, specials, marks) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [_marked(item, specials, marks) for item in value]
    return value


def _mark(index: int) -> str:
    return f"\ue000{index}\ue001"


def _pieces(text: str, marks: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """(piece, whether a user wrote it as it stands) of a text with marks."""
    position = 0
    while marks and (start := text.find("\ue000", position)) >= 0:
        stop = text.find("\ue001", start)
        number = text[start + 1 : stop] if stop >= 0 else ""
        if not (number.isascii() and number.isdigit() and int(number) < len(marks)):
            stop = start  # a private-use character of the user's own
            yield text[position : stop + 1], False
        else:
            yield text[position:start], False
            yield marks[int(number)], True
        position = stop + 1
    yield text[position:], False


class _OverBudget(Exception):
    """The template did more than it may."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` ... `{% endgeneration %}` marks assistant text for training: its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """What Hugging Face templates expect, in a sandbox that counts operations."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self._spent = threading.local()
        self.filters["tojson"] = _to_json
        self.globals.update(raise_exception=_raise, strftime_now=_now, range=self._range)

    def compile_text(self, text: str) -> jinja2.Template:
        try:
            return self.from_string(text)
        except (jinja2.TemplateError, RecursionError) as exc:
            raise InvalidRequest(f"the model's chat template cannot be compiled: {exc}") from exc

    def run(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        self._spent.operations = 0
        parts: list[str] = []
        num_chars = 0
        for part in template.generate(variables):
            num_chars += len(part)
            if num_chars > MAX_OUTPUT_CHARS:
                raise _OverBudget(f"it wrote more than {MAX_OUTPUT_CHARS} characters")
            parts.append(part)
        return "".join(parts)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self._charge(1)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self._charge(1)
        return super().getitem(obj, argument)

    # The parameters' names are jinja2's: they must not collide with those of the called object.
    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self._charge(1)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" or (operator in "*%" and not numbers):
            self._charge(_size(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        self._charge(len(numbers))
        return numbers

    def _charge(self, num_operations: int) -> None:
        spent = getattr(self._spent, "operations", 0) + num_operations
        self._spent.operations = spent
        if spent > MAX_OPERATIONS:
            raise _OverBudget(f"it used more than {MAX_OPERATIONS} operations")


def _size(operator: str, left: Any, right: Any) -> int:
    """What an operation may cost: the length of a repeated string; powers and wide
    formats are refused."""
    if operator == "*":
        times = left if isinstance(left, int) else right
        repeated = right if isinstance(left, int) else left
        if isinstance(times, int) and hasattr(repeated, "__len__"):
            return max(0, times) * len(repeated)
    if operator == "%" and isinstance(left, str) and not _WIDE_FORMAT.search(left):
        return 1
    return MAX_OPERATIONS + 1


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it stands: jinja2's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
