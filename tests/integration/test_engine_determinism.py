"""Greedy output of the embedded model does not depend on how it was scheduled (float32)."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from umbel.radix_cache.tree import Namespace
from umbel.runtime.chat import ChatTemplate
from umbel.runtime.config import EngineConfig
from umbel.runtime.constraints import ConstraintCompiler, make_vocabulary
from umbel.runtime.engine import Engine
from umbel.runtime.loading.load import load_model
from umbel.runtime.loading.source import find_model
from umbel.runtime.models.decoder import Decoder
from umbel.runtime.outputs import Chunk, Result
from umbel.runtime.params import SamplingParams
from umbel.runtime.parts import EngineParts, costs_of
from umbel.runtime.runner import ModelRunner
from umbel.runtime.sampler import Sampler
from umbel.runtime.speculation.drafter import Drafter
from umbel.runtime.submission import Limits
from umbel.runtime.tokenizer import Tokenizer, load_tokenizer

NUM_TOKENS = 8
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
STORY = "In the old harbour town, where the fog never quite lifts, there lived a keeper of clocks. "
QUESTIONS = (
    "He", "She said", "The clock", "One day a", "Nobody knew", "The fog", "At noon", "His first",
    "The town", "Every", "A letter", "It was", "The sea", "Then", "Three", "When the bell",
    "By night", "My father", "The key", "Under", "Time", "Old", "In winter", "They",
    "A ship", "The clock was", "The clocks", "The keeper", "The keeper of", "The", "No", "All",
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(find_model(None))


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return load_model(find_model(None), dtype=torch.float32)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    story = tokenizer.encode(STORY)
    return [story + tokenizer.encode(question) for question in QUESTIONS]


@pytest.fixture(scope="module")
def alone(
    decoder: Decoder, tokenizer: Tokenizer, prompts: list[list[int]]
) -> list[tuple[int, ...]]:
    """Each prompt by itself, without cache, in one chunk: what all others are compared with."""
    with engine(decoder, tokenizer, prefix_cache=False, share_attention=False) as made:
        return [made.generate(prompt, GREEDY).token_ids for prompt in prompts]


@contextmanager
def engine(
    decoder: Decoder, tokenizer: Tokenizer, *, num_blocks: int = 512, **options: int | bool | str
) -> Iterator[Engine]:
    """An engine over a model that was loaded once."""
    config = EngineConfig(num_blocks=num_blocks, dtype="float32", **options)  # type: ignore[arg-type]
    vocab_size = decoder.config.vocab_size
    runner = ModelRunner(
        decoder, num_blocks=num_blocks, block_size=config.block_size, dtype=torch.float32
    )
    parts = EngineParts(
        runner=runner,
        sampler=Sampler(vocab_size),
        tokenizer=tokenizer,
        chat=ChatTemplate.of(tokenizer),
        compiler=ConstraintCompiler(make_vocabulary(tokenizer, vocab_size), cache_size=8),
        limits=Limits(decoder.config.context_len, vocab_size, num_blocks, config.block_size),
        namespace=Namespace("embedded"),
        costs=costs_of("embedded", decoder),
    )
    with Engine.from_parts(parts, config) as made:
        yield made


def outputs(made: Engine, prompts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    results = made.generate_batch(prompts, GREEDY)
    return [result.token_ids for result in results if isinstance(result, Result)]


def test_a_batch_of_32_gives_what_each_gives_alone(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    alone: list[tuple[int, ...]],
) -> None:
    with engine(decoder, tokenizer) as made:
        assert outputs(made, prompts) == alone
        stats = made.stats()

    assert max(stats.rows_per_step) >= 32
    assert stats.num_reused_tokens >= 31 * len(tokenizer.encode(STORY))


def test_a_warm_cache_gives_what_a_cold_one_gives(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    alone: list[tuple[int, ...]],
) -> None:
    with engine(decoder, tokenizer) as made:
        for _ in range(2):
            assert [made.generate(prompt, GREEDY).token_ids for prompt in prompts[:6]] == alone[:6]
        last = made.generate(prompts[0], GREEDY)

    assert last.usage.num_cached_tokens == len(prompts[0])


@pytest.mark.parametrize(
    "options",
    [{"prefix_cache": False}, {"share_attention": False}, {"block_size": 1}],
    ids=["no cache", "no shared attention", "blocks of one token"],
)
def test_the_way_of_sharing_changes_nothing(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    alone: list[tuple[int, ...]],
    options: dict[str, int | bool],
) -> None:
    with engine(decoder, tokenizer, num_blocks=1024, **options) as made:
        assert outputs(made, prompts[:12]) == alone[:12]


@pytest.mark.parametrize("max_step_tokens", [1, 7])
def test_the_size_of_chunks_changes_nothing(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    alone: list[tuple[int, ...]],
    max_step_tokens: int,
) -> None:
    with engine(decoder, tokenizer, max_step_tokens=max_step_tokens) as made:
        assert outputs(made, prompts[:5]) == alone[:5]


def test_preemption_changes_nothing(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: list[list[int]],
    alone: list[tuple[int, ...]],
) -> None:
    with engine(decoder, tokenizer, num_blocks=10, block_size=4) as made:
        assert outputs(made, prompts[:8]) == alone[:8]
        stats = made.stats()

    assert stats.num_preemptions > 0


def test_forced_tokens_may_ride_along_or_not(decoder: Decoder, tokenizer: Tokenizer) -> None:
    regex = r'\{"name": "[A-Z][a-z]{2,8}", "city": "[A-Z][a-z]{2,8}"\}'
    results = []
    for jump_forward in (True, False):
        with engine(decoder, tokenizer, jump_forward=jump_forward) as made:
            result = made.generate("A person: ", temperature=0, max_tokens=40, regex=regex)
            results.append((result.token_ids, result.usage.num_forced_tokens))
            num_steps = made.stats().num_steps
            assert num_steps < len(result.token_ids) if jump_forward else True

    assert results[0] == results[1]
    assert results[0][1] > 0


QUOTED = "Repeat the list: alder, birch, cedar, elm, fir. Repeated: alder, birch, cedar,"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0, "ignore_eos": True},
        # Both engines draw the same seeds. Without the tail of tiny probabilities: there the last
        # bits of the logits decide, which depend on how many rows attention has.
        {"temperature": 0.8, "top_p": 0.95, "ignore_eos": True},
        {"temperature": 0.0, "json_schema": PERSON},
        {"temperature": 0.0, "repetition_penalty": 1.1, "ignore_eos": True},
    ],
    ids=["greedy", "sampled", "constrained", "penalized"],
)
def test_speculation_changes_nothing_but_the_number_of_steps(
    decoder: Decoder,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
) -> None:
    # What is guessed must not depend on how busy the machine is.
    monkeypatch.setattr(Drafter, "learn", lambda *_: None)
    params = SamplingParams(max_tokens=24, **options)
    prompts = [tokenizer.encode(text) for text in (QUOTED, STORY + "He", QUOTED + " elm")]
    with engine(decoder, tokenizer, speculate="off") as plain:
        expected = [plain.generate(prompt, params).token_ids for prompt in 2 * prompts]
        num_plain = plain.stats().num_steps
    with engine(decoder, tokenizer) as made:
        # First from the prompt's own text, then also from the tree.
        assert [made.generate(prompt, params).token_ids for prompt in 2 * prompts] == expected
        stats = made.stats()

    assert stats.num_confirmed_tokens > 0
    assert stats.num_steps < num_plain


def test_two_hundred_branches_compute_their_prefix_once(
    decoder: Decoder, tokenizer: Tokenizer
) -> None:
    prefix = (tokenizer.encode(STORY) * 60)[:1000]
    branches = [[*prefix, 100 + index] for index in range(200)]
    params = GREEDY.with_options(max_tokens=2)
    done = threading.Semaphore(0)

    def listener(chunk: Chunk) -> None:
        if chunk.completion is not None:
            done.release()

    with engine(decoder, tokenizer) as made:
        num_threads = _count_threads()
        with made.hold():
            for branch in branches:
                made.submit(branch, params, listener)
        assert _count_threads() == num_threads
        for _ in branches:
            assert done.acquire(timeout=120)
        stats = made.stats()

    assert stats.num_computed_tokens <= 1000 + 200 * 2
    assert stats.cache.num_cached_blocks <= 1000 // 16 + 1 + 200


def _count_threads() -> int:
    """Without the one that computes what grammars share, whenever the engine has nothing to do."""
    return sum(not thread.name.startswith("umbel-grammar") for thread in threading.enumerate())
