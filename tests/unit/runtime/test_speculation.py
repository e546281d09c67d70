"""Guesses: where they come from, how many are worth feeding, and that none changes an output."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.runtime.simulated_engine import rig
from unit.runtime.simulation import SimulatedMatcher, Simulation

from umbel.radix_cache import Namespace, RadixCache, TokenKind
from umbel.runtime.config import EngineConfig
from umbel.runtime.errors import InvalidRequest
from umbel.runtime.params import SamplingParams
from umbel.runtime.request import Request
from umbel.runtime.roofline.cost.speculation import best_draft_len
from umbel.runtime.sampler import Sampled
from umbel.runtime.speculation.draft import make_draft, may_draft
from umbel.runtime.speculation.drafter import Drafter
from umbel.runtime.speculation.history import LONGEST_MATCH, SHORTEST_MATCH, History
from umbel.runtime.speculation.step_curve import LONGEST_DRAFT, Ledger, StepCurve, worth_feeding

HERE = Namespace("model")


# -- where guesses come from


def naive_continuation(tokens: Sequence[int], limit: int) -> tuple[int, list[int]]:
    for length in range(min(LONGEST_MATCH, len(tokens) - 1), SHORTEST_MATCH - 1, -1):
        last = list(tokens[-length:])
        for start in range(len(tokens) - length - 1, -1, -1):
            if list(tokens[start : start + length]) == last:
                going_on = list(tokens)
                for at in range(start + length, start + length + limit):
                    if at == len(going_on):
                        going_on.append(going_on[at - (len(tokens) - start - length)])
                return length, going_on[start + length : start + length + limit]
    return 0, []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 12), st.data())
def test_a_history_finds_the_longest_match_and_of_several_the_newest(
    tokens: list[int], limit: int, data: st.DataObject
) -> None:
    history = History()
    history.take(tokens[: data.draw(st.integers(0, len(tokens)))])
    history.take(tokens)

    assert history.continuation(limit) == naive_continuation(tokens, limit)


def test_a_history_grows_beyond_its_first_room() -> None:
    tokens = list(range(3000))
    history = History()
    for stop in (200, 201, 700, 3000):
        history.take(tokens[:stop])
    history.take([*tokens, 17, 18])

    assert history.continuation(3) == (2, [19, 20, 21])


def filled(cache: RadixCache, tokens: list[int], kind: TokenKind = TokenKind.OUTPUT) -> None:
    lease = cache.lease(HERE)
    passed = lease.advance(tokens, 0, len(tokens))
    lease.append(tokens, passed, len(tokens), kind=kind)
    cache.commit_step()
    lease.release()


def test_the_tree_tells_what_came_after_a_path_by_the_newest_way() -> None:
    cache = RadixCache(64, 4)
    filled(cache, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    filled(cache, [1, 2, 3, 4, 5, 20, 21])
    lease = cache.lease(HERE)
    lease.advance([1, 2, 3], 0, 3)
    before = cache.snapshot()

    assert lease.continuation([1, 2, 3], 4) == [4, 5, 20, 21]
    assert lease.continuation([1, 2, 3], 3) == [4, 5, 20]
    assert lease.continuation([1, 2, 3, 4, 5, 6], 9) == [7, 8, 9]
    assert lease.continuation([1, 2, 3, 4, 5, 20, 21], 9) == []
    assert lease.continuation([1, 2, 3, 5], 9) == []
    assert lease.continuation([1, 2, 3, 4, 5, 30], 9) == []
    assert cache.snapshot() == before
    cache.check()


def test_without_reuse_the_tree_tells_nothing() -> None:
    cache = RadixCache(64, 4, enable_reuse=False)
    first = cache.lease(HERE)
    first.append([1, 2, 3, 4], 0, 4, kind=TokenKind.PROMPT)
    cache.commit_step()
    second = first.fork()
    second.truncate(2)

    assert second.continuation([1, 2], 4) == []


# -- how many are worth feeding


@given(
    fixed_ms=st.floats(0.5, 50),
    row_ms=st.floats(0.01, 5),
    rate=st.floats(0.01, 0.999),
    batch=st.integers(1, 32),
)
def test_of_one_kind_of_guess_as_many_are_fed_as_the_cost_model_calls_best(
    fixed_ms: float, row_ms: float, rate: float, batch: int
) -> None:
    def step_time_s(rows: int) -> float:
        return (fixed_ms + rows * row_ms) / 1e3

    row_cost = row_ms / 1e3 / step_time_s(batch)
    counts = worth_feeding([rate] * batch, [LONGEST_DRAFT] * batch, batch, row_cost)
    best = best_draft_len(batch, rate, step_time_s, longest=LONGEST_DRAFT)

    def tokens_per_s(count: int) -> float:
        tokens = sum(rate**i for i in range(count + 1))
        return batch * tokens / step_time_s(batch * (1 + count))

    assert len(set(counts)) == 1
    assert tokens_per_s(counts[0]) == pytest.approx(tokens_per_s(best), rel=1e-6)


@given(
    rates=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2),
    limits=st.lists(st.integers(0, 6), min_size=2, max_size=2),
    row_cost=st.floats(0.001, 0.6),
)
def test_different_guesses_share_the_rows_as_well_as_any_split_could(
    rates: list[float], limits: list[int], row_cost: float
) -> None:
    def ratio(counts: Sequence[int]) -> float:
        tokens = 2.0 + sum(
            rate**i for rate, count in zip(rates, counts, strict=True) for i in range(1, count + 1)
        )
        return tokens / (1 + row_cost * sum(counts))

    counts = worth_feeding(rates, limits, 2, row_cost)

    best = max(ratio((a, b)) for a in range(limits[0] + 1) for b in range(limits[1] + 1))
    assert ratio(counts) == pytest.approx(best, rel=1e-6)


def test_a_curve_learns_what_a_row_costs_and_forgets_it() -> None:
    curve = StepCurve()
    rng = random.Random(1)
    for rows in (1, 4, 16):
        assert curve.row_cost(rows) == pytest.approx(0.1 / (1 + 0.1 * rows))

    for fixed_s, row_s in ((8e-3, 1e-3), (8e-3, 0.05e-3), (20e-3, 4e-3)):
        for _ in range(1200):
            rows = rng.choice([1, 2, 3, 5, 9, 16, 24, 40, 64, 96])
            curve.learn(rows, (fixed_s + rows * row_s) * rng.uniform(0.97, 1.03))
        for rows in (4, 16, 64):
            expected = row_s / (fixed_s + rows * row_s)
            assert curve.row_cost(rows) == pytest.approx(expected, rel=0.3, abs=0.003)


def test_a_hiccup_hardly_moves_a_curve() -> None:
    curve = StepCurve()
    for rows in (1, 2, 4, 8) * 20:
        curve.learn(rows, 8e-3 + rows * 1e-3)
    before = curve.row_cost(2)
    curve.learn(1, 3.0)

    assert curve.row_cost(2) == pytest.approx(before, rel=0.35)


def test_where_the_rows_bind_nothing_is_guessed() -> None:
    """A step that takes its rows' time: a token more never comes cheaper than a row."""
    curve = StepCurve()
    for rows in (8, 16, 24, 32, 48):
        for _ in range(40):
            curve.learn(rows, rows * 1e-3)

    assert worth_feeding([0.9], [9], 16, curve.row_cost(16)) == [0]


def test_a_step_grows_by_half_of_what_was_measured() -> None:
    curve = StepCurve()
    assert curve.reach(1) == 4
    curve.learn(16, 1.0)
    curve.learn(512, 9.0)  # of prompts: it tells nothing about 16 rows
    assert curve.reach(16) == 8
    curve.learn(24, 1.0)
    assert curve.reach(16) == 20


def test_steps_that_took_no_time_are_not_learned_from() -> None:
    curve = StepCurve()
    curve.learn(0, 1.0)
    curve.learn(4, 0.0)

    assert curve.row_cost(4) == StepCurve().row_cost(4)
    assert curve.step_s(4) is None


def count_allowed(ledger: Ledger, num_steps: int, *, tokens: int, seconds: float) -> int:
    """Of so many steps of 4 requests, how many had drafts, if those then went like that."""
    num_allowed = 0
    for _ in range(num_steps):
        if ledger.allows(4):
            num_allowed += 1
            ledger.enter(4, tokens, seconds, plain_s=1.0)
    return num_allowed


def test_drafts_that_lose_time_pause_for_longer_and_longer() -> None:
    ledger = Ledger()

    assert count_allowed(ledger, 100, tokens=6, seconds=2.0) <= 8
    assert count_allowed(ledger, 2000, tokens=6, seconds=2.0) <= 12
    assert ledger.allows(9)  # of another number of requests nothing is known


def test_drafts_that_win_go_on_but_for_a_plain_step_now_and_then() -> None:
    ledger = Ledger()
    count_allowed(ledger, 400, tokens=6, seconds=2.0)
    count_allowed(ledger, 1200, tokens=8, seconds=1.2)

    num_allowed = count_allowed(ledger, 320, tokens=8, seconds=1.2)
    assert 320 - 320 // Ledger.PLAIN_EVERY - 1 <= num_allowed < 320


# -- drafts


def make_request(tokens: list[int], **options: object) -> Request:
    matcher = options.pop("matcher", None)
    params = SamplingParams(**options)  # type: ignore[arg-type]  # as the tests give them
    request = Request(0, 0, list(tokens), len(tokens), 20, params, HERE)
    request.matcher = matcher  # type: ignore[assignment]
    return request


def test_a_draft_takes_the_constraint_s_tokens_and_ends_where_it_forbids() -> None:
    # After an even token come one or two forced ones: after 2 a 3 and after 4 a 5.
    request = make_request([9], matcher=SimulatedMatcher(every=2))

    agreeing = make_draft(request, "tree", [1, 2, 3, 1], 10)
    differing = make_draft(request, "tree", [1, 2, 5, 1], 10)
    cut = make_draft(request, "tree", [1, 2, 3, 1], 2)

    assert agreeing is not None
    assert differing is not None
    assert cut is not None
    assert (agreeing.tokens, agreeing.offsets()) == ([1, 2, 3, 1], [1, 3, 4])
    assert (differing.tokens, differing.offsets()) == ([1, 2, 3], [1, 3])
    assert (cut.tokens, cut.offsets()) == ([1, 2], [1])
    assert isinstance(request.matcher, SimulatedMatcher)
    assert request.matcher.forced() == []  # it did not move


def test_no_draft_is_longer_than_the_output_may_become() -> None:
    request = make_request([1])
    request.max_output = 3
    request.matcher = SimulatedMatcher(every=100)

    draft = make_draft(request, "tree", [1, 1, 1, 1, 1], 10)

    assert draft is not None
    assert draft.tokens == [1, 1]


@pytest.mark.parametrize(
    ("came", "num_confirmed", "is_open"),
    [([], 0, True), ([5], 1, True), ([5, 6], 2, True), ([5, 9], 1, False), ([8], 0, False)],
)
def test_a_draft_stays_open_as_long_as_it_comes_true(
    came: list[int], num_confirmed: int, is_open: bool
) -> None:
    request = make_request([1])
    draft = make_draft(request, "tree", [5, 6, 7], 10)
    assert draft is not None
    for token_id in came:
        request.tokens.append(token_id)
        draft.confirm()

    assert (draft.num_confirmed, draft.is_open) == (num_confirmed, is_open)
    assert draft.leads_to(num_confirmed) is is_open


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, True),
        ({"logprobs": 0}, True),
        ({"speculate": "off"}, False),
        ({"seed": 1}, False),
        ({"seed": 1, "temperature": 0}, True),
        ({"logprobs": 0, "matcher": SimulatedMatcher(2)}, False),
    ],
)
def test_who_may_draft(options: dict[str, object], allowed: bool) -> None:
    assert may_draft(make_request([1], **options)) is allowed


def test_the_last_token_of_an_output_needs_no_draft() -> None:
    request = make_request([1])
    request.max_output = 1

    assert not may_draft(request)


# -- the whole scheduler


def simulate(**options: int | bool) -> Simulation:
    config = EngineConfig(num_blocks=512, block_size=4, **options)
    return Simulation(config, end_every=1 << 40, vocab_size=500, drafter=Drafter())


def test_the_same_prompt_again_takes_its_answer_from_the_tree_in_few_steps() -> None:
    simulation = simulate()
    first = simulation.submit([1, 2, 3, 4, 5], 40)
    num_plain = simulation.run()
    second = simulation.submit([1, 2, 3, 4, 5], 40)
    num_steps = simulation.run()

    assert first.token_ids == second.token_ids
    assert num_plain >= 40
    assert num_steps <= 10  # without measured steps no more than 4 tokens are fed
    counts = simulation.scheduler.counts
    assert counts.num_confirmed == counts.num_drafted > 30
    # Nothing was computed twice but the one row that every sample needs.
    assert counts.num_computed <= num_plain + 4 + 40


def test_wrong_guesses_stop_by_themselves_and_leave_nothing_behind() -> None:
    simulation = simulate()
    rng = random.Random(5)
    prompt = [rng.randrange(1, 4) for _ in range(64)]  # matches itself everywhere
    received = simulation.submit(prompt, 200)
    num_steps = simulation.run()

    simulation.check_result(received)
    counts = simulation.scheduler.counts
    assert num_steps >= 195
    assert counts.num_drafted - counts.num_confirmed <= 40
    assert sum(len(view.tokens) for view in simulation.cache.snapshot()) <= 64 + 200


def test_drafts_leave_room_for_everybody_in_the_step() -> None:
    simulation = simulate(max_step_tokens=9)
    for _ in range(2):
        for number in range(6):
            simulation.submit([1, 2, 3, 4 + number], 30)
        simulation.run()

    assert simulation.scheduler.counts.num_drafted > 0
    for plan in simulation.runner.steps:
        if all(request.is_caught_up for request in plan.requests):
            assert len(plan.requests) == 6 or plan.num_tokens <= 9


# -- the engine


LETTERS = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]


@pytest.fixture
def _fixed_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is guessed must not depend on how long the simulated steps took."""
    monkeypatch.setattr(Drafter, "learn", lambda *_: None)


@pytest.mark.usefixtures("_fixed_curve")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop_token_ids": [3]},
        {"stop": ["ab", "c"]},
        {"min_tokens": 12},
        {"regex": "(abcab|[c-f]{3}){4,9}"},
        {"regex": "(abc|bcdda|ca|fedcba){3,9}"},
        {"logprobs": 2},
    ],
)
def test_answers_do_not_depend_on_speculation(options: dict[str, object]) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, **options)  # type: ignore[arg-type]
    with rig(speculate="off", end_every=9) as plain:
        expected = [plain.engine.generate(LETTERS[:size], params) for size in (5, 9, 12)]
        assert plain.engine.stats().num_drafted_tokens == 0
    num_drafted = 0
    with rig(end_every=9) as made:
        for _ in range(2):
            for size, wanted in zip((5, 9, 12), expected, strict=True):
                result = made.engine.generate(LETTERS[:size], params)
                assert (result.token_ids, result.text) == (wanted.token_ids, wanted.text)
                assert result.finish_reason == wanted.finish_reason
                assert result.completions[0].logprobs == wanted.completions[0].logprobs
                num_drafted += result.usage.num_drafted_tokens
        stats = made.engine.stats()
        made.check_nothing_is_held()

    assert stats.num_drafted_tokens >= stats.num_confirmed_tokens > 0
    assert stats.num_drafted_tokens == num_drafted
    drawn = [row.num_output for row in made.sampler.rows]
    assert max(drawn) < 24


@pytest.mark.usefixtures("_fixed_curve")
def test_a_request_can_be_kept_from_guessing() -> None:
    params = SamplingParams(temperature=0, max_tokens=24, speculate="off")
    with rig() as made:
        for _ in range(2):
            made.engine.generate(LETTERS, params)

        assert made.engine.stats().num_drafted_tokens == 0


@pytest.mark.usefixtures("_fixed_curve")
def test_penalties_see_the_guesses_before_their_position() -> None:
    params = SamplingParams(temperature=0, max_tokens=24, presence_penalty=0.5)
    seen: list[tuple[int, list[int]]] = []
    with rig() as made:
        sample = made.sampler.sample

        def note(states: Any, logits_rows: Any, rows: Any, masks: Any = None) -> list[Sampled]:
            seen.extend((row.num_prompt + row.num_output, list(row.tokens)) for row in rows)
            return sample(states, logits_rows, rows, masks)

        made.sampler.sample = note  # type: ignore[method-assign]
        for _ in range(2):
            result = made.engine.generate(LETTERS, params)
        assert made.engine.stats().num_confirmed_tokens > 0

    whole = [*LETTERS, *result.token_ids]
    assert len(seen) >= 48
    for length, tokens in seen:
        assert tokens == whole[:length]


def test_an_unknown_way_of_speculating_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"speculate='always'.*auto, off"):
        SamplingParams(speculate="always")
    with pytest.raises(InvalidRequest, match=r"speculate='always'.*auto, off"):
        EngineConfig(speculate="always")


def test_no_draft_leads_past_the_end_of_an_answer() -> None:
    simulation = Simulation(
        EngineConfig(num_blocks=512, block_size=4), end_every=9, drafter=Drafter()
    )
    for _ in range(3):
        received = simulation.submit([1, 2, 3], 60)
        simulation.run()
        simulation.check_result(received)
