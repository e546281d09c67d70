"""Steps of a small random model: how tokens are cut into steps must not change the logits."""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.radix_cache.plan import CutCost, RunSpan, plan_attention
from umbel.radix_cache.tree import (
    AppendOutcome,
    BlockCopy,
    Lease,
    Namespace,
    RadixCache,
    TokenKind,
)
from umbel.runtime.errors import InvalidRequest, ModelError
from umbel.runtime.loading.load import load_model
from umbel.runtime.loading.source import ModelSource
from umbel.runtime.models.decoder import Decoder
from umbel.runtime.runner import ModelRunner, num_blocks_for
from umbel.runtime.step import Run, StepPlan

V = 50
BLOCK_SIZE = 4
ALWAYS_CUT = CutCost(row_tokens=0.0, segment_tokens=0.0)


def make_model(
    folder: Path, *, window: int | None = None, dtype: torch.dtype = torch.float32
) -> Decoder:
    config = {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "vocab_size": V,
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "sliding_window": window,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    source = ModelSource(name="small", path=folder, format="safetensors")
    return load_model(source, dtype=dtype, load_format="dummy", seed=3)


@pytest.fixture(params=[None, 10], ids=["full", "window"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Decoder:
    return make_model(tmp_path, window=request.param)


@dataclass
class Feed:
    """A request of one step: its whole sequence, and from which position on logits are wanted."""

    lease: Lease
    tokens: list[int]
    wanted_from: int


class Harness:
    """A cache and a runner, stepped by hand; unwritten slots are NaN."""

    def __init__(self, model: Decoder, *, share: bool = True, num_blocks: int = 64) -> None:
        self.cache = RadixCache(num_blocks, BLOCK_SIZE)
        self.runner = ModelRunner(
            model, num_blocks=num_blocks, block_size=BLOCK_SIZE, dtype=model.dtype
        )
        self.runner.cache.k.fill_(math.nan)
        self.runner.cache.v.fill_(math.nan)
        self.num_copies = 0
        self.num_segments = 0
        self._share = share

    def lease(self) -> Lease:
        return self.cache.lease(Namespace("small"))

    def feed(self, feeds: list[Feed]) -> list[torch.Tensor]:
        """The wanted logits of each feed: [n, V]; in one step, or more if a copy has to wait."""
        results: dict[int, torch.Tensor] = {}
        while len(results) < len(feeds):
            plan, placed = self._plan([i for i in range(len(feeds)) if i not in results], feeds)
            self.num_copies += len(plan.copies)
            self.num_segments += len(plan.attention.segments) if plan.attention else 0
            logits = self.runner.execute(plan)
            self.cache.commit_step()
            self.cache.check()
            sizes = [len(feeds[i].tokens) - feeds[i].wanted_from for i in placed]
            results.update(zip(placed, logits.split(sizes), strict=True))
        return [results[i] for i in range(len(feeds))]

    def _plan(self, idxs: list[int], feeds: list[Feed]) -> tuple[StepPlan, list[int]]:
        plan, placed = StepPlan(), []
        for i in idxs:
            lease, tokens, end = feeds[i].lease, feeds[i].tokens, len(feeds[i].tokens)
            lease.advance(tokens, lease.num_tokens, end)
            write_from = lease.num_tokens
            if write_from < end:
                result = lease.append(tokens, write_from, end, kind=TokenKind.PROMPT)
                if result.outcome is AppendOutcome.PENDING_COPY:
                    continue
                assert result.outcome is AppendOutcome.OK
                plan.copies += result.copies
            placed.append(i)
            start = min(write_from, feeds[i].wanted_from)
            if start < end:
                wanted = list(range(feeds[i].wanted_from, end))
                plan.runs.append(Run(lease, tokens[start:], start, write_from, wanted))
        spans = [RunSpan(run.lease, run.start, len(run.tokens)) for run in plan.runs]
        plan.attention = plan_attention(spans, share=self._share, cost=ALWAYS_CUT)
        return plan, placed


def logits_alone(model: Decoder, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), V], from one step that computes everything."""
    harness = Harness(model, num_blocks=-(-len(tokens) // BLOCK_SIZE))
    return harness.feed([Feed(harness.lease(), tokens, 0)])[0]


def make_tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(V), k=count)


def assert_same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 4, 7, 512])
def test_chunks_of_any_size_give_the_logits_of_one_pass(model: Decoder, chunk: int) -> None:
    tokens, harness = make_tokens(45), Harness(model)
    lease = harness.lease()

    got = [
        harness.feed([Feed(lease, tokens[:stop], start)])[0]
        for start in range(0, 45, chunk)
        for stop in [min(start + chunk, 45)]
    ]

    assert_same(torch.cat(got), logits_alone(model, tokens))


@pytest.mark.parametrize("num_cached", [1, 4, 23, 24])
def test_query_only_rows_give_the_logits_of_a_cached_prompt(
    model: Decoder, num_cached: int
) -> None:
    tokens, harness = make_tokens(24), Harness(model)
    harness.feed([Feed(harness.lease(), tokens[:num_cached], num_cached)])
    before = harness.runner.cache.k.clone()

    got = harness.feed([Feed(harness.lease(), tokens, num_cached - 1)])[0]

    assert_same(got, logits_alone(model, tokens)[num_cached - 1 :])
    if num_cached == 24:
        assert torch.equal(harness.runner.cache.k.nan_to_num(), before.nan_to_num())


def test_equal_prompts_of_one_step_are_computed_once_and_agree(model: Decoder) -> None:
    tokens, harness = make_tokens(18), Harness(model)
    feeds = [Feed(harness.lease(), tokens, 17), Feed(harness.lease(), tokens, 17)]
    feeds.append(Feed(harness.lease(), [*tokens[:11], 1, 2], 10))

    got = harness.feed(feeds)

    wanted = logits_alone(model, tokens)
    assert_same(torch.cat(got[:2]), wanted[[17, 17]])
    assert_same(got[2], logits_alone(model, feeds[2].tokens)[10:])
    assert_same(got[2][0], wanted[10])


@pytest.mark.parametrize("share", [True, False])
def test_branches_forked_inside_a_block_copy_it_and_decode_as_if_alone(
    model: Decoder, share: bool
) -> None:
    harness, prompt = Harness(model, share=share), make_tokens(22)
    root = harness.lease()
    harness.feed([Feed(root, prompt, 22)])
    branches = [root.fork() for _ in range(5)]
    sequences = [prompt + make_tokens(6, seed=i + 1) for i in range(5)]

    got: list[list[torch.Tensor]] = [[] for _ in branches]
    for stop in (23, 24, 25, 28):
        start = {23: 22, 24: 23, 25: 24, 28: 25}[stop]
        feeds = [Feed(b, s[:stop], start) for b, s in zip(branches, sequences, strict=True)]
        for branch, logits in zip(got, harness.feed(feeds), strict=True):
            branch.append(logits)

    assert harness.num_copies >= 3
    assert (harness.num_segments > 0) == share
    for branch, sequence in zip(got, sequences, strict=True):
        assert_same(torch.cat(branch), logits_alone(model, sequence)[22:])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.booleans())
def test_random_workloads_give_the_logits_of_each_sequence_alone(
    small_models: list[Decoder], seed: int, share: bool
) -> None:
    rng = random.Random(seed)
    model = small_models[seed % 2]
    harness = Harness(model, share=share, num_blocks=200)
    live: list[tuple[Lease, list[int]]] = [(harness.lease(), [])]
    for _ in range(6):
        feeds = []
        for lease, tokens in live:
            # Of few different ids, so that sequences have much in common.
            tokens += rng.choices(range(3), k=rng.choice([1, 1, 2, 9, 30]))
            feeds.append(Feed(lease, list(tokens), len(tokens) - 1))
        for feed, got in zip(feeds, harness.feed(feeds), strict=True):
            assert_same(got, logits_alone(model, feed.tokens)[-1:])
        lease, tokens = rng.choice(live)
        live.append((lease.fork(), list(tokens)))
        if rng.random() < 0.5:
            live.append((harness.lease(), list(tokens[: rng.randrange(len(tokens))])))
        if len(live) > 5:
            live.pop(rng.randrange(len(live)))[0].release()


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> list[Decoder]:
    folders = [tmp_path_factory.mktemp("model") for _ in range(2)]
    return [make_model(folders[0]), make_model(folders[1], window=10)]


def test_bfloat16_is_near_to_float32(tmp_path: Path) -> None:
    tokens = make_tokens(30)
    wanted = logits_alone(make_model(tmp_path), tokens)

    got = logits_alone(make_model(tmp_path, dtype=torch.bfloat16), tokens)

    assert got.dtype == torch.float32
    torch.testing.assert_close(got, wanted, rtol=0.1, atol=0.05 * float(wanted.std()))


def test_a_step_that_wants_no_logits_computes_keys_only(model: Decoder) -> None:
    harness, tokens = Harness(model), make_tokens(9)

    logits = harness.feed([Feed(harness.lease(), tokens, 9)])[0]

    assert logits.shape == (0, V)
    assert int(harness.runner.cache.k[1, 0, :, 0].isfinite().sum()) == 9


def test_copies_are_done_in_order_and_need_no_runs(model: Decoder) -> None:
    harness = Harness(model)
    cache = harness.runner.cache
    cache.k[:] = torch.arange(cache.num_slots).view(1, 1, -1, 1)
    copies = [BlockCopy(0, 1, 3), BlockCopy(1, 2, 2), BlockCopy(5, 0, 1)]

    logits = harness.runner.execute(StepPlan(copies=copies))

    assert logits.shape == (0, V)
    assert cache.k[1, 1, :12, 3].tolist() == [20, 1, 2, 3, 0, 1, 2, 7, 0, 1, 10, 11]


def test_as_many_blocks_fit_as_their_bytes_allow(model: Decoder) -> None:
    def blocks(size_bytes: int) -> int:
        return num_blocks_for(size_bytes, model.config, block_size=BLOCK_SIZE, dtype=torch.bfloat16)

    one = 2 * 2 * 2 * 8 * BLOCK_SIZE * 2  # k and v, layers, heads, dim, tokens, bytes

    assert blocks(one) == 1
    assert blocks(10 * one + 1) == 10
    with pytest.raises(InvalidRequest, match="raise kv_cache_bytes"):
        blocks(one - 1)


def test_a_cache_of_another_dtype_is_refused(model: Decoder) -> None:
    with pytest.raises(ModelError, match="same dtype"):
        ModelRunner(model, num_blocks=1, block_size=4, dtype=torch.bfloat16)
