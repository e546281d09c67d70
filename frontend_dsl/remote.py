"""`umbel.Remote(url)`: programs on any server with OpenAI's `/v1/completions`.

To a program it is an engine whose tokens are the characters of the text: prompts go out as text, so
nothing of the server's tokenizer is needed. What the server's protocol has not is refused when the
call is appended, before anything is sent.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, Literal

from umbel.frontend_dsl.tracing.outcomes import schema_data
from umbel.runtime.errors import (
    EngineClosed,
    EngineError,
    InvalidRequest,
    QueueFull,
    RequestCancelled,
    UmbelError,
)
from umbel.runtime.outputs import Chunk, Completion, FinishReason, Score, Timing, Usage
from umbel.runtime.params import SamplingParams

_SENT = (
    "max_tokens", "temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty",
)  # fmt: skip
_CONSTRAINTS = {"regex": "regex", "choices": "choice", "json_schema": "json", "lark": "grammar"}
_TEMPLATES = {"chatml": ("<|im_start|>{role}\n", "<|im_end|>\n")}
_ENGINE = "run the program on an Engine, or leave it out"


class RemoteCall:
    """A request under way. `read` makes an event of the server's answer and the seconds it took;
    `fail` makes one of an error.
    """

    def __init__(
        self,
        listener: Callable[[Any], None],
        read: Callable[[Any, float], Any],
        fail: Callable[[UmbelError], Any],
    ) -> None:
        self._listener: Callable[[Any], None] | None = listener
        self._fail = fail
        self.read = read

    def cancel(self) -> None:
        """The program hears at once; the server may still finish the request."""
        self.fail(RequestCancelled("the request was cancelled"))

    def fail(self, error: UmbelError) -> None:
        self.end(self._fail(error))

    def end(self, event: Any) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener(event)


class _NoPin:
    def cancel(self) -> None:
        pass


class Remote:
    """A server as an engine for programs; close it when done.

    `structured_outputs`: the server takes vLLM's field of that name, so `regex`, `choices`,
    `json_schema` and `lark` can be sent (Umbel's own server does); "gbnf": it takes llama.cpp's
    `grammar`, so `choices` and `gbnf` can be. `scores`: it answers `echo` with the
    log-probabilities of the prompt's tokens, so `select` can ask for them, one request per choice
    (vLLM and Umbel's server do). `template`: "chatml", or the texts that open and close a
    message (with "{role}"); without one, roles are refused.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str | None = None,
        structured_outputs: bool | Literal["gbnf"] = False,
        scores: bool = False,
        template: str | tuple[str, str] | None = None,
        timeout_s: float = 600.0,
        max_connections: int = 64,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"url={url!r} is not valid: expected http://... or https://...")
        if structured_outputs not in (True, False, "gbnf"):
            raise InvalidRequest(
                f"structured_outputs={structured_outputs!r} is not valid: expected True, False or "
                "'gbnf'"
            )
        if isinstance(template, str) and template not in _TEMPLATES:
            raise InvalidRequest(
                f"template={template!r} is not known; there are {', '.join(_TEMPLATES)}, "
                'or give the two texts around a message, with "{role}"'
            )
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self._model = model
        self._api_key = api_key
        self._constraints = structured_outputs
        self._has_scores = scores
        self._template = _TEMPLATES[template] if isinstance(template, str) else template
        self._timeout_s = timeout_s
        self._pool = ThreadPoolExecutor(max_connections, thread_name_prefix="umbel-remote")
        self._is_closed = False

    def __enter__(self) -> "Remote":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take no more requests; those that wait for a connection are dropped. Idempotent."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The characters of `text`: whether they become special tokens is for the server."""
        return [ord(character) for character in text]

    def bos_ids(self) -> list[int]:
        return []  # the server puts its own

    def eos_ids(self) -> list[int]:
        return []

    def open_role(self, messages: Sequence[Mapping[str, str]], role: str) -> str:
        return self._texts()[0].replace("{role}", role)

    def close_role(self, messages: Sequence[Mapping[str, str]], role: str) -> str:
        return self._texts()[1].replace("{role}", role)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Requests go out one by one: the protocol cannot hand over several together."""
        yield

    def submit(
        self, token_ids: Sequence[int], params: SamplingParams, listener: Callable[[Chunk], None]
    ) -> RemoteCall:
        """Generate after the text. Raises `InvalidRequest` for what the server cannot be asked."""
        if not token_ids:
            raise InvalidRequest("a server needs a prompt: append text before the first gen")
        call = RemoteCall(listener, _completed, lambda error: Chunk(0, error=error))
        return self._send(call, token_ids, self._options(params))

    def submit_score(
        self,
        token_ids: Sequence[int],
        continuation_ids: Sequence[int],
        listener: Callable[[Score | UmbelError], None],
    ) -> RemoteCall:
        """The log-probabilities of the continuation's tokens, as the server cuts it. Refused
        without `scores=True`.
        """
        if not self._has_scores:
            raise InvalidRequest(
                "select needs scores of given texts: Remote(..., scores=True) if the server echoes "
                "prompts with their log-probabilities; else use gen(choices=[...]) with "
                "structured_outputs=True, or run the program on an Engine"
            )
        read = partial(_scored, tuple(continuation_ids))
        call = RemoteCall(listener, read, lambda error: error)
        options = {"max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0.0}
        return self._send(call, [*token_ids, *continuation_ids], options)

    def pin(self, token_ids: Sequence[int]) -> "_NoPin":
        """Nothing: what a server caches is its own affair."""
        return _NoPin()

    def _send(
        self, call: RemoteCall, prompt: Sequence[int], options: Mapping[str, Any]
    ) -> RemoteCall:
        if self._is_closed:
            raise EngineClosed("this Remote was closed")
        body = {"model": self._model, "prompt": "".join(map(chr, prompt)), **options}
        self._pool.submit(self._work, body, call)
        return call

    def _texts(self) -> tuple[str, str]:
        if self._template is None:
            raise InvalidRequest(
                "roles need the template of the server's model: Remote(..., template='chatml')"
            )
        return self._template

    def _options(self, params: SamplingParams) -> dict[str, Any]:
        plain = SamplingParams()
        options: dict[str, Any] = {name: getattr(params, name) for name in _SENT}
        options["stop"] = list(params.stop) or None
        for field in fields(SamplingParams):
            name, value = field.name, getattr(params, field.name)
            if name in _SENT or value == getattr(plain, name):
                continue
            options |= self._constraint(name, value)
        return {name: value for name, value in options.items() if value is not None}

    def _constraint(self, name: str, value: Any) -> dict[str, Any]:
        """The field of the body that asks for a constraint."""
        if name not in (*_CONSTRAINTS, "gbnf"):
            raise InvalidRequest(f"{name} is not part of OpenAI's protocol; {_ENGINE}", param=name)
        if not self._constraints:
            raise InvalidRequest(
                f"{name} needs a server with structured outputs: "
                f"Remote(..., structured_outputs=True) if it has them; else {_ENGINE}",
                param=name,
            )
        if self._constraints == "gbnf" and name in ("gbnf", "choices"):
            return {"grammar": value if name == "gbnf" else _choices_as_gbnf(value)}
        if self._constraints == "gbnf":
            raise InvalidRequest(
                f"{name} cannot be sent to a server that takes GBNF; choices and gbnf can; "
                f"{_ENGINE}",
                param=name,
            )
        if name == "gbnf":
            raise InvalidRequest(
                "gbnf needs a server that takes GBNF: Remote(..., structured_outputs='gbnf') if it "
                f"does; else {_ENGINE}",
                param=name,
            )
        sent = schema_data(value) if name == "json_schema" else value
        return {"structured_outputs": {_CONSTRAINTS[name]: sent}}

    def _work(self, body: Mapping[str, Any], call: RemoteCall) -> None:
        start_s = time.perf_counter()
        try:
            answer = self._post(body)
            call.end(call.read(answer, time.perf_counter() - start_s))
        except UmbelError as error:
            call.fail(error)
        except Exception as error:  # whatever it is, it is this request's answer
            failure = EngineError(f"{self._url}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            call.fail(failure)

    def _post(self, body: Mapping[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                detail = error.read(4096).decode(errors="replace")
            kind = {429: QueueFull, 503: QueueFull}.get(
                error.code, InvalidRequest if error.code < 500 else EngineError
            )
            raise kind(f"{self._url} answered {error.code}: {detail}") from error


def _choices_as_gbnf(choices: Sequence[str]) -> str:
    """A grammar of llama.cpp for one of `choices`, whose strings have JSON's escapes."""
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _completed(answer: Any, total_s: float) -> Chunk:
    choice = answer["choices"][0]
    text = choice["text"]
    ids = tuple(map(ord, text))
    is_cut = choice.get("finish_reason") == "length"
    completion = Completion(
        index=0,
        text=text,
        token_ids=ids,
        text_token_ids=ids,
        finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
        stop_reason=None,
        logprobs=None,
        prompt_logprobs=None,
        usage=_usage(answer),
        timing=Timing(total_s=total_s),
    )
    return Chunk(0, completion=completion)


def _scored(continuation_ids: tuple[int, ...], answer: Any, total_s: float) -> Score:
    """The score of the end of an echoed prompt. Raises `InvalidRequest` where a token reaches over
    the seam, since then the continuation has no score of its own.
    """
    wanted = "".join(map(chr, continuation_ids))
    echoed = answer["choices"][0]["logprobs"]
    start, tail = len(echoed["tokens"]), ""
    while len(tail) < len(wanted) and start > 0:
        start -= 1
        tail = echoed["tokens"][start] + tail
    logprobs = echoed["token_logprobs"][start:]
    if tail != wanted or None in logprobs:
        raise InvalidRequest(
            f"the server's tokens do not part the prompt from the choice {wanted!r}: they end in "
            f"{tail!r}; let the choice begin with a space, and the prompt not end in one"
        )
    return Score(continuation_ids, tuple(logprobs), _usage(answer))


def _usage(answer: Any) -> Usage:
    usage = answer.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        num_prompt_tokens=usage.get("prompt_tokens") or 0,
        num_cached_tokens=details.get("cached_tokens") or 0,
        num_output_tokens=usage.get("completion_tokens") or 0,
    )
