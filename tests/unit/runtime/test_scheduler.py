"""The scheduler with the real radix cache and the simulated model: one behaviour each."""

import pytest
from unit.runtime.simulation import EOS_ID, Simulation

from umbel.runtime.config import EngineConfig
from umbel.runtime.errors import EngineError, InvalidRequest, RequestCancelled
from umbel.runtime.outputs import FinishReason
from umbel.runtime.params import SamplingParams

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]


def make(*, num_blocks: int = 64, block_size: int = 4, **options: int | bool) -> Simulation:
    config = EngineConfig(num_blocks=num_blocks, block_size=block_size, **options)
    return Simulation(config, end_every=1 << 40)


def test_a_request_gives_what_the_model_gives_alone() -> None:
    simulation = make()
    received = simulation.submit(PROMPT, 9)

    simulation.run()

    simulation.check_result(received)
    assert len(received.token_ids) == 9
    assert received.request.finish is not None
    assert received.request.finish.reason is FinishReason.LENGTH
    simulation.check_nothing_leaks()


def test_an_idle_scheduler_plans_nothing() -> None:
    assert make().scheduler.plan() is None


def test_a_prompt_is_computed_in_chunks_that_keep_the_budget() -> None:
    simulation = make(max_step_tokens=3)
    simulation.submit(PROMPT, 1)

    simulation.run()

    assert [plan.num_tokens for plan in simulation.runner.steps] == [3, 3, 3, 1]
    assert [plan.num_logits_rows for plan in simulation.runner.steps] == [0, 0, 0, 1]


def test_equal_prompts_admitted_together_are_computed_once_and_share_a_row() -> None:
    simulation = make()
    received = [simulation.submit(PROMPT, 3) for _ in range(5)]

    plan = simulation.step()

    assert plan is not None
    assert plan.num_tokens == len(PROMPT)
    assert plan.num_logits_rows == 1
    assert [sample.logits_row for sample in plan.samples] == [0] * 5
    simulation.run()
    for one in received:
        simulation.check_result(one)


def test_equal_branches_go_on_sharing_their_rows() -> None:
    simulation = make()
    for _ in range(4):
        simulation.submit(PROMPT, 6)

    simulation.run()

    assert [plan.num_tokens for plan in simulation.runner.steps] == [10, 1, 1, 1, 1, 1]


def test_without_the_prefix_cache_nothing_is_shared() -> None:
    simulation = make(prefix_cache=False)
    for _ in range(3):
        simulation.submit(PROMPT, 2)

    simulation.run()

    assert [plan.num_tokens for plan in simulation.runner.steps] == [30, 3]
    simulation.check_nothing_leaks()


def test_a_fully_cached_prompt_costs_one_query_row_that_is_not_written() -> None:
    simulation = make()
    simulation.submit(PROMPT, 1)
    simulation.run()

    second = simulation.submit(PROMPT, 1)
    plan = simulation.step()

    assert plan is not None
    (run,) = plan.runs
    assert (run.start, run.write_from, len(run.tokens)) == (9, 10, 1)
    assert second.request.num_cached == len(PROMPT)
    simulation.check_result(second)


def test_a_prompt_inside_a_longer_one_of_the_same_step_takes_its_row() -> None:
    simulation = make()
    simulation.submit([*PROMPT, 1, 1, 1], 1)
    short = simulation.submit(PROMPT, 1)

    plan = simulation.step()

    assert plan is not None
    assert plan.num_tokens == len(PROMPT) + 3
    assert plan.runs[0].logits_positions == [9, 12]
    simulation.check_result(short)


def test_decoding_rows_come_before_prefill() -> None:
    simulation = make(max_step_tokens=8)
    first = simulation.submit([1, 2, 3], 6)
    simulation.step()
    simulation.submit([5] * 30, 2)

    plan = simulation.step()

    assert plan is not None
    assert plan.runs[0].tokens == [first.token_ids[0]]
    assert len(plan.runs[1].tokens) == 7


def test_siblings_are_admitted_together_even_when_the_budget_is_spent() -> None:
    simulation = make(max_step_tokens=len(PROMPT))
    for index in range(3):
        simulation.submit(PROMPT, 1, params=SamplingParams(seed=index), group_id=7)

    assert simulation.run() == 1


def test_no_more_than_max_running_hold_blocks() -> None:
    simulation = make(max_running=2)
    received = [simulation.submit([index + 1, 2, 3], 4) for index in range(5)]

    simulation.run()

    for one in received:
        simulation.check_result(one)
    assert max(len(plan.requests) for plan in simulation.runner.steps) == 2


def test_requests_that_outgrow_the_pool_are_preempted_and_give_the_same() -> None:
    simulation = make(num_blocks=10)
    received = [simulation.submit([1 + index % 5, 4, 2, 1 + index], 20) for index in range(4)]

    simulation.run()

    for one in received:
        simulation.check_result(one)
    assert simulation.scheduler.counts.num_preemptions > 0
    assert received[0].request.num_preemptions == 0
    simulation.check_nothing_leaks()


def test_a_preempted_request_goes_before_those_that_came_later() -> None:
    simulation = make(num_blocks=8, max_running=3)
    received = [simulation.submit([1 + index % 5, 4, 2, 1 + index], 20) for index in range(6)]
    ended = []
    while simulation.step() is not None:
        ended += [i for i, one in enumerate(received) if one.last is not None and i not in ended]

    assert simulation.scheduler.counts.num_preemptions > 0
    assert ended == [0, 1, 2, 3, 4, 5]


def test_a_request_larger_than_the_pool_is_refused_with_both_numbers() -> None:
    simulation = make(num_blocks=4)

    with pytest.raises(InvalidRequest, match=r"needs 5 KV blocks.*the pool has 4"):
        simulation.submit(PROMPT, 8)

    simulation.submit(PROMPT, 7)
    simulation.run()
    simulation.check_nothing_leaks()


def test_a_request_that_needs_the_whole_pool_gets_it() -> None:
    """Its cached prefix diverges inside blocks, so that its path would hold more than its length
    needs.
    """
    simulation = make(num_blocks=4)
    simulation.submit([1, 2, 3, 4, 5, 1], 2)
    simulation.run()

    received = simulation.submit([1, 2, 3, 4, 5, 5], 11)
    simulation.run()

    simulation.check_result(received)
    simulation.check_nothing_leaks()


@pytest.mark.parametrize("max_step_tokens", [1, 3, 512])
def test_scores_are_the_logprobs_of_the_continuation(max_step_tokens: int) -> None:
    simulation = make(max_step_tokens=max_step_tokens)
    received = [
        simulation.submit(PROMPT, continuation=continuation)
        for continuation in ([3, 1], [3, 2, 2], [5], [3, 1])
    ]

    simulation.run()

    for one in received:
        simulation.check_result(one)
    simulation.check_nothing_leaks()


def test_choices_after_a_cached_prompt_are_scored_in_one_step_with_one_shared_row() -> None:
    simulation = make()
    simulation.submit(PROMPT, 1)
    simulation.run()

    for continuation in ([3, 1], [2, 2, 2], [5]):
        simulation.submit(PROMPT, continuation=continuation)
    num_steps = simulation.run()

    assert num_steps == 1
    assert simulation.runner.steps[-1].num_tokens == 1 + 1 + 2


def test_a_score_of_nothing_is_empty() -> None:
    simulation = make()
    received = simulation.submit(PROMPT, continuation=[])

    assert received.last is not None
    assert simulation.run() == 0


@pytest.mark.parametrize("max_step_tokens", [1, 4, 512])
def test_prompt_logprobs_come_from_the_cache_too(max_step_tokens: int) -> None:
    simulation = make(max_step_tokens=max_step_tokens)
    params = SamplingParams(prompt_logprobs=0, logprobs=0)
    received = [simulation.submit(PROMPT, 3, params=params) for _ in range(2)]
    simulation.run()
    received.append(simulation.submit(PROMPT, 3, params=params))
    simulation.run()

    for one in received:
        simulation.check_result(one)
    assert received[2].request.num_cached == len(PROMPT)


@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("logprobs", [None, 0])
def test_forced_tokens_are_taken_without_sampling(jump_forward: bool, logprobs: int | None) -> None:
    simulation = make(jump_forward=jump_forward)
    params = SamplingParams(logprobs=logprobs)
    received = simulation.submit(PROMPT, 20, params=params, force_every=2)

    num_steps = simulation.run()

    simulation.check_result(received)
    num_forced = received.request.num_forced
    assert num_forced > 0
    assert num_steps <= 20 - num_forced + 1 if jump_forward else num_steps >= 19


@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("logprobs", [None, 0])
def test_tokens_forced_from_the_start_join_the_prompt(
    jump_forward: bool, logprobs: int | None
) -> None:
    simulation = make(jump_forward=jump_forward)
    params = SamplingParams(logprobs=logprobs, prompt_logprobs=logprobs)
    received = simulation.submit(PROMPT, 9, params=params, force_every=9, force_first=[2, 4, 4])

    num_steps = simulation.run()

    simulation.check_result(received)
    assert received.token_ids[:3] == [2, 4, 4]
    assert num_steps == (6 if jump_forward else 9)


def test_an_older_request_that_needs_blocks_waits_for_younger_ones_of_its_step() -> None:
    """The older one feeds forced tokens one by one after the younger one's decoding row."""
    simulation = make(num_blocks=23, block_size=1, jump_forward=False)
    older = simulation.submit([1, 2], 16, force_every=9, force_first=[3, 1] * 7)
    younger = simulation.submit([5, 5], 22)

    simulation.run()

    simulation.check_result(older)
    simulation.check_result(younger)
    assert (older.request.num_preemptions, younger.request.num_preemptions) == (0, 1)


def test_a_request_waits_until_there_are_blocks_for_its_prompt() -> None:
    simulation = make(num_blocks=6)
    first = simulation.submit(PROMPT, 3)
    second = simulation.submit([5, *PROMPT], 3)
    simulation.step()

    assert (simulation.scheduler.num_running, simulation.scheduler.num_waiting) == (1, 1)
    simulation.run()
    simulation.check_result(first)
    simulation.check_result(second)


def test_waiting_for_blocks_is_not_counted_as_reuse() -> None:
    simulation = make(num_blocks=6)
    simulation.submit(PROMPT, 10)
    second = simulation.submit([*PROMPT, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], 2)
    simulation.step()
    assert simulation.scheduler.num_waiting == 1

    simulation.run()

    assert simulation.scheduler.counts.num_reused == len(PROMPT)
    assert second.request.num_cached == len(PROMPT)
    simulation.check_result(second)


def test_stop_ids_end_a_request_and_are_named() -> None:
    simulation = make()
    plain = simulation.submit(PROMPT, 9)
    simulation.run()
    stop_id = plain.token_ids[4]

    received = simulation.submit(PROMPT, 9, params=SamplingParams(stop_token_ids=[stop_id]))
    simulation.run()

    assert received.token_ids == plain.token_ids[: plain.token_ids.index(stop_id) + 1]
    assert received.request.finish is not None
    assert received.request.finish.stop == stop_id


def test_an_end_token_ends_a_request() -> None:
    simulation = Simulation(EngineConfig(num_blocks=64), end_every=4)
    received = simulation.submit(PROMPT, 60)

    simulation.run()

    assert received.token_ids[-1] == EOS_ID
    assert received.request.finish is not None
    assert received.request.finish.reason is FinishReason.STOP


def test_ignore_eos_goes_on_to_the_limit() -> None:
    simulation = Simulation(EngineConfig(num_blocks=64), end_every=4)
    received = simulation.submit(PROMPT, 30, params=SamplingParams(ignore_eos=True))

    simulation.run()

    assert len(received.token_ids) == 30
    assert EOS_ID in received.token_ids


def test_an_abort_frees_everything_at_once() -> None:
    simulation = make()
    running = simulation.submit(PROMPT, 9)
    simulation.step()
    waiting = simulation.submit(PROMPT, 9)

    simulation.abort(running)
    simulation.abort(waiting)
    simulation.abort(waiting)

    assert isinstance(running.last and running.last.error, RequestCancelled)
    assert isinstance(waiting.last and waiting.last.error, RequestCancelled)
    assert simulation.scheduler.plan() is None
    simulation.check_nothing_leaks()


def test_a_failed_step_ends_its_requests_and_spares_the_others() -> None:
    simulation = make(max_step_tokens=12)
    hit = simulation.submit(PROMPT, 5)
    spared = simulation.submit([2, 2, *PROMPT], 5)
    simulation.step()
    plan = simulation.scheduler.plan()
    assert plan is not None
    assert spared.request in plan.requests

    simulation.abort(spared)
    error = EngineError("step failed")
    updates = simulation.scheduler.fail_step(plan, error)

    assert [str(update.error) for update in updates] == ["step failed"]
    assert updates[0].request is hit.request
    simulation.cache.check()
    assert simulation.cache.num_leased_blocks == 0


def test_a_request_that_counted_on_a_failed_step_starts_again() -> None:
    simulation = make(max_step_tokens=6)
    hit = simulation.submit(PROMPT, 3, group_id=1)
    spared = simulation.submit(PROMPT, 3, group_id=1)
    plan = simulation.scheduler.plan()
    assert plan is not None
    assert plan.requests == [hit.request]

    simulation.scheduler.fail_step(plan, EngineError("step failed"))
    simulation.num_live -= 1
    simulation.run()

    simulation.check_result(spared)
    simulation.check_nothing_leaks()
