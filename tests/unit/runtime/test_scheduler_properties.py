"""Random work over the real radix cache: nothing is computed wrong, leaks, starves or stays."""

import random
from typing import Any

import pytest
import strategies
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from unit.runtime.simulation import NAMESPACE, GuessingDrafter, Received, Simulation

from umbel.runtime.config import EngineConfig
from umbel.runtime.errors import RequestCancelled
from umbel.runtime.params import SamplingParams
from umbel.runtime.speculation.drafter import Drafter

MAX_OUTPUT = 12


class SchedulerMachine(RuleBasedStateMachine):
    """Submits, forks, scores, cancels and steps in any order; each result is that of the naive
    model.
    """

    simulation: Simulation

    @initialize(
        config=strategies.small_configs(), guess=st.sampled_from(["never", "look up", "always"])
    )
    def start(self, config: EngineConfig, guess: str) -> None:
        drafter = {"never": None, "look up": Drafter(), "always": GuessingDrafter(7)}[guess]
        self.simulation = Simulation(config, vocab_size=strategies.VOCAB_SIZE, drafter=drafter)
        self.live: list[Received] = []

    @rule(
        prompt=strategies.prompts(),
        max_output=st.integers(1, MAX_OUTPUT),
        n=st.sampled_from([1, 1, 2, 5]),
        logprobs=st.sampled_from([None, None, 0]),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        force_every=st.sampled_from([None, None, 2]),
        force_first=strategies.tokens(0, 4),
    )
    def submit(
        self,
        prompt: list[int],
        max_output: int,
        n: int,
        logprobs: int | None,
        prompt_logprobs: int | None,
        force_every: int | None,
        force_first: list[int],
    ) -> None:
        params = SamplingParams(logprobs=logprobs, prompt_logprobs=prompt_logprobs)
        group_id = len(self.simulation.received)
        for _ in range(n):
            self._submit(
                prompt,
                max_output,
                params=params,
                group_id=group_id,
                force_every=force_every,
                force_first=force_first,
            )

    @rule(index=st.integers(0, 100), own=strategies.tokens(0, 3), n=st.sampled_from([1, 3]))
    def fork(self, index: int, own: list[int], n: int) -> None:
        """Go on from what a request has so far, several times."""
        received = list(self.simulation.received.values())
        if received:
            tokens = received[index % len(received)].request.tokens[:48]
            for branch in range(n):
                self._submit([*tokens, *own, *([1 + branch % 5] if own else [])], MAX_OUTPUT)

    @rule(
        prompt=strategies.prompts(),
        continuations=st.lists(strategies.tokens(1, 5), min_size=1, max_size=4),
    )
    def score(self, prompt: list[int], continuations: list[list[int]]) -> None:
        for continuation in continuations:
            self._submit(prompt, continuation=continuation)

    @rule(index=st.integers(0, 100))
    def cancel(self, index: int) -> None:
        if self.live:
            received = self.live[index % len(self.live)]
            self.simulation.abort(received)
            self.simulation.cache.check()

    @rule(index=st.integers(0, 100), num_more=st.integers(-5, 2), pin_id=st.integers(0, 3))
    def pin(self, index: int, num_more: int, pin_id: int) -> None:
        """Keep what a request has so far, ended or not."""
        received = list(self.simulation.received.values())
        if received:
            tokens = received[index % len(received)].request.tokens
            tokens = [*tokens, 1, 1][: max(len(tokens) + num_more, 0)]
            self.simulation.cache.pin(pin_id, tokens, NAMESPACE)
            self.simulation.cache.check()

    @rule(pin_id=st.integers(0, 3))
    def unpin(self, pin_id: int) -> None:
        self.simulation.cache.unpin(pin_id)
        self.simulation.cache.check()

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.simulation.step()

    @invariant()
    def ended_requests_gave_what_the_model_gives(self) -> None:
        if hasattr(self, "live"):
            for received in self.live:
                check(self.simulation, received)
            self.live = [received for received in self.live if received.last is None]

    def teardown(self) -> None:
        if hasattr(self, "live"):
            finish(self.simulation, self.live)

    def _submit(self, prompt: list[int], *args: Any, **kwargs: Any) -> None:
        self.live.append(self.simulation.submit(prompt, *args, **kwargs))


def check(simulation: Simulation, received: Received) -> None:
    if received.last is None:
        return
    if received.last.error is None:
        simulation.check_result(received)
    else:
        assert isinstance(received.last.error, RequestCancelled)


def finish(simulation: Simulation, live: list[Received]) -> None:
    """All that is left ends within a bounded number of steps, and nothing is leased afterwards."""
    # Worst case: one after the other, each computed again once, one row a step.
    num_tokens = sum(len(one.request.tokens) + one.request.max_output for one in live)
    simulation.run(max_steps=3 * num_tokens + 10)
    for received in live:
        assert received.last is not None
        check(simulation, received)
    simulation.cache.unpin_all()  # whoever pinned has to end it; nobody was held up by it
    simulation.check_nothing_leaks()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("max_step_tokens", [1, 7, 512])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("drafter", [None, GuessingDrafter(3)])
def test_crowded_engines_give_what_lonely_ones_give(
    max_step_tokens: int, block_size: int, prefix_cache: bool, drafter: Drafter | None
) -> None:
    rng = random.Random(f"{max_step_tokens} {block_size} {prefix_cache}")
    config = EngineConfig(
        block_size=block_size,
        num_blocks=-(-80 // block_size),
        max_step_tokens=max_step_tokens,
        max_running=24,
        prefix_cache=prefix_cache,
    )
    simulation = Simulation(config, vocab_size=strategies.VOCAB_SIZE, end_every=60, drafter=drafter)
    live: list[Received] = []

    for _ in range(60):
        live += [submit_random(rng, simulation) for _ in range(rng.randint(0, 3))]
        if live and rng.random() < 0.1:
            simulation.abort(rng.choice(live))
        for _ in range(rng.randint(1, 4)):
            simulation.step()

    finish(simulation, live)
    counts = simulation.scheduler.counts
    assert max_step_tokens == 1 or counts.num_preemptions > 0
    if drafter is not None and max_step_tokens == 512:
        assert 0 < counts.num_confirmed < counts.num_drafted


def submit_random(rng: random.Random, simulation: Simulation) -> Received:
    prefix = rng.choice(strategies.PREFIXES)
    own = [rng.randrange(1, strategies.VOCAB_SIZE) for _ in range(rng.randint(0, 6))]
    prompt = [*prefix[: rng.randint(0, 20)], *own] or [1]
    if rng.random() < 0.2:
        return simulation.submit(prompt, continuation=[1 + rng.randrange(5), 2])
    params = SamplingParams(
        logprobs=rng.choice([None, 0]), prompt_logprobs=rng.choice([None, None, 0])
    )
    return simulation.submit(
        prompt,
        rng.randint(1, 50),
        params=params,
        force_every=rng.choice([None, 2, 3]),
        force_first=[1 + rng.randrange(5) for _ in range(rng.randint(0, 12))],
    )
