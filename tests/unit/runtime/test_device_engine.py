"""An engine whose steps run on a device gives what the engine of the CPU gives (float32, greedy).

The device is the CPU with the torch twins of the kernels, and a captured step is computed again.
"""

import math
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from unit.runtime.tiny_model import BIASES, GEMMA3, MISTRAL, QWEN3, write_model

from umbel.runtime.config import EngineConfig
from umbel.runtime.device.load import OnDevice, load_on_device
from umbel.runtime.device.machine import HostMachine
from umbel.runtime.engine import Engine
from umbel.runtime.errors import EngineError, UmbelError
from umbel.runtime.loading.source import ModelSource
from umbel.runtime.outputs import Completion, Result
from umbel.runtime.params import SamplingParams
from umbel.runtime.parts import device_parts

STORY = "In the old harbour town, where the fog never lifts, lived a keeper of clocks. "
PROMPTS = [STORY + text for text in ("He", "She said", "At noon", "", "The", "The clock")]
GREEDY = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)


@contextmanager
def both(source: ModelSource, **options: Any) -> Iterator[tuple[Engine, Engine, OnDevice]]:
    """The engine of the CPU, that of the device, and what computes for it."""
    options = {"num_blocks": 256, "context_len": 400, **options}
    config = EngineConfig(model=str(source.path), dtype="float32", **options)
    loaded = load_on_device(config, source, "cpu", machine=HostMachine())
    with ExitStack() as stack:
        reference = stack.enter_context(Engine(config=config, device="cpu"))
        parts = device_parts(config, source, loaded)
        yield reference, stack.enter_context(Engine.from_parts(parts, config)), loaded


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    return write_model(tmp_path_factory.mktemp("llama"))


def tokens_of(results: list[Result | UmbelError]) -> list[list[tuple[int, ...]]]:
    for result in results:
        if isinstance(result, UmbelError):
            raise result
    return [[c.token_ids for c in result.completions] for result in results]


def assert_near(got: Completion, wanted: Completion) -> None:
    assert got.token_ids == wanted.token_ids
    assert got.logprobs is not None
    assert wanted.logprobs is not None
    for ours, theirs in zip(got.logprobs, wanted.logprobs, strict=True):
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
        assert [p for _, p in ours.top] == pytest.approx([p for _, p in theirs.top], abs=1e-4)


@pytest.mark.parametrize(
    "variant",
    [{}, BIASES, MISTRAL, QWEN3, GEMMA3],
    ids=["llama", "biases", "mistral", "qwen3", "gemma3"],
)
def test_every_kind_of_layer_gives_the_same_tokens(variant: dict[str, Any], tmp_path: Path) -> None:
    with both(write_model(tmp_path, **variant)) as (reference, engine, _):
        wanted = tokens_of(reference.generate_batch(PROMPTS, GREEDY))

        got = tokens_of(engine.generate_batch(PROMPTS, GREEDY))

    assert got == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"max_step_tokens": 7},
        {"max_step_tokens": 33, "block_size": 4},
        {"device_graphs": False},
        {"share_attention": False, "block_size": 1, "num_blocks": 600},
        {"prefix_cache": False},
    ],
    ids=lambda options: ", ".join(f"{name}={value}" for name, value in options.items()),
)
def test_however_steps_are_cut_the_tokens_are_the_same(
    llama: ModelSource, options: dict[str, Any]
) -> None:
    with both(llama, **options) as (reference, engine, _):
        wanted = tokens_of(reference.generate_batch(PROMPTS, GREEDY))

        got = tokens_of(engine.generate_batch(PROMPTS, GREEDY))

    assert got == wanted


def test_requests_that_are_preempted_go_on_as_before(llama: ModelSource) -> None:
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)

    with both(llama, num_blocks=20) as (reference, engine, _):
        wanted = tokens_of(reference.generate_batch(PROMPTS, params))
        got = tokens_of(engine.generate_batch(PROMPTS, params))

        assert engine.stats().num_preemptions > 0
    assert got == wanted


def test_forks_share_their_prompt_and_copy_its_last_block(llama: ModelSource) -> None:
    params = SamplingParams(temperature=1.0, seed=3, n=5, max_tokens=12, ignore_eos=True)

    with both(llama) as (reference, engine, _):
        wanted = [reference.generate(PROMPTS[1], params) for _ in range(2)]
        got = [engine.generate(PROMPTS[1], params) for _ in range(2)]

        assert tokens_of(list(got)) == tokens_of(list(wanted))
        assert len({c.token_ids for c in got[0].completions}) > 1
        assert engine.stats().cache.total_copies == reference.stats().cache.total_copies > 0


def test_decoding_is_replayed_and_its_attention_laid_out_before_its_plan_comes(
    llama: ModelSource,
) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)

    with both(llama) as (reference, engine, loaded):
        wanted = tokens_of(reference.generate_batch(PROMPTS, params))
        got = tokens_of(engine.generate_batch(PROMPTS, params))
        graphs = loaded.runner.executor.graphs

        assert got == wanted
        assert graphs is not None
        assert graphs.num_replayed > 12
        assert loaded.runner.planner.num_foreseen > 12


def test_constraints_forced_tokens_and_their_logprobs(llama: ModelSource) -> None:
    cases = [
        SamplingParams(temperature=0, regex=r"\d{3}-(abc|abd)x*", max_tokens=12, logprobs=2),
        SamplingParams(temperature=0, choices=("yes", "yesterday", "no"), max_tokens=12),
        SamplingParams(temperature=0.9, seed=1, regex="[a-f]{6}", max_tokens=12, logprobs=0),
    ]

    with both(llama) as (reference, engine, _):
        wanted = tokens_of(reference.generate_batch(PROMPTS[:3], cases))
        got = engine.generate_batch(PROMPTS[:3], cases)
        assert tokens_of(got) == wanted
        first = got[0]
        assert isinstance(first, Result)
        assert_near(first.completions[0], reference.generate(PROMPTS[0], cases[0]).completions[0])


def test_penalties_biases_bans_and_filters(llama: ModelSource) -> None:
    edited = SamplingParams(
        temperature=0,
        repetition_penalty=1.3,
        frequency_penalty=0.4,
        presence_penalty=0.2,
        logit_bias={70: 3.0, 71: -5.0},
        min_tokens=4,
        stop_token_ids=(72,),
        max_tokens=10,
        logprobs=3,
    )
    free = SamplingParams(temperature=2.0, seed=4, max_tokens=9, ignore_eos=True)

    with both(llama) as (reference, engine, _):
        wanted = reference.generate_batch(PROMPTS[:3], [edited, GREEDY, free])
        got = engine.generate_batch(PROMPTS[:3], [edited, GREEDY, free])

        assert tokens_of(got) == tokens_of(wanted)
        assert isinstance(got[0], Result)
        assert isinstance(wanted[0], Result)
        assert_near(got[0].completions[0], wanted[0].completions[0])


@pytest.mark.parametrize("rule", [{"top_k": 3}, {"top_p": 0.1}, {"min_p": 0.6}], ids=str)
def test_filtered_draws_stay_among_the_tokens_that_are_kept(
    llama: ModelSource, rule: dict[str, Any]
) -> None:
    """The CPU draws among sorted tokens, the kernel in order of ids: other tokens, same rule."""
    params = SamplingParams(
        temperature=1.0, seed=5, n=4, max_tokens=12, ignore_eos=True, logprobs=20, **rule
    )

    with both(llama, max_running=3) as (_, engine, _loaded):
        together, again = (engine.generate(PROMPTS[0], params) for _ in range(2))

    assert tokens_of([together]) == tokens_of([again])
    assert len({c.token_ids for c in together.completions}) > 1
    for completion in together.completions:
        assert completion.logprobs is not None
        for drawn in completion.logprobs:
            probabilities = [math.exp(logprob) for _, logprob in drawn.top]
            ids = [token for token, _ in drawn.top]
            place = ids.index(drawn.token_id)
            assert place < params.top_k or not params.top_k
            assert sum(probabilities[:place]) < params.top_p
            assert probabilities[place] >= params.min_p * probabilities[0] * (1 - 1e-5)


def test_scores_and_prompt_logprobs_over_more_rows_than_are_computed_together(
    llama: ModelSource,
) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=1, prompt_logprobs=2)

    with both(llama) as (reference, engine, _):
        wanted, got = (e.generate(PROMPTS[5], params) for e in (reference, engine))
        scores = [e.score(STORY, ["He", "She was", "x" * 90]) for e in (reference, engine)]

    ours_all, theirs_all = (r.completions[0].prompt_logprobs for r in (got, wanted))
    assert ours_all is not None
    assert theirs_all is not None
    assert len(ours_all) > 64
    for ours, theirs in zip(ours_all[1:], theirs_all[1:], strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert len(ours.top) == 2
    for ours_score, theirs_score in zip(scores[1], scores[0], strict=True):
        assert ours_score.total == pytest.approx(theirs_score.total, abs=1e-2)


def test_a_row_without_a_finite_logit_fails_alone(llama: ModelSource) -> None:
    banned = SamplingParams(
        temperature=0, max_tokens=3, min_tokens=2, regex="[ab]+", stop_token_ids=tuple(range(259))
    )

    with both(llama) as (_, engine, _loaded):
        got = engine.generate_batch(PROMPTS[:2], [banned, GREEDY])

    assert isinstance(got[0], EngineError)
    assert "no token can be chosen" in str(got[0])
    assert isinstance(got[1], Result)


def test_decode_steps_are_enqueued_before_the_last_one_is_read(llama: ModelSource) -> None:
    params = [
        SamplingParams(temperature=0, max_tokens=10 + 6 * idx, ignore_eos=True)
        for idx in range(len(PROMPTS))
    ]

    with both(llama, block_size=4, speculate="off") as (reference, engine, loaded):
        wanted = tokens_of(reference.generate_batch(PROMPTS, params))
        got = tokens_of(engine.generate_batch(PROMPTS, params))
        ahead = loaded.runner.ahead

        assert got == wanted
        assert ahead is not None
        # Requests that end, and those that grow into a new block, do not disturb a guess.
        assert ahead.num_right > 25
        assert ahead.num_missed <= 3


@pytest.mark.parametrize("seed", range(4))
def test_whatever_becomes_of_a_guess_the_tokens_are_the_same(llama: ModelSource, seed: int) -> None:
    """Unforeseen ends, forced tokens, forks, arrivals, drafts, and a pool that is short."""
    rng = random.Random(seed)
    prompts = [STORY[: rng.randrange(1, 60)] + rng.choice(["", "x", " He"]) for _ in range(12)]
    params = [_any_params(rng) for _ in prompts]
    options: dict[str, Any] = {"speculate": ("auto", "off")[seed % 2]}
    options |= {"num_blocks": 80, "block_size": 4, "max_running": 24, "max_step_tokens": 64}

    with both(llama, **options) as (reference, engine, _):
        wanted = tokens_of(reference.generate_batch(prompts, params))
        got = tokens_of(engine.generate_batch(prompts, params))

        assert got == wanted
        assert engine.reset_cache() >= 0
        assert engine.stats().cache.num_free_blocks == 80


def _any_params(rng: random.Random) -> SamplingParams:
    temperature = rng.choice([0.0, 0.0, 1.0])
    common = {"temperature": temperature, "seed": rng.randrange(100), "max_tokens": 45}
    kind = rng.randrange(4)
    if kind == 0:
        return SamplingParams(**common, regex=r"[a-m]{4}(the clock|the key)[0-9]{1,9}")
    if kind == 1:
        return SamplingParams(**common, n=rng.randrange(1, 4), ignore_eos=True)
    stops = tuple(rng.sample(range(256), 20))
    return SamplingParams(**common, stop_token_ids=stops, logprobs=rng.choice([None, 1]))
