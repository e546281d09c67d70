"""Reasoning models: where their thought ends and the answer begins.

A thought is generated without constraint up to its closing tag; then the answer is generated as a
second step of the same call, under the constraint of the request. The prefix is cached, so the
second step costs one token row more.
"""

from dataclasses import dataclass
from typing import Protocol

TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
_TAIL_TOKENS = 24  # of a prompt: enough for a tag and an empty thought


class ThinkingTokenizer(Protocol):
    """What is needed of a tokenizer."""

    chat_template: str | None
    special_ids: dict[str, int]

    def encode(self, text: str, *, special: bool = False) -> list[int]: ...
    def decode(self, ids: list[int], *, skip_special: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class Thought:
    """How one thought ends: at the text `close`, or, where that is a special token, at its id.

    `after_ids` are put between the thought and the answer.
    """

    close: str
    close_id: int | None
    after_ids: tuple[int, ...]


class ThinkTags:
    """The tags of a reasoning model."""

    def __init__(self, tokenizer: ThinkingTokenizer, opening: str, closing: str) -> None:
        self._tokenizer = tokenizer
        self.opening = opening
        self.closing = closing

    def open(self, prompt_ids: list[int]) -> tuple[list[int], Thought | None]:
        """The prompt of the thought, and how it ends; None if the prompt ends with a finished
        thought: templates write an empty one to turn thinking off.
        """
        tail = self._tokenizer.decode(prompt_ids[-_TAIL_TOKENS:], skip_special=False)
        if tail.rstrip().endswith(self.closing):
            return prompt_ids, None
        if not tail.rstrip().endswith(self.opening):
            opened = self._tokenizer.encode(f"{self.opening}\n", special=True)
            prompt_ids = [*prompt_ids, *opened]
        return prompt_ids, Thought(
            close=self.closing,
            close_id=self._tokenizer.special_ids.get(self.closing),
            after_ids=tuple(self._tokenizer.encode(f"{self.closing}\n\n", special=True)),
        )


def find_think_tags(tokenizer: ThinkingTokenizer) -> ThinkTags | None:
    """The tags that the model's chat template or special tokens know; None: it does not reason."""
    template = tokenizer.chat_template or ""
    for opening, closing in TAGS:
        if closing in template or closing in tokenizer.special_ids:
            return ThinkTags(tokenizer, opening, closing)
    return None
