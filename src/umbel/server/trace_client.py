"""Clients of the language that stand between a program and the engine.

`program.run(TracedClient(engine, trace))` in process, or around the client of a server's program.
"""

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from umbel.frontend_dsl.client import CallHandle, Client
from umbel.runtime.engine import Engine
from umbel.runtime.errors import RequestCancelled, UmbelError
from umbel.runtime.outputs import Chunk, Score
from umbel.runtime.params import SamplingParams
from umbel.server.trace import Trace


class PassingClient:
    """Passes everything on."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return self._client.encode(text, special=special)

    def bos_ids(self) -> list[int]:
        return self._client.bos_ids()

    def eos_ids(self) -> list[int]:
        return self._client.eos_ids()

    def open_role(self, messages: Sequence[Mapping[str, str]], role: str) -> str:
        return self._client.open_role(messages, role)

    def close_role(self, messages: Sequence[Mapping[str, str]], role: str) -> str:
        return self._client.close_role(messages, role)

    def hold(self) -> AbstractContextManager[None]:
        return self._client.hold()

    def submit(
        self, token_ids: Sequence[int], params: SamplingParams, listener: Callable[[Chunk], None]
    ) -> CallHandle:
        return self._client.submit(token_ids, params, listener)

    def submit_score(
        self,
        token_ids: Sequence[int],
        continuation_ids: Sequence[int],
        listener: Callable[[Score | UmbelError], None],
    ) -> CallHandle:
        return self._client.submit_score(token_ids, continuation_ids, listener)

    def pin(self, token_ids: Sequence[int]) -> CallHandle:
        return self._client.pin(token_ids)


class TenantClient(PassingClient):
    """An engine as one tenant sees it: its prefixes are nobody else's."""

    def __init__(self, engine: Engine, tenant: str | None) -> None:
        super().__init__(engine)
        self._engine = engine
        self._tenant = tenant

    def submit(
        self, token_ids: Sequence[int], params: SamplingParams, listener: Callable[[Chunk], None]
    ) -> CallHandle:
        return self._engine.submit(token_ids, params, listener, tenant=self._tenant)

    def submit_score(
        self,
        token_ids: Sequence[int],
        continuation_ids: Sequence[int],
        listener: Callable[[Score | UmbelError], None],
    ) -> CallHandle:
        return self._engine.submit_score(token_ids, continuation_ids, listener, tenant=self._tenant)

    def pin(self, token_ids: Sequence[int]) -> CallHandle:
        return self._engine.pin(token_ids, tenant=self._tenant)


class CancellableClient(PassingClient):
    """Its calls can be cancelled all together, from any thread: then it takes no more."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._lock = threading.Lock()
        self._next = itertools.count()
        self._under_way: dict[int, CallHandle | None] = {}  # None: being submitted
        self._is_cancelled = False

    def submit(
        self, token_ids: Sequence[int], params: SamplingParams, listener: Callable[[Chunk], None]
    ) -> CallHandle:
        number = self._begin()

        def listen(chunk: Chunk) -> None:
            if chunk.completion is not None or chunk.error is not None:
                self._end(number)
            listener(chunk)

        return self._keep(number, lambda: self._client.submit(token_ids, params, listen))

    def submit_score(
        self,
        token_ids: Sequence[int],
        continuation_ids: Sequence[int],
        listener: Callable[[Score | UmbelError], None],
    ) -> CallHandle:
        number = self._begin()

        def listen(score: Score | UmbelError) -> None:
            self._end(number)
            listener(score)

        return self._keep(
            number, lambda: self._client.submit_score(token_ids, continuation_ids, listen)
        )

    def cancel_all(self) -> None:
        """Idempotent."""
        with self._lock:
            self._is_cancelled = True
            handles = [handle for handle in self._under_way.values() if handle is not None]
            self._under_way.clear()
        for handle in handles:
            handle.cancel()

    def _begin(self) -> int:
        with self._lock:
            if self._is_cancelled:
                raise RequestCancelled("the run was cancelled")
            number = next(self._next)
            self._under_way[number] = None
        return number

    def _keep(self, number: int, submit: Callable[[], CallHandle]) -> CallHandle:
        try:
            handle = submit()
        except BaseException:
            self._end(number)
            raise
        with self._lock:
            if number in self._under_way:
                self._under_way[number] = handle
            is_cancelled = self._is_cancelled
        if is_cancelled:
            handle.cancel()
        return handle

    def _end(self, number: int) -> None:
        with self._lock:
            self._under_way.pop(number, None)


class TracedClient(PassingClient):
    """Notes what a program asks. Calls are numbered in the order in which they were made."""

    def __init__(self, client: Client, trace: Trace) -> None:
        super().__init__(client)
        self._trace = trace
        self._num_calls = 0

    def submit(
        self, token_ids: Sequence[int], params: SamplingParams, listener: Callable[[Chunk], None]
    ) -> CallHandle:
        noting = self._trace.listening(token_ids, listener, self._next_name())
        return self._client.submit(token_ids, params, noting)

    def submit_score(
        self,
        token_ids: Sequence[int],
        continuation_ids: Sequence[int],
        listener: Callable[[Score | UmbelError], None],
    ) -> CallHandle:
        noting = self._trace.listening_score(token_ids, listener, self._next_name())
        return self._client.submit_score(token_ids, continuation_ids, noting)

    def _next_name(self) -> str:
        self._num_calls += 1
        return str(self._num_calls)
