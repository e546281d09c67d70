"""A whole engine whose model is simulated: real thread, scheduler, cache, grammar and text.

Tokens 1 to 26 are the letters a to z, 27 is a space, 28 and 29 are the two bytes of "é".
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from unit.runtime.simulation import (
    EOS_ID,
    NAMESPACE,
    SimulatedRunner,
    choose_token,
    logprob_of,
    state_of,
)

from umbel.grammar import Vocabulary
from umbel.runtime.chat import ChatTemplate
from umbel.runtime.config import EngineConfig
from umbel.runtime.constraints import COMPILERS, ConstraintCompiler
from umbel.runtime.engine import Engine
from umbel.runtime.errors import EngineError
from umbel.runtime.outputs import Chunk, TokenLogprob
from umbel.runtime.params import SamplingParams
from umbel.runtime.parts import EngineParts
from umbel.runtime.roofline.model_costs import ModelCosts
from umbel.runtime.roofline.shapes import shape_of
from umbel.runtime.sampler import Sampled, Sampler, SamplingRow
from umbel.runtime.step import StepPlan
from umbel.runtime.submission import Limits

LETTERS = "abcdefghijklmnopqrstuvwxyz "
VOCAB_SIZE = 32
CONTEXT_LEN = 512
SHAPE = shape_of(  # of the model that is simulated, as far as cost is concerned
    "simulated",
    num_layers=2,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=8,
    hidden_size=32,
    intermediate_size=64,
    vocab_size=VOCAB_SIZE,
    max_context=CONTEXT_LEN,
    is_tied=True,
)
BOS_ID = 31
PROMPT = [1, 2, 3, 4, 5, 1, 2]
GREEDY = SamplingParams(temperature=0, max_tokens=5)
_E_ACUTE = "é".encode()


class LetterTokenizer:
    """One token a byte; the text "<s>" is the token BOS_ID where special tokens count."""

    def __init__(self) -> None:
        self.token_bytes: list[bytes | None] = [None] * VOCAB_SIZE
        for index, letter in enumerate(LETTERS):
            self.token_bytes[1 + index] = letter.encode()
        self.token_bytes[28], self.token_bytes[29] = _E_ACUTE[:1], _E_ACUTE[1:]
        self.eos_ids = frozenset({EOS_ID})
        self.chat_template: str | None = None
        self.special_names: dict[str, str] = {}
        self.special_ids: dict[str, int] = {"<s>": BOS_ID}
        self.vocab_size = VOCAB_SIZE

    def bos_ids(self) -> list[int]:
        return [BOS_ID]

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        head = [BOS_ID] if special and text.startswith("<s>") else []
        data = text[3 * len(head) :].encode()
        return head + [self.token_bytes.index(data[at : at + 1]) for at in range(len(data))]

    def spell(self, text: str) -> list[int]:
        return self.encode(text)

    def bytes_of(self, token_id: int, *, skip_special: bool = True) -> bytes:
        return self.token_bytes[token_id] or b""


class SimulatedSampler:
    """Takes the model's token, or the next one that is allowed."""

    def __init__(self, *, end_every: int) -> None:
        self.end_every = end_every
        self.rows: list[SamplingRow] = []  # all that were ever sampled

    choose = Sampler.choose  # by the two below

    def sample(
        self,
        states: Sequence[int],
        logits_rows: Sequence[int],
        rows: Sequence[SamplingRow],
        masks: Any = None,
    ) -> list[Sampled]:
        self.rows += rows
        return [
            self._choose(states[logits_row], row, masks)
            for logits_row, row in zip(logits_rows, rows, strict=True)
        ]

    def score(
        self,
        states: Sequence[int],
        logits_rows: Sequence[int],
        token_ids: Sequence[int],
        num_top: Sequence[int],
    ) -> list[TokenLogprob]:
        return [
            TokenLogprob(token_id, logprob_of(states[logits_row], token_id), ((1, -1.0),) * top)
            for logits_row, token_id, top in zip(logits_rows, token_ids, num_top, strict=True)
        ]

    def _choose(self, state: int, row: SamplingRow, masks: Any) -> Sampled:
        first = next_token(state, end_every=self.end_every)
        for step in range(VOCAB_SIZE):
            token_id = (first + step) % VOCAB_SIZE
            if token_id not in row.banned_ids and (
                row.mask_row is None or is_allowed(masks[row.mask_row], token_id)
            ):
                return Sampled(token_id, TokenLogprob(token_id, logprob_of(state, token_id)))
        return Sampled(-1, error=EngineError("nothing is allowed"))


def next_token(state: int, *, end_every: int) -> int:
    return choose_token(state, 28, end_every=end_every)


def is_allowed(mask: np.ndarray[Any, np.dtype[np.uint32]], token_id: int) -> bool:
    return bool(int(mask[token_id // 32]) >> (token_id % 32) & 1)


def expected_tokens(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What the simulated model generates after `prompt` when it never ends."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(state_of(tokens), end_every=1 << 40))
    return tokens[len(prompt) :]


def text_of(token_ids: Sequence[int]) -> str:
    tokenizer = LetterTokenizer()
    return b"".join(tokenizer.bytes_of(token_id) for token_id in token_ids).decode()


class Listener:
    """Keeps what it hears; `wait` until the last event of one sequence."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._is_done = threading.Event()

    def __call__(self, event: Any) -> None:
        self.events.append(event)
        if not isinstance(event, Chunk) or event.completion or event.error:
            self._is_done.set()

    def wait(self) -> Any:
        assert self._is_done.wait(timeout=30)
        return self.events[-1]


class Gate:
    """Holds the engine before a step until the test opens it; then every step passes."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._is_open = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        self.reached.set()
        assert self._is_open.wait(timeout=30)

    def open(self) -> None:
        self._is_open.set()


class SteppedRig:
    """An engine over a simulated runner, whose steps a test can hold."""

    engine: Engine
    runner: SimulatedRunner

    def hold_steps(self) -> Gate:
        """From now on the engine stops before its next step."""
        gate = Gate()
        self.runner.before_step = gate
        return gate

    def check_nothing_is_held(self) -> None:
        """Every abort and answer that was asked for before is through, and no block is leased."""
        assert not any(node.num_leases for node in self.engine.cache_nodes()), "a pin is left"
        self.engine.reset_cache()
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.cache.num_free_blocks == stats.cache.num_blocks


class EngineRig(SteppedRig):
    """An engine with its simulated parts in reach."""

    def __init__(
        self,
        *,
        num_blocks: int = 512,
        block_size: int = 4,
        end_every: int = 1 << 40,
        chat_template: str | None = None,
        compilers: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.runner = SimulatedRunner(num_blocks, block_size)
        self.sampler = SimulatedSampler(end_every=end_every)
        tokenizer = LetterTokenizer()
        tokenizer.chat_template = chat_template
        vocabulary = Vocabulary(
            tokenizer.token_bytes, [EOS_ID], size=VOCAB_SIZE, encode=tokenizer.encode
        )
        parts: Any = EngineParts(
            runner=self.runner,  # type: ignore[arg-type]  # simulated: states for logits
            sampler=self.sampler,  # type: ignore[arg-type]
            tokenizer=tokenizer,  # type: ignore[arg-type]
            chat=ChatTemplate.of(tokenizer),
            compiler=ConstraintCompiler(
                vocabulary, cache_size=8, compilers={**COMPILERS, **(compilers or {})}
            ),
            limits=Limits(CONTEXT_LEN, VOCAB_SIZE, num_blocks, block_size),
            namespace=NAMESPACE,
            costs=ModelCosts(SHAPE, "float32", "float32"),
        )
        config = EngineConfig(num_blocks=num_blocks, block_size=block_size, **options)
        self.engine = Engine.from_parts(parts, config)


@contextmanager
def rig(**options: Any) -> Iterator[EngineRig]:
    made = EngineRig(**options)
    try:
        yield made
    finally:
        made.engine.close()
