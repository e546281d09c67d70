"""Prefixes that calls to come will need stay in the cache, and go when nobody needs them."""

from collections.abc import Iterator

import pytest
from unit.frontend_dsl.fake_client import FakeClient
from unit.runtime.simulated_engine import EngineRig, rig

from umbel.frontend_dsl import ProgramError, State, gen, program, select, tool
from umbel.frontend_dsl.keeping import num_common
from umbel.frontend_dsl.passes.pipeline import NAMES

LONG = "the text that stands before everything else in this program "
BLOCKS = {"num_blocks": 40, "block_size": 4, "speculate": "off"}


def flood(made: EngineRig) -> None:
    """Others use more than the pool has, one after another, each little enough beside a pin."""
    for token_id in (1, 2, 3):
        made.engine.generate([token_id] * 80, max_tokens=2)


def without(name: str) -> list[str]:
    return [other for other in NAMES if other != name]


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_a_waiting_branch_has_is_not_computed_again(is_kept: bool) -> None:
    with rig(**BLOCKS) as made:

        @tool
        def others_work(text: str) -> str:
            flood(made)
            return "done"

        @program(max_tokens=4, ignore_eos=True)
        def waits(s: State) -> None:
            s += LONG + gen("first")
            s += others_work(s["first"]) + gen("second")

        state = (waits if is_kept else waits.with_passes(without("keep"))).run(made.engine)
        made.check_nothing_is_held()

    usage = state.meta("second").usage
    assert usage is not None
    kept = len(LONG) + 1 + 3  # the last token of a generation is not computed before it goes on
    assert usage.num_cached_tokens == (kept if is_kept else 0)


def test_a_fork_keeps_what_the_branch_that_waits_will_go_on_from() -> None:
    with rig(**BLOCKS) as made:

        @tool
        def others_work(text: str) -> str:
            flood(made)
            return "done"

        @program(max_tokens=4, ignore_eos=True)
        def waits(s: State) -> None:
            s += LONG
            one, other = s.fork(2)
            one += "a" + gen("x")
            other += others_work(one["x"]) + gen("y")

        state = waits.run(made.engine)

    usage = state.branches[1].meta("y").usage
    assert usage is not None
    assert usage.num_cached_tokens == len(LONG) + 1


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("is_eager", [True, False])
def test_what_the_instances_of_a_batch_share_is_computed_once(
    is_kept: bool, is_eager: bool
) -> None:
    with rig(**BLOCKS) as made:

        def items() -> Iterator[dict[str, str]]:
            for word in ("aa", "bb", "cc", "dd"):
                flood(made)
                yield {"word": word}

        @program(max_tokens=2, ignore_eos=True)
        def spells(s: State, word: str) -> None:
            s += LONG + word + gen("x")

        chosen = spells if is_kept else spells.with_passes(without("hoist"))
        states = (chosen.eager() if is_eager else chosen).run_batch(
            made.engine, items(), max_in_flight=1
        )
        made.check_nothing_is_held()

    usages = [state.meta("x").usage for state in states]
    cached = [usage.num_cached_tokens for usage in usages if usage is not None]
    shared = len(LONG) + 1 if is_kept else 0
    assert cached == [0, 0, shared, shared]  # the second shows what is shared


def test_a_pin_gives_way_before_any_request_does() -> None:
    with rig(**BLOCKS) as made:

        @tool
        def others_work(text: str) -> str:
            made.engine.generate("z" * 100, max_tokens=50, ignore_eos=True)
            return "done"

        @program(max_tokens=4, ignore_eos=True)
        def waits(s: State) -> None:
            s += LONG + gen("first")
            s += others_work(s["first"]) + gen("second")

        waits.run(made.engine)
        stats = made.engine.stats()

    assert (stats.cache.total_dropped_pins, stats.num_preemptions) == (1, 0)


def test_a_run_pins_only_while_it_waits_for_others() -> None:
    """The next call of a branch that goes on at once has the prefix in its own hands."""

    @program(max_tokens=4)
    def talks(s: State) -> None:
        s += LONG + gen("first")
        s += "and " + gen("second")
        s += "or" + select("third", ["a", "b"])

    with FakeClient() as client:
        talks.run(client)
        talks.eager().run(client)

    assert client.pins == []


def test_pins_end_with_a_run_that_fails() -> None:
    @tool
    def breaks(text: str) -> str:
        raise RuntimeError("broken")

    @program(max_tokens=4)
    def waits(s: State) -> None:
        s += LONG + gen("first")
        s += breaks(s["first"]) + gen("second")

    with FakeClient() as client:
        with pytest.raises(ProgramError, match="broken"):
            waits.run(client)

        assert len(client.pins) == 1
        assert client.held_pins == []


def test_pins_end_with_a_stream_that_is_closed() -> None:
    @program(max_tokens=4)
    def talks(s: State) -> None:
        s += LONG
        one, other = s.fork(2)
        one += gen("x")
        other += one["x"] + gen("y")

    with FakeClient() as client:
        events = talks.stream(client)
        next(events)
        events.close()  # type: ignore[attr-defined]  # a generator

        assert client.held_pins == []


def test_a_batch_pins_the_path_of_the_tree_that_it_is_on() -> None:
    seen: list[list[str]] = []

    @program(max_tokens=2)
    def asks(s: State, document: str, question: str) -> None:
        s += LONG + document + question + gen("x")

    items = [
        {"document": letter * 40, "question": question} for letter in "ab" for question in "xyz"
    ]
    with FakeClient(bos=False) as client:

        def look(index: int, state: State) -> None:
            seen.append(["".join(map(chr, tokens)) for tokens in client.held_pins])

        asks.run_batch(client, items, max_in_flight=1, on_done=look)

    first, second = [LONG + "a" * 40], [LONG + "b" * 40]
    assert seen == [[], first, first, [LONG], second, second]


def test_explain_says_who_waits() -> None:
    @program(max_tokens=4)
    def crosses(s: State) -> None:
        s += LONG
        one, other = s.fork(2)
        one += gen("x")
        other += "b" + gen("y")
        other += one["x"] + gen("z")

    crosses.compile()

    assert "keep: 1 branches wait for others" in crosses.explain()
    assert "until then: root/fork1[1]" in crosses.explain()
    assert "pinned until the last of them ended" in crosses.explain()


def test_common_prefixes_are_as_long_as_they_are() -> None:
    for length in range(9):
        left = [*range(length), 99, *range(5)]

        assert num_common(left, [*range(length), 98, 7]) == length
        assert num_common(left, list(range(length))) == length
    assert num_common([], [1]) == 0
