"""What the language needs from an engine. Two implementations: `runtime.engine.Engine` and the tests' fake.

Listeners are called on the engine's thread, in order, and must return quickly without blocking.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from umbel.runtime.outputs import Chunk, Score
from umbel.runtime.errors import UmbelError
from umbel.runtime.params import SamplingParams


class CallHandle(Protocol):
    def cancel(self) -> None:
        """Stop the call; its listener gets a last chunk with a `RequestCancelled` error. Idempotent."""


class Client(Protocol):
    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`. With `special`, the text of special tokens becomes those tokens."""

    def bos_ids(self) -> list[int]:
        """What a fresh sequence starts with ([] or [bos])."""

    def render_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """The model's chat template over `messages` ({"role", "content"})."""

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
        """Log-probabilities of `continuation_ids` after `token_ids`."""
