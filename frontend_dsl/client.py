"""What the language needs from an engine. Two implementations: `runtime.engine.Engine` and the
tests' fake.

Listeners are called on the engine's thread, in order, and must return quickly without blocking or
raising.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from umbel.runtime.errors import UmbelError
from umbel.runtime.outputs import Chunk, Score
from umbel.runtime.params import SamplingParams


class CallHandle(Protocol):
    def cancel(self) -> None:
        """Stop the call; its listener gets a last event with `RequestCancelled`. Idempotent."""


class Client(Protocol):
    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`. With `special`, the text of special tokens becomes those tokens."""

    def bos_ids(self) -> list[int]:
        """What a fresh sequence without chat roles starts with ([] or [bos])."""

    def eos_ids(self) -> list[int]:
        """The tokens that end a generation."""

    def open_role(self, messages: Sequence[Mapping[str, str]], role: str) -> str:
        """The template's text that opens a message of `role` after the complete `messages`.

        Each message is {"role", "content"}. For the first message this includes all that the
        template puts at the start. Raises `UmbelError` when the template cannot be cut there (it
        rewrites history).
        """

    def close_role(self, messages: Sequence[Mapping[str, str]], role: str) -> str:
        """The template's text that closes the message of `role` opened after `messages`."""

    def hold(self) -> AbstractContextManager[None]:
        """Within it, submitted calls are collected; they enter the engine together when it ends."""

    def submit(
        self, token_ids: Sequence[int], params: SamplingParams, listener: Callable[[Chunk], None]
    ) -> CallHandle:
        """Generate after `token_ids`. Raises `UmbelError` at once for what can be known at once."""

    def submit_score(
        self,
        token_ids: Sequence[int],
        continuation_ids: Sequence[int],
        listener: Callable[[Score | UmbelError], None],
    ) -> CallHandle:
        """Log-probabilities of `continuation_ids` after `token_ids` (not empty)."""

    def pin(self, token_ids: Sequence[int]) -> CallHandle:
        """Keep what was computed of `token_ids` for calls to come, until the handle is cancelled.
        Only a hint: the engine may give it up, and one that cannot do it does nothing.
        """
