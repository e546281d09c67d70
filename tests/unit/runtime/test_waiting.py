"""Admission: who shares most with the cache first, nobody overtaken without bound, no cliff."""

import random
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.runtime.simulation import NAMESPACE, Received, Simulation

from umbel.runtime.config import EngineConfig
from umbel.runtime.params import SamplingParams
from umbel.runtime.request import Request
from umbel.runtime.waiting import LEAST_GAIN, MAX_OVERTAKERS, NUM_PROBED, WaitingQueue


def make_request(arrival: int, tokens: list[int]) -> Request:
    request = Request(arrival, arrival, list(tokens), len(tokens), 4, SamplingParams(), NAMESPACE)
    request.arrival = arrival
    return request


class CountedMatches:
    """What the cache would say, and how often it was asked."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}  # by request id
        self.num_asked = 0

    def __call__(self, request: Request) -> int:
        self.num_asked += 1
        return self.of.get(request.request_id, 0)


def take(queue: WaitingQueue) -> Request:
    request = queue.choose()
    queue.admit(request)
    return request


def test_without_anything_to_share_order_is_by_arrival() -> None:
    queue = WaitingQueue(CountedMatches())
    for arrival in (3, 1, 2, 0):
        queue.add(make_request(arrival, [arrival] * 40))

    assert [take(queue).arrival for _ in range(4)] == [0, 1, 2, 3]
    assert len(queue) == 0


def test_the_longest_match_goes_first_if_it_saves_enough() -> None:
    matches = CountedMatches()
    queue = WaitingQueue(matches)
    for arrival in range(4):
        queue.add(make_request(arrival, [arrival] * 40))
    matches.of = {0: 10, 1: 9 + LEAST_GAIN, 2: 100, 3: 100}
    queue.begin_step()

    assert [take(queue).arrival for _ in range(4)] == [2, 3, 0, 1]


def test_a_preempted_request_is_not_overtaken() -> None:
    matches = CountedMatches()
    queue = WaitingQueue(matches)
    preempted = make_request(0, [1] * 40)
    preempted.num_preemptions = 1
    queue.add(preempted)
    queue.add(make_request(1, [2] * 400))
    matches.of = {1: 400}

    assert take(queue) is preempted


def test_those_who_share_most_with_the_last_one_follow_it_from_far_behind() -> None:
    matches = CountedMatches()
    queue = WaitingQueue(matches)
    first = [7] * 200
    queue.add(make_request(0, first))
    for arrival in range(1, 100):
        queue.add(make_request(arrival, [arrival + 10] * 200))
    queue.add(make_request(100, [*first[:130], *[8] * 70]))
    queue.add(make_request(101, [*first[:190], *[8] * 10]))  # the longest prefix they have is 128
    queue.add(make_request(102, [*first[:40], *[8] * 160]))
    assert take(queue).arrival == 0
    matches.of = {100: 130, 101: 190, 102: 40}

    assert [take(queue).arrival for _ in range(4)] == [100, 101, 102, 1]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000))
def test_nobody_is_overtaken_by_more_than_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    matches = CountedMatches()
    queue = WaitingQueue(matches)
    arrivals = count()
    overtakers: dict[int, int] = {}

    def arrive() -> None:
        arrival = next(arrivals)
        prefix = [rng.choice([1, 1, 1, 2])] * 40
        queue.add(make_request(arrival, [*prefix, arrival]))
        matches.of[arrival] = 40 if prefix[0] == 1 else 0
        overtakers[arrival] = 0

    for _ in range(20):
        arrive()
    for _ in range(1500):
        queue.begin_step()
        arrive()
        taken = take(queue)
        for request in queue:
            overtakers[request.arrival] += request.arrival < taken.arrival
    assert max(overtakers.values()) <= MAX_OVERTAKERS
    assert seed or max(overtakers.values()) > 10


def test_a_choice_looks_up_no_more_in_a_long_queue() -> None:
    asked = []
    for num_waiting in (100, 10_000):
        matches = CountedMatches()
        queue = WaitingQueue(matches)
        for arrival in range(num_waiting):
            queue.add(make_request(arrival, [arrival % 50] * 40))
        for _ in range(5):
            queue.begin_step()
            before = matches.num_asked
            take(queue)
            asked.append(matches.num_asked - before)

    assert max(asked) <= NUM_PROBED + 1


def serve(num_prefixes: int, per_prefix: int, *, num_blocks: int) -> tuple[Simulation, int]:
    """Requests over several long prefixes, shuffled, in a pool that holds few of them at once."""
    config = EngineConfig(num_blocks=num_blocks, block_size=16, max_running=8, max_waiting=20_000)
    simulation = Simulation(config, end_every=1 << 40)
    rng = random.Random(3)
    prompts = [
        [*([prefix % 5 + 1, prefix // 5 + 1] * 100), 1 + own % 5, 1 + own // 5 % 5, 1 + own // 25]
        for prefix in range(num_prefixes)
        for own in range(per_prefix)
    ]
    rng.shuffle(prompts)
    received = [simulation.submit(prompt, 2) for prompt in prompts]
    simulation.run()
    for one in received:
        simulation.check_result(one)
    return simulation, sum(len(prompt) for prompt in prompts)


def test_prefixes_that_do_not_fit_together_are_computed_about_once_each() -> None:
    """By arrival alone each of the 8 prefixes would be evicted and computed again many times."""
    simulation, num_tokens = serve(8, 15, num_blocks=64)

    once = 8 * 200 + 8 * 15 * 6
    assert simulation.scheduler.counts.num_computed < 2.5 * once < num_tokens / 3


def test_ten_thousand_wait_and_each_is_served() -> None:
    config = EngineConfig(num_blocks=128, block_size=4, max_running=64, max_step_tokens=256)
    simulation = Simulation(config, end_every=1 << 40)
    simulation.cache.check = lambda: None  # type: ignore[method-assign]  # after every step: slow
    received: list[Received] = []
    for number in range(10_000):
        prefix = [number % 7 + 1] * 3
        received.append(simulation.submit([*prefix, 1 + number % 5], 1))
    num_steps = simulation.run(max_steps=10_000)

    assert num_steps < 10_000 / 16
    for one in received[::97]:
        simulation.check_result(one)
