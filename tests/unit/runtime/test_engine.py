"""The engine on a simulated model: what calls give and what is refused, by public methods."""

import threading
from collections.abc import Callable

import pytest
from unit.runtime.simulated_engine import (
    BOS_ID,
    CONTEXT_LEN,
    GREEDY,
    PROMPT,
    VOCAB_SIZE,
    EngineRig,
    Listener,
    expected_tokens,
    rig,
    text_of,
)
from unit.runtime.simulation import EOS_ID, logprob_of, state_of

from umbel.runtime.config import EngineConfig
from umbel.runtime.errors import (
    ContextTooLong,
    InvalidConstraint,
    InvalidRequest,
    QueueFull,
    UmbelError,
)
from umbel.runtime.outputs import FinishReason, Result
from umbel.runtime.params import SamplingParams
from umbel.runtime.parts import make_config


def test_generate_gives_tokens_text_and_accounting() -> None:
    with rig() as made:
        result = made.engine.generate(PROMPT, temperature=0, max_tokens=5)

    assert result.prompt_token_ids == tuple(PROMPT)
    assert list(result.token_ids) == expected_tokens(PROMPT, 5)
    assert result.text == text_of(result.token_ids)
    assert result.finish_reason is FinishReason.LENGTH
    assert (result.usage.num_prompt_tokens, result.usage.num_output_tokens) == (7, 5)
    timing = result.completions[0].timing
    assert 0 <= timing.queue_s <= timing.first_token_s <= timing.total_s


def test_a_call_knows_its_steps_and_how_many_rows_they_had() -> None:
    params = SamplingParams(temperature=0, max_tokens=5, speculate="off")
    with rig() as made:
        alone = made.engine.generate(PROMPT, params).usage
        made.engine.reset_cache()
        pair = made.engine.generate_batch([PROMPT, [9, 8, 7]], params)

    assert (alone.num_steps, alone.num_step_rows) == (5, 7 + 4)
    for result in pair:
        assert isinstance(result, Result)
        assert (result.usage.num_steps, result.usage.num_step_rows) == (5, 7 + 3 + 4 * 2)


def test_a_second_call_takes_the_prompt_from_the_cache() -> None:
    with rig() as made:
        made.engine.generate(PROMPT, GREEDY)
        result = made.engine.generate(PROMPT, GREEDY)

    assert result.usage.num_cached_tokens == len(PROMPT)


def test_a_string_prompt_gets_one_bos() -> None:
    with rig() as made:
        plain = made.engine.generate("abc", GREEDY)
        with_bos = made.engine.generate("<s>abc", GREEDY)

    assert plain.prompt_token_ids == with_bos.prompt_token_ids == (BOS_ID, 1, 2, 3)


def test_n_sequences_come_in_order_and_share_the_prompt() -> None:
    with rig() as made:
        result = made.engine.generate(PROMPT, n=4, max_tokens=3)

    assert [one.index for one in result.completions] == [0, 1, 2, 3]
    assert sum(plan.num_tokens for plan in made.runner.steps) == len(PROMPT) + 2


def test_seeds_are_drawn_from_the_configured_one() -> None:
    def seeds(seed: int) -> list[int]:
        with rig(seed=seed) as made:
            for _ in range(2):
                made.engine.generate(PROMPT, n=2, max_tokens=1)
            return [row.seed for row in made.sampler.rows]

    assert seeds(1) == seeds(1)
    assert seeds(1) != seeds(2)
    assert len(set(seeds(1))) == 4


def test_a_given_seed_is_that_of_the_first_sequence() -> None:
    with rig() as made:
        made.engine.generate(PROMPT, n=3, max_tokens=1, seed=5)
        made.engine.generate(PROMPT, n=1, max_tokens=1, seed=5)

    seeds = [row.seed for row in made.sampler.rows]
    assert (seeds[0], seeds[3]) == (5, 5)
    assert len(set(seeds)) == 3


def test_logprobs_come_for_prompt_and_output() -> None:
    with rig() as made:
        result = made.engine.generate(PROMPT, GREEDY, logprobs=2, prompt_logprobs=1)

    (completion,) = result.completions
    tokens = [*PROMPT, *completion.token_ids]
    assert completion.logprobs is not None
    assert [entry.logprob for entry in completion.logprobs] == [
        logprob_of(state_of(tokens[:at]), tokens[at]) for at in range(len(PROMPT), len(tokens))
    ]
    assert completion.prompt_logprobs is not None
    assert completion.prompt_logprobs[0] is None
    assert [entry.token_id for entry in completion.prompt_logprobs[1:] if entry] == PROMPT[1:]
    assert all(len(entry.top) == 1 for entry in completion.prompt_logprobs[1:] if entry)


def test_end_tokens_are_banned_before_min_tokens() -> None:
    with rig(end_every=2) as made:
        result = made.engine.generate(PROMPT, min_tokens=9, max_tokens=30)

    assert len(result.token_ids) >= 9
    assert EOS_ID not in result.token_ids[:9]


def test_a_stop_string_across_tokens_cuts_the_text() -> None:
    with rig() as made:
        plain = made.engine.generate(PROMPT, temperature=0, max_tokens=12)
        stop = plain.text[4:7]
        cut = plain.text.index(stop)
        result = made.engine.generate(PROMPT, temperature=0, max_tokens=12, stop=[stop])

    (completion,) = result.completions
    assert completion.text == plain.text[:cut]
    assert completion.token_ids == plain.token_ids[: cut + 3]
    assert completion.text_token_ids == plain.token_ids[:cut]
    assert completion.stop_reason == stop
    assert completion.finish_reason is FinishReason.STOP


def test_a_constraint_that_is_complete_ends_the_request() -> None:
    with rig() as made:
        result = made.engine.generate(PROMPT, regex="ab(c|d)e")

    assert result.text in ("abce", "abde")
    assert result.finish_reason is FinishReason.STOP
    assert result.usage.num_forced_tokens > 0


@pytest.mark.parametrize("jump_forward", [True, False])
def test_a_wholly_forced_output_needs_no_step(jump_forward: bool) -> None:
    with rig(jump_forward=jump_forward) as made:
        result = made.engine.generate(PROMPT, choices=["abcd"])

    assert result.text == "abcd"
    assert result.usage.num_forced_tokens == 4
    assert made.runner.steps == []


def test_logprobs_of_forced_tokens_are_those_of_the_model() -> None:
    with rig() as made:
        result = made.engine.generate(PROMPT, choices=["abcd"], logprobs=0)

    tokens = [*PROMPT, *result.token_ids]
    logprobs = result.completions[0].logprobs
    assert logprobs is not None
    assert [entry.logprob for entry in logprobs] == [
        logprob_of(state_of(tokens[:at]), tokens[at]) for at in range(len(PROMPT), len(tokens))
    ]


def test_max_tokens_cuts_forced_tokens() -> None:
    with rig() as made:
        result = made.engine.generate(PROMPT, choices=["abcdef"], max_tokens=3)

    assert result.text == "abc"
    assert result.finish_reason is FinishReason.LENGTH


def test_without_max_tokens_the_context_ends_the_output() -> None:
    with rig() as made:
        result = made.engine.generate(PROMPT, temperature=0, max_tokens=None)

    assert len(result.token_ids) == CONTEXT_LEN - len(PROMPT)
    assert result.finish_reason is FinishReason.LENGTH


def test_scores_come_in_the_order_of_the_continuations() -> None:
    with rig() as made:
        scores = made.engine.score("abc", ["de", "d", "xyz"])

    prompt = [BOS_ID, 1, 2, 3]
    assert [score.token_ids for score in scores] == [(4, 5), (4,), (24, 25, 26)]
    assert scores[0].logprobs == (
        logprob_of(state_of(prompt), 4),
        logprob_of(state_of([*prompt, 4]), 5),
    )
    assert scores[1].total == scores[0].logprobs[0]


def test_chat_renders_the_template() -> None:
    with rig(chat_template="<s>{{ messages[0]['content'] }} b") as made:
        result = made.engine.chat([{"role": "user", "content": "a"}], GREEDY)

    assert result.prompt_token_ids == (BOS_ID, 1, 27, 2)


def test_a_model_without_a_chat_template_says_so() -> None:
    with rig() as made, pytest.raises(InvalidRequest, match="no chat template"):
        made.engine.chat([{"role": "user", "content": "a"}])


BAD_CALLS: list[tuple[Callable[[EngineRig], object], type[UmbelError], str]] = [
    (lambda r: r.engine.generate(""), InvalidRequest, "prompt is empty"),
    (lambda r: r.engine.generate([]), InvalidRequest, "prompt is empty"),
    (lambda r: r.engine.generate([1] * CONTEXT_LEN), ContextTooLong, "512 tokens"),
    (lambda r: r.engine.generate([1] * 506), ContextTooLong, "lower max_tokens to 6"),
    (lambda r: r.engine.generate([1, VOCAB_SIZE]), InvalidRequest, "ids are 0 to 31"),
    (lambda r: r.engine.generate([1, -1]), InvalidRequest, "token id -1"),
    (lambda r: r.engine.generate([1, 2.0]), InvalidRequest, "2.0, which is no token id"),  # type: ignore[list-item]
    (lambda r: r.engine.generate(5), InvalidRequest, "expected token ids"),  # type: ignore[arg-type]
    (lambda r: r.engine.generate("a", logit_bias={99: 1.0}), InvalidRequest, "logit_bias"),
    (lambda r: r.engine.generate("a", stop_token_ids=[99]), InvalidRequest, "stop_token_ids"),
    (lambda r: r.engine.generate("a", max_tokens=0), InvalidRequest, "max_tokens"),
    (lambda r: r.engine.generate("a", temperature=float("nan")), InvalidRequest, "temperature"),
    (lambda r: r.engine.generate("a", temprature=1), InvalidRequest, "temprature"),
    (lambda r: r.engine.generate("a", regex="("), InvalidConstraint, "regex"),
    (lambda r: r.engine.score("a", ["b", ""]), InvalidRequest, "continuation is empty"),
    (lambda r: r.engine.score("a", "bc"), InvalidRequest, "one string"),
    (lambda r: r.engine.generate_batch("bc"), InvalidRequest, "one string"),
    (lambda r: r.engine.submit([1], None, print), InvalidRequest, "params"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_bad_input_is_a_clear_error_and_the_engine_goes_on(
    call: Callable[[EngineRig], object], error: type[UmbelError], message: str
) -> None:
    with rig() as made:
        with pytest.raises(error, match=message):
            call(made)

        assert len(made.engine.generate(PROMPT, GREEDY).token_ids) == 5
        made.check_nothing_is_held()


def test_a_request_larger_than_the_pool_names_both_numbers() -> None:
    with rig(num_blocks=4) as made, pytest.raises(InvalidRequest, match=r"5 KV blocks.*has 4"):
        made.engine.generate(PROMPT, max_tokens=12)


def test_without_max_tokens_a_small_pool_ends_the_output() -> None:
    with rig(num_blocks=4) as made:
        result = made.engine.generate(PROMPT, max_tokens=None)

    assert len(result.token_ids) == 17 - len(PROMPT)


def test_an_unknown_engine_option_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="unknown engine option 'blok_size'"):
        make_config(None, None, {"blok_size": 8})


def test_engine_options_go_on_top_of_the_configuration() -> None:
    config = make_config("m", EngineConfig(block_size=8, seed=3), {"seed": 4})

    assert (config.model, config.block_size, config.seed) == ("m", 8, 4)


def test_more_requests_than_the_queue_takes_are_refused() -> None:
    listeners = [Listener() for _ in range(3)]
    with rig(max_running=1, max_waiting=2) as made:
        gate = made.hold_steps()
        for listener in listeners:
            made.engine.submit(PROMPT, GREEDY, listener)
        with pytest.raises(QueueFull, match="try again later"):
            made.engine.submit(PROMPT, GREEDY, Listener())
        gate.open()
        for listener in listeners:
            assert listener.wait().completion is not None
        made.engine.generate(PROMPT, GREEDY)


def test_more_sequences_than_the_queue_ever_takes_are_an_invalid_request() -> None:
    with rig(max_running=1, max_waiting=2) as made, pytest.raises(InvalidRequest, match="n=4"):
        made.engine.generate(PROMPT, GREEDY, n=4)


def test_a_failing_item_of_a_batch_fails_alone() -> None:
    with rig() as made:
        first, second, third = made.engine.generate_batch(["abc", "", "abd"], GREEDY)

    assert isinstance(first, Result)
    assert isinstance(second, InvalidRequest)
    assert isinstance(third, Result)


def test_a_batch_may_be_larger_than_the_queue() -> None:
    prompts = [[1 + index % 20, 2, 3] for index in range(25)]
    with rig(max_running=2, max_waiting=2) as made:
        results = made.engine.generate_batch(prompts, GREEDY)

    assert [list(result.token_ids) for result in results if isinstance(result, Result)] == [
        expected_tokens(prompt, 5) for prompt in prompts
    ]


def test_a_batch_takes_one_params_for_each_prompt() -> None:
    with rig() as made:
        params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)]
        results = made.engine.generate_batch(["a", "b"], params, temperature=0)
        with pytest.raises(InvalidRequest, match="2 params for 1 prompts"):
            made.engine.generate_batch(["a"], params)

    assert [len(one.token_ids) for one in results if isinstance(one, Result)] == [1, 2]


def test_two_hundred_requests_need_no_more_threads_and_compute_the_prefix_once() -> None:
    prefix = [1 + index % 26 for index in range(100)]
    listeners = [Listener() for _ in range(200)]
    with rig(num_blocks=2048) as made:
        made.engine.generate(prefix, GREEDY)
        num_threads = threading.active_count()
        num_computed = made.engine.stats().num_computed_tokens
        for index, listener in enumerate(listeners):
            made.engine.submit([*prefix, 1 + index % 26, 1 + index // 26], GREEDY, listener)
        assert threading.active_count() == num_threads
        for listener in listeners:
            assert listener.wait().completion is not None
        stats = made.engine.stats()

    assert stats.num_computed_tokens - num_computed <= 200 * (2 + 4)
    assert stats.num_generated_tokens == 201 * 5


def test_stats_count_what_happened() -> None:
    with rig(speculate="off") as made:
        made.engine.generate(PROMPT, GREEDY)
        made.engine.generate(PROMPT, GREEDY)
        stats = made.engine.stats()

    assert stats.num_steps == 10
    assert stats.num_computed_tokens == (7 + 4) + 5  # the second call: query rows only
    assert stats.num_reused_tokens == 7 + 4
    assert stats.num_generated_tokens == 10
    assert stats.rows_per_step == {1: 9, 8: 1}
    assert stats.mean_rows_per_step == pytest.approx(1.6)
    assert stats.all_steps.total_s >= stats.last_step.total_s > 0


def test_the_cache_can_be_drawn_and_reset() -> None:
    with rig() as made:
        made.engine.generate(PROMPT, GREEDY)
        nodes = made.engine.cache_nodes()
        num_freed = made.engine.reset_cache()
        again = made.engine.generate(PROMPT, GREEDY)

    assert sum(len(node.tokens) for node in nodes) == len(PROMPT) + 4
    assert num_freed == 3
    assert again.usage.num_cached_tokens == 0
