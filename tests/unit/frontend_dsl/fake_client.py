"""A deterministic engine without a model: what it says depends on the tokens before, never on time
or order.

Tokens are code points; special tokens have ids above them. A worker thread answers, in an order
that a seed shuffles; `manual=True` answers only when the test calls `step`.
"""

import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from umbel.runtime.errors import InvalidRequest, RequestCancelled, UmbelError
from umbel.runtime.outputs import Chunk, Completion, FinishReason, Score, Timing, Usage
from umbel.runtime.params import SamplingParams

BOS = 0x110000
EOS = 0x110001
OPEN = 0x110002
CLOSE = 0x110003
SPECIAL = {"<s>": BOS, "</s>": EOS, "<|": OPEN, "|>": CLOSE}


class FakeModel:
    """The pure part: shared by the client and by the naive interpreter of the tests."""

    def __init__(self, fails: Callable[[Sequence[int]], bool] = lambda context: False) -> None:
        self.fails = fails

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        ids: list[int] = []
        while text:
            mark = next((m for m in SPECIAL if special and text.startswith(m)), None)
            ids.append(SPECIAL[mark] if mark else ord(text[0]))
            text = text[len(mark) if mark else 1 :]
        return ids

    def generate(self, context: Sequence[int], params: SamplingParams) -> str:
        if self.fails(context):
            raise InvalidRequest("the fake model fails here")
        if params.choices is not None:
            return params.choices[_digest(context) % len(params.choices)]
        if params.json_schema is not None:
            return '{"age": 7, "name": "Ada"}'
        limit = params.max_tokens if params.max_tokens is not None else 8
        length = 1 + _digest(context) % limit
        return "".join(chr(ord("a") + _digest([*context, i]) % 26) for i in range(length))

    def score(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, ...]:
        if self.fails(context):
            raise InvalidRequest("the fake model fails here")
        tokens = list(context)
        logprobs = []
        for token_id in continuation:
            tokens.append(token_id)
            logprobs.append(-0.01 - (_digest(tokens) % 997) / 100)
        return tuple(logprobs)


@dataclass(eq=False)
class FakeCall:
    """One submitted call; also its handle."""

    context: tuple[int, ...]
    events: list[object]
    listener: Callable[..., None]
    params: SamplingParams | None
    client: "FakeClient"  # as a real handle holds its engine
    is_ended: bool = False
    is_cancelled: bool = False
    batch: int = 0

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass(eq=False)
class FakePin:
    """A prefix that somebody keeps."""

    token_ids: tuple[int, ...]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass(eq=False)
class FakeClient:
    """See the module. `calls` has all calls ever submitted."""

    model: FakeModel = field(default_factory=FakeModel)
    seed: int = 0
    manual: bool = False
    bos: bool = True
    calls: list[FakeCall] = field(default_factory=list)
    pins: list[FakePin] = field(default_factory=list)
    num_holds: int = 0
    num_encoded: int = 0
    refuse: Callable[[SamplingParams], UmbelError | None] = lambda params: None
    close_after: int | None = None  # calls after which the engine refuses

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._open: list[FakeCall] = []
        self._changed = threading.Condition(threading.RLock())
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        if not self.manual:
            self._thread.start()

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if not self.manual:
            self._thread.join(10)
            assert not self._thread.is_alive()
        assert not self.held_pins, "a prefix is kept that nobody needs any more"

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        self.num_encoded += 1
        return self.model.encode(text, special=special)

    def bos_ids(self) -> list[int]:
        return [BOS] if self.bos else []

    def eos_ids(self) -> list[int]:
        return [EOS]

    def open_role(self, messages: Sequence[Mapping[str, str]], role: str) -> str:
        if role == "system" and messages:
            raise InvalidRequest("this template wants the system message first")
        return f"{'' if messages else '<s>'}<|{role}|>"

    def close_role(self, messages: Sequence[Mapping[str, str]], role: str) -> str:
        return "</s>"

    @contextmanager
    def hold(self) -> Iterator[None]:
        with self._changed:
            self.num_holds += 1
            yield

    def submit(
        self, token_ids: Sequence[int], params: SamplingParams, listener: Callable[[Chunk], None]
    ) -> FakeCall:
        error = self.refuse(params)
        if error is not None:
            raise error
        try:
            text = self.model.generate(token_ids, params)
        except UmbelError as failure:
            return self._add(token_ids, [Chunk(0, error=failure)], listener, params)
        ids = tuple(map(ord, text))
        usage = Usage(num_prompt_tokens=len(token_ids), num_output_tokens=len(ids))
        completion = Completion(
            index=0, text=text, token_ids=(*ids, EOS), text_token_ids=ids,
            finish_reason=FinishReason.STOP, stop_reason=None, logprobs=None, prompt_logprobs=None,
            usage=usage, timing=Timing(total_s=0.5),
        )  # fmt: skip
        middle = len(text) // 2
        events = [Chunk(0, text=text[:middle]), Chunk(0, text=text[middle:], completion=completion)]
        return self._add(token_ids, events, listener, params)

    def submit_score(
        self,
        token_ids: Sequence[int],
        continuation_ids: Sequence[int],
        listener: Callable[[Score | UmbelError], None],
    ) -> FakeCall:
        try:
            logprobs = self.model.score(token_ids, continuation_ids)
        except UmbelError as failure:
            return self._add(token_ids, [failure], listener, None)
        usage = Usage(num_prompt_tokens=len(token_ids), num_output_tokens=len(continuation_ids))
        score = Score(tuple(continuation_ids), logprobs, usage)
        return self._add(token_ids, [score], listener, None)

    def pin(self, token_ids: Sequence[int]) -> "FakePin":
        made = FakePin(tuple(token_ids))
        self.pins.append(made)
        return made

    @property
    def held_pins(self) -> list[tuple[int, ...]]:
        return [pin.token_ids for pin in self.pins if not pin.is_cancelled]

    def step(self, call: FakeCall) -> None:
        """Deliver the next event of `call`, in the calling thread."""
        with self._changed:
            if call.is_cancelled and not call.is_ended:
                error = RequestCancelled("cancelled")
                call.events = [error if call.params is None else Chunk(0, error=error)]
            event = call.events.pop(0)
            if not call.events:
                call.is_ended = True
                self._open.remove(call)
        call.listener(event)

    @property
    def open_calls(self) -> list[FakeCall]:
        with self._changed:
            return list(self._open)

    def _add(
        self,
        token_ids: Sequence[int],
        events: list[object],
        listener: Callable[..., None],
        params: SamplingParams | None,
    ) -> FakeCall:
        with self._changed:
            if self.close_after is not None and len(self.calls) >= self.close_after:
                raise InvalidRequest("the fake engine takes no more calls")
            call = FakeCall(tuple(token_ids), events, listener, params, self, batch=self.num_holds)
            self.calls.append(call)
            self._open.append(call)
            self._changed.notify_all()
        return call

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._open and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                call = self._random.choice(self._open)
            self.step(call)


def _digest(tokens: Sequence[int]) -> int:
    data = ",".join(map(str, tokens)).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest())
