"""A client of the language that notes in a trace what a program asks of the engine.

`program.run(TracedClient(engine, trace))` in process, or around the client of a server's program.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from umbel.frontend_dsl.client import CallHandle, Client
from umbel.runtime.errors import UmbelError
from umbel.runtime.outputs import Chunk, Score
from umbel.runtime.params import SamplingParams
from umbel.server.trace import Trace


class TracedClient:
    """Passes everything on. Calls are numbered in the order in which they were made."""

    def __init__(self, client: Client, trace: Trace) -> None:
        self._client = client
        self._trace = trace
        self._num_calls = 0

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
