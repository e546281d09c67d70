"""The engine on a simulated model: calls, faults, closing; through its public methods."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from unit.runtime.simulated_engine import (
    BOS_ID,
    CONTEXT_LEN,
    VOCAB_SIZE,
    EngineRig,
    expected_tokens,
    rig,
    text_of,
)
from unit.runtime.simulation import EOS_ID, logprob_of, state_of

from umbel.grammar import GrammarError, UnsupportedGrammar
from umbel.radix_cache.tree import RadixCache
from umbel.runtime.config import EngineConfig
from umbel.runtime.errors import (
    ContextTooLong,
    EngineClosed,
    EngineError,
    InvalidConstraint,
    InvalidRequest,
    QueueFull,
    RequestCancelled,
    UmbelError,
    UnsupportedConstraint,
)
from umbel.runtime.outputs import Chunk, FinishReason, Result, Score
from umbel.runtime.params import SamplingParams
from umbel.runtime.parts import make_config
from umbel.runtime.step import StepPlan

PROMPT = [1, 2, 3, 4, 5, 1, 2]
GREEDY = SamplingParams(temperature=0, max_tokens=5)


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


def test_a_listener_hears_chunks_and_one_last_completion() -> None:
    listener = Listener()
    with rig() as made:
        made.engine.submit(PROMPT, GREEDY, listener)
        completion = listener.wait().completion

    assert [chunk.completion is not None for chunk in listener.events] == [False] * 4 + [True]
    assert "".join(chunk.text for chunk in listener.events) == completion.text
    assert sum((chunk.token_ids for chunk in listener.events), ()) == completion.token_ids


def test_a_listener_that_raises_is_logged_and_hurts_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bad_listener(chunk: Chunk) -> None:
        raise RuntimeError("listener is broken")

    with rig() as made:
        made.engine.submit(PROMPT, GREEDY, bad_listener)
        result = made.engine.generate([5, 5, 5], GREEDY)
        made.check_nothing_is_held()

    assert len(result.token_ids) == 5
    assert "listener is broken" in caplog.text


def test_a_listener_that_waits_for_the_engine_gets_an_error() -> None:
    caught: list[Exception] = []
    done = threading.Event()

    def listener(chunk: Chunk) -> None:
        try:
            made.engine.generate(PROMPT, GREEDY)
        except EngineError as error:
            caught.append(error)
        finally:
            done.set()

    with rig() as made:
        made.engine.submit(PROMPT, GREEDY, listener)
        assert done.wait(timeout=30)

    assert "would never end" in str(caught[0])


def test_waiting_inside_hold_is_an_error() -> None:
    with rig() as made:
        with made.engine.hold(), pytest.raises(EngineError, match=r"inside hold\(\)"):
            made.engine.generate(PROMPT, GREEDY)
        made.check_nothing_is_held()


def test_calls_submitted_within_hold_enter_together() -> None:
    listeners = [Listener() for _ in range(3)]
    with rig() as made:
        with made.engine.hold():
            for index, listener in enumerate(listeners):
                made.engine.submit([index + 1, 2, 3], GREEDY, listener)
        for listener in listeners:
            listener.wait()

    assert len(made.runner.steps[0].requests) == 3


def test_cancelling_ends_a_call_once() -> None:
    listener = Listener()
    with rig() as made:
        gate = made.hold_steps()
        handle = made.engine.submit(PROMPT, SamplingParams(max_tokens=100), listener)
        assert gate.reached.wait(timeout=30)
        handle.cancel()
        handle.cancel()
        gate.open()
        last = listener.wait()
        made.check_nothing_is_held()

    assert isinstance(last.error, RequestCancelled)
    assert sum(chunk.error is not None for chunk in listener.events) == 1
    assert len(made.runner.steps) <= 2


def test_cancelling_after_the_end_does_nothing() -> None:
    listener = Listener()
    with rig() as made:
        handle = made.engine.submit(PROMPT, GREEDY, listener)
        listener.wait()
        handle.cancel()
        made.check_nothing_is_held()

    assert listener.events[-1].completion is not None


def test_a_call_can_be_cancelled_while_its_constraint_is_compiled() -> None:
    go_on = threading.Event()

    def slow(source: str, vocabulary: object) -> object:
        assert go_on.wait(timeout=30)
        raise GrammarError("too late")

    listener = Listener()
    with rig(compilers={"lark": slow}) as made:
        handle = made.engine.submit(PROMPT, SamplingParams(lark="x"), listener)
        handle.cancel()
        last = listener.wait()
        go_on.set()
        made.check_nothing_is_held()

    assert isinstance(last.error, RequestCancelled)
    assert len(listener.events) == 1


def test_a_compiling_constraint_holds_up_nobody_else() -> None:
    go_on = threading.Event()

    def slow(source: str, vocabulary: object) -> object:
        assert go_on.wait(timeout=30)
        raise GrammarError("it was not even valid")

    listener = Listener()
    with rig(compilers={"lark": slow}) as made:
        made.engine.submit(PROMPT, SamplingParams(lark="x"), listener)
        other = made.engine.generate(PROMPT, GREEDY)
        go_on.set()
        last = listener.wait()

    assert len(other.token_ids) == 5
    assert isinstance(last.error, InvalidConstraint)


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on() -> None:
    def fail(plan: StepPlan) -> None:
        raise MemoryError("no memory for this step")

    with rig() as made:
        made.runner.before_step = fail
        with pytest.raises(EngineError, match="no memory for this step") as caught:
            made.engine.generate(PROMPT, GREEDY)
        made.runner.before_step = lambda plan: None
        result = made.engine.generate(PROMPT, GREEDY)
        made.check_nothing_is_held()
        stats = made.engine.stats()

    assert isinstance(caught.value.__cause__, MemoryError)
    assert list(result.token_ids) == expected_tokens(PROMPT, 5)
    assert stats.num_failed_steps == 1


class BrokenMatcher:
    """Fails in the middle of an output."""

    def __init__(self, fails_in: str, fault: Exception | None = None) -> None:
        self.fails_in = fails_in
        self.fault = fault or ZeroDivisionError("a bug in the constraint")
        self.finished = False

    def fill_mask(self, row: Any, *, budget: int | None = None) -> None:
        row.fill(0xFFFFFFFF)
        if self.fails_in == "fill_mask":
            raise self.fault

    def advance(self, token_id: int) -> bool:
        if self.fails_in == "advance":
            raise self.fault
        return self.fails_in != "refuse"

    def forced(self, *, budget: int | None = None) -> list[int]:
        if self.fails_in == "forced":
            raise self.fault
        return []

    def start(self) -> "BrokenMatcher":
        if self.fails_in == "start":
            raise self.fault
        return self


@pytest.mark.parametrize("fails_in", ["start", "forced", "fill_mask", "advance", "refuse"])
def test_a_broken_constraint_fails_its_own_request_only(fails_in: str) -> None:
    broken = Listener()
    other = Listener()
    compilers = {"lark": lambda source, vocabulary: BrokenMatcher(fails_in)}
    with rig(compilers=compilers) as made:
        made.engine.submit(PROMPT, SamplingParams(lark="x"), broken)
        made.engine.submit(PROMPT, GREEDY, other)
        last, completion = broken.wait(), other.wait().completion
        made.check_nothing_is_held()

    assert isinstance(last.error, EngineError)
    assert list(completion.token_ids) == expected_tokens(PROMPT, 5)


@pytest.mark.parametrize("fails_in", ["forced", "fill_mask", "advance"])
def test_a_limit_that_a_text_runs_into_is_the_fault_of_its_request(fails_in: str) -> None:
    """As far as a grammar can be checked it is when it is compiled; ambiguity shows in the text."""
    limit = UnsupportedGrammar("the text can be read in more than 1000 ways at once")
    ambiguous = Listener()
    compilers = {"lark": lambda source, vocabulary: BrokenMatcher(fails_in, limit)}
    with rig(compilers=compilers) as made:
        made.engine.submit(PROMPT, SamplingParams(lark="x"), ambiguous)
        last = ambiguous.wait()
        made.check_nothing_is_held()

    assert isinstance(last.error, UnsupportedConstraint)
    assert "lark: the text can be read in more than 1000 ways" in str(last.error)


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


def test_closing_ends_what_is_under_way_and_leaves_no_engine_thread() -> None:
    running, waiting, compiling = Listener(), Listener(), Listener()
    go_on = threading.Event()

    def slow(source: str, vocabulary: object) -> object:
        assert go_on.wait(timeout=30)
        raise GrammarError("too late")

    made = EngineRig(max_running=1, compilers={"lark": slow})
    gate = made.hold_steps()
    made.engine.submit(PROMPT, SamplingParams(max_tokens=200), running)
    made.engine.submit(PROMPT, SamplingParams(max_tokens=200), waiting)
    made.engine.submit(PROMPT, SamplingParams(lark="x"), compiling)
    assert gate.reached.wait(timeout=30)
    threading.Timer(0.05, gate.open).start()

    made.engine.close()
    made.engine.close()
    go_on.set()

    for listener in (running, waiting, compiling):
        assert isinstance(listener.wait().error, EngineClosed)
    assert not any(thread.name == "umbel-engine" for thread in threading.enumerate())


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.generate(PROMPT),
        lambda engine: engine.generate(PROMPT, regex="a"),
        lambda engine: engine.score(PROMPT, [[1]]),
        lambda engine: engine.reset_cache(),
    ],
)
def test_a_closed_engine_says_so(call: Callable[[Any], object]) -> None:
    made = EngineRig()
    made.engine.close()

    with pytest.raises(EngineClosed):
        call(made.engine)


def test_a_listener_may_close_the_engine() -> None:
    made = EngineRig()
    listener = Listener()

    def close(chunk: Chunk) -> None:
        made.engine.close()
        listener(chunk)

    made.engine.submit(PROMPT, SamplingParams(max_tokens=100), close)

    assert isinstance(listener.wait().error, EngineClosed)
    made.engine.close()


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


def test_a_score_can_be_cancelled() -> None:
    listener = Listener()
    with rig() as made:
        gate = made.hold_steps()
        blocker = made.engine.submit(PROMPT, SamplingParams(max_tokens=100), Listener())
        assert gate.reached.wait(timeout=30)
        made.engine.submit_score(PROMPT, [3], listener).cancel()
        blocker.cancel()
        gate.open()

        assert isinstance(listener.wait(), RequestCancelled)


def test_a_score_listener_gets_one_score() -> None:
    listener = Listener()
    with rig() as made:
        made.engine.submit_score(PROMPT, [3, 4], listener)

        assert isinstance(listener.wait(), Score)
    assert len(listener.events) == 1


def test_bugs_in_the_step_are_logged_with_their_trace(caplog: pytest.LogCaptureFixture) -> None:
    def fail(plan: StepPlan) -> None:
        raise KeyError("lost")

    with rig() as made, caplog.at_level(logging.ERROR):
        made.runner.before_step = fail
        with pytest.raises(EngineError):
            made.engine.generate(PROMPT, GREEDY)

    assert "computing a step failed" in caplog.text
    assert "Traceback" in caplog.text


def test_a_bug_after_the_model_fails_what_is_running_and_the_engine_goes_on() -> None:
    def lose_everything(*args: object) -> list[object]:
        return []

    with rig() as made:
        made.sampler.score = lose_everything  # type: ignore[method-assign, assignment]
        with pytest.raises(EngineError, match="scheduling a step failed"):
            made.engine.generate(PROMPT, GREEDY, prompt_logprobs=0)
        result = made.engine.generate(PROMPT, GREEDY)
        made.check_nothing_is_held()

    assert list(result.token_ids) == expected_tokens(PROMPT, 5)


def test_an_engine_that_cannot_go_on_answers_everybody_and_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("the cache is broken")

    listener = Listener()
    with rig() as made:
        monkeypatch.setattr(RadixCache, "commit_step", fail)
        monkeypatch.setattr(RadixCache, "discard_step", fail)
        made.engine.submit(PROMPT, GREEDY, listener)

        assert isinstance(listener.wait().error, EngineClosed)
        with pytest.raises(EngineClosed):
            made.engine.generate(PROMPT, GREEDY)
