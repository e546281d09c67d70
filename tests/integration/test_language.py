"""Programs on the real engine: sharing of forks, all select methods, constraints, failures."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import umbel
from umbel.frontend_dsl import ProgramDone, ProgramError, State, TextDelta, totals
from umbel.frontend_dsl.scoring import METHODS
from umbel.runtime.engine import Engine

STORY = "Once upon a time there was a small town by the sea where everybody knew everybody. "


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        yield engine


@umbel.program(temperature=0.0, max_tokens=8)
def chat(s: State, question: str) -> str:
    s += umbel.system("Answer in one word.")
    s += umbel.user(question)
    s += umbel.assistant(umbel.gen("answer"))
    s += umbel.user("Are you sure?")
    s += umbel.assistant(umbel.gen("again"))
    return s["answer"]


def test_a_chat_has_the_tokens_of_the_models_own_template(engine: Engine) -> None:
    state = chat.run(engine, question="What is the capital of France?")

    conversation = state.messages()
    assert [message["role"] for message in conversation] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert "Paris" in state["answer"]
    prompt = engine.encode_chat(conversation[:2])
    assert engine.generate(prompt, temperature=0.0, max_tokens=8).text == state["answer"]


def test_the_second_turn_reuses_the_first(engine: Engine) -> None:
    state = chat.run(engine, question="What is the capital of Norway?")

    usage = state.meta("again").usage
    assert usage.num_cached_tokens >= state.meta("answer").usage.num_prompt_tokens


def test_two_hundred_branches_compute_their_prefix_once_and_add_no_thread(engine: Engine) -> None:
    @umbel.program(temperature=1.0, max_tokens=2)
    def wide(s: State) -> int:
        s += STORY * 40
        forks = s.fork(200)
        for seed, branch in enumerate(forks):
            branch += f" {seed}" + umbel.gen("text", seed=seed)
        forks.join()
        return num_running()

    def num_running() -> int:
        # The grammar's thread comes when the engine had nothing to do for a while.
        return sum(not thread.name.startswith("umbel-grammar") for thread in threading.enumerate())

    num_threads = num_running()
    prefix = len(engine.encode(STORY * 40))

    state = wide.run(engine)

    assert state.result == num_threads
    assert prefix > 600
    summary = totals(state)
    assert summary.usage.num_prompt_tokens > 200 * prefix
    assert summary.num_computed_tokens < 2 * prefix + 200 * 8


@pytest.mark.parametrize("method", METHODS)
def test_every_select_method_knows_the_capital(engine: Engine, method: str) -> None:
    @umbel.program
    def capital(s: State) -> None:
        s += "The capital of France is"
        s += umbel.select("city", [" Paris", " Berlin", " Paris, Texas"], method=method)

    state = capital.run(engine)

    meta = state.meta("city")
    assert state["city"].startswith(" Paris")
    assert sum(meta.distribution.values()) == pytest.approx(1.0)
    assert list(meta.distribution) == [" Paris", " Berlin", " Paris, Texas"]


def test_constrained_sampling_follows_the_distribution_it_reports(engine: Engine) -> None:
    @umbel.program
    def coin(s: State, seed: int) -> None:
        s += "I tossed a coin and it came up"
        s += umbel.select(
            "side", [" heads", " tails"], method="constrained", temperature=1.0, seed=seed
        )

    states = coin.run_batch(engine, [{"seed": seed} for seed in range(300)])

    expected = states[0].meta("side").distribution[" heads"]
    share = sum(state["side"] == " heads" for state in states) / len(states)
    assert 0.02 < expected < 0.98
    assert share == pytest.approx(expected, abs=0.1)  # 3.5 standard deviations at most


def test_a_run_is_the_same_alone_and_in_a_batch(engine: Engine) -> None:
    @umbel.program(temperature=0.0, max_tokens=6)
    def say(s: State, topic: str) -> None:
        s += f"A fact about {topic}:"
        forks = s.fork(2)
        for i, branch in enumerate(forks):
            branch += f" {i}." + umbel.gen("fact")

    topics = ["bees", "iron", "Rome", "rain"]
    batch = say.run_batch(engine, [{"topic": topic} for topic in topics])

    async def side_by_side() -> list[State]:
        return await asyncio.gather(*(say.arun(engine, topic=topic) for topic in topics))

    for state, other in zip(batch, asyncio.run(side_by_side()), strict=True):
        assert [b.text() for b in state.branches] == [b.text() for b in other.branches]


def test_a_stream_spells_the_text(engine: Engine) -> None:
    events = list(chat.stream(engine, question="What is the capital of Italy?"))

    assert isinstance(events[-1], ProgramDone)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert "".join(delta.text for delta in deltas) == events[-1].state.text()
    answer = "".join(delta.text for delta in deltas if delta.variable == "answer")
    assert answer == events[-1].state["answer"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "("}, "regex"),
        ({"json_schema": {"type": "nonsense"}}, "nonsense"),
        ({"max_tokens": 1_000_000}, "1000000|1_000_000|context"),
    ],
)
def test_what_the_engine_refuses_fails_its_call_and_the_engine_goes_on(
    engine: Engine, options: dict[str, object], message: str
) -> None:
    @umbel.program
    def bad(s: State) -> None:
        s += "x" + umbel.gen("y", **options)  # type: ignore[arg-type]  # wrong on purpose

    with pytest.raises(ProgramError, match=message) as info:
        bad.run(engine)

    assert info.value.call == "gen('y')"
    assert engine.generate("One, two,", max_tokens=2, temperature=0.0).text


def test_a_program_that_raises_halfway_frees_its_requests(engine: Engine) -> None:
    @umbel.program(max_tokens=400, temperature=1.0)
    def broken(s: State) -> None:
        s += STORY
        forks = s.fork(8)
        for branch in forks:
            branch += umbel.gen("text", ignore_eos=True)
        s += umbel.gen("short", max_tokens=1)
        raise ZeroDivisionError(s["short"])

    with pytest.raises(ProgramError, match="ZeroDivisionError"):
        broken.run(engine)

    engine.generate("Hello", max_tokens=1)  # a step later than the cancellation
    assert engine.stats().num_running == 0


def test_a_reader_that_stops_reading_frees_its_request(engine: Engine) -> None:
    @umbel.program(max_tokens=500)
    def endless(s: State) -> None:
        s += STORY + umbel.gen("text", ignore_eos=True)

    for event in endless.stream(engine):
        if isinstance(event, TextDelta) and event.variable == "text":
            break

    engine.generate("Hello", max_tokens=1)
    assert engine.stats().num_running == 0


def test_a_closed_engine_fails_a_program_instead_of_hanging_it() -> None:
    engine = Engine()

    @umbel.program(max_tokens=400)
    def cut(s: State) -> None:
        forks = s.fork(3)
        for branch in forks:
            branch += STORY + umbel.gen("text", ignore_eos=True)
        timer.start()
        forks.join(raise_errors=True)

    timer = threading.Timer(0.5, engine.close)
    with pytest.raises(ProgramError, match="closed"):
        cut.run(engine)
    timer.join()
